"""Facts as a page, as Markdown and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from tidemark.delta.filesystem import is_address, write_text
from tidemark.errors import UserError
from tidemark.formatting import counted
from tidemark.report import narrative
from tidemark.report.data import Facts


def html(facts: Facts) -> str:
    """One page that needs nothing else: no network, no script, no font."""
    from tidemark.report import charts  # noqa: PLC0415 - a fifth of the time that any command takes to start

    return environment().get_template("report.html.j2").render(facts=facts, charts=charts, **_HELPERS)


def markdown(facts: Facts) -> str:
    """The same for a pull request or a ticket."""
    return environment().get_template("report.md.j2").render(facts=facts, **_HELPERS)


def as_json(facts: Facts) -> str:
    """The same for scripts: `Facts.describe`."""
    return json.dumps(facts.describe(), indent=1) + "\n"


FORMATS: dict[str, Callable[[Facts], str]] = {".html": html, ".md": markdown, ".json": as_json}
"""How to write a report, by the suffix of its file."""


def check_paths(texts: Iterable[str], formats: Collection[str] = FORMATS.keys()) -> tuple[str, ...]:
    """The files to write, paths or URIs, before the work is done that ends in them.

    Raises:
        UserError: a suffix that is none of `formats`, or a folder that does not exist.
    """
    places = tuple(texts)
    for one in places:
        if Path(one).suffix not in formats:
            raise UserError(f"--report {one}: the name of a report ends in {', '.join(formats)}")
        if not is_address(one):
            need_folder("--report", Path(one))
    return places


def need_folder(option: str, path: Path) -> None:
    """See that a file can be written, before the work is done that ends in it.

    Raises:
        UserError: its folder does not exist.
    """
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}; make it first")


def write(facts: Facts, places: Iterable[str | Path]) -> None:
    """Write a report to files, each in the format of its suffix."""
    for one in places:
        write_text(str(one), FORMATS[Path(one).suffix](facts))


def columns(facts: Facts, examples: Sequence[dict[str, object]]) -> list[str]:
    """Columns to show of examples: where they are, what `Comparison.brief` shows of them; null ones left out."""
    names = ["_number", "_slice", "_emission", *(name for row in examples for name in facts.comparison.brief(row))]
    return list(dict.fromkeys(name for name in names if any(name in row for row in examples)))


_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_HELPERS = {"words": narrative, "columns": columns, "counted": counted}


@cache
def environment() -> Environment:
    """The templates, with what they need to write numbers, names and times."""
    found = Environment(
        loader=PackageLoader("tidemark.report"),
        autoescape=select_autoescape(("html.j2",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["n"] = lambda number: f"{number:,.0f}"
    found.filters["breakable"] = lambda name: Markup(re.sub(r"(?<=[_/])", "<wbr>", str(escape(name))))  # noqa: S704
    found.filters["times"] = lambda text: Markup(_INSTANT.sub(r"<time>\g<0></time>", str(escape(text))))  # noqa: S704
    found.filters["time"] = lambda value: re.sub(r"(?<=:\d\d)(:00)?\.000Z$", "Z", str(value))
    found.filters["cell"] = lambda value: str(value).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return found
