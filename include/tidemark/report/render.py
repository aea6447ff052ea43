"""Render a report as HTML, Markdown and JSON, and write it to files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from tidemark.delta.filesystem import is_uri, write_text
from tidemark.errors import UserError
from tidemark.formatting import format_count, format_value
from tidemark.report import narrative
from tidemark.report.data import ReportData


def render_html(data: ReportData) -> str:
    """Render a report as a self-contained page, without network requests, scripts or fonts."""
    from tidemark.report import charts  # noqa: PLC0415 - a fifth of the time that any command takes to start

    return create_environment().get_template("report.html.j2").render(report=data, charts=charts, **_HELPERS)


def render_markdown(data: ReportData) -> str:
    """Render a report as Markdown, for a pull request or a ticket."""
    return create_environment().get_template("report.md.j2").render(report=data, **_HELPERS)


def render_json(data: ReportData) -> str:
    """Render a report as JSON, for scripts."""
    return json.dumps(data.to_dict(), indent=1) + "\n"


FORMATS: dict[str, Callable[[ReportData], str]] = {
    ".html": render_html,
    ".md": render_markdown,
    ".json": render_json,
}
"""Renderers by file suffix."""


def check_paths(
    paths: Iterable[str], formats: Collection[str] = FORMATS.keys(), option: str = "FILE"
) -> tuple[str, ...]:
    """Check that files can be written, before the report is computed.

    Args:
        paths: Local paths or URIs.
        formats: Allowed suffixes.
        option: Name of the argument or option with the paths, for messages.

    Raises:
        UserError: The suffix is not allowed, or the folder does not exist.
    """
    files = tuple(paths)
    for file in files:
        if Path(file).suffix not in formats:
            raise UserError(f"{option} {file}: unknown suffix. Use a file name that ends in {', '.join(formats)}.")
        if not is_uri(file):
            check_folder(option, Path(file))
    return files


def check_folder(option: str, file: Path) -> None:
    """Check that the folder of a file exists, before its content is computed.

    Raises:
        UserError: The folder does not exist.
    """
    if not file.parent.is_dir():
        raise UserError(f"{option} {file}: the folder {file.parent} does not exist. Create it first.")


def write_report(data: ReportData, files: Iterable[str | Path]) -> None:
    """Write a report to files, each in the format of its suffix."""
    for file in files:
        write_text(str(file), FORMATS[Path(file).suffix](data))


def select_columns(data: ReportData, examples: Sequence[dict[str, object]]) -> list[str]:
    """Select the columns of examples to show: number, slice, emission and summary, unless null in all of them."""
    summaries = (name for row in examples for name in data.comparison.summarize_example(row))
    names = ["_number", "_slice", "_emission", *summaries]
    return list(dict.fromkeys(name for name in names if any(name in row for row in examples)))


_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_MARKDOWN_SYNTAX = re.compile(r"[\\|\[\]`]")
"""Characters that would end a table cell, or begin a link, an image or code."""
_ZERO_UNITS = re.compile(r"(?<=:\d\d)(:00)?\.000Z$")
_HELPERS = {"narrative": narrative, "columns": select_columns, "format_count": format_count}


@cache
def create_environment(package: str = "tidemark.report") -> Environment:
    """Create the environment of a package's templates, with filters that format numbers, names and times.

    Args:
        package: Package with a folder `templates`. Those of this package can be included, too.
    """
    packages = dict.fromkeys((package, "tidemark.report"))
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=select_autoescape(("html.j2",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = environment.filters
    filters["number"] = lambda number: f"{number:,.0f}"
    filters["breakable"] = lambda name: Markup(re.sub(r"(?<=[_/])", "<wbr>", str(escape(name))))  # noqa: S704
    filters["times"] = lambda text: Markup(_INSTANT.sub(r"<time>\g<0></time>", str(escape(text))))  # noqa: S704
    filters["value"] = lambda value: "" if value is None else _ZERO_UNITS.sub("Z", format_value(value))
    filters["cell"] = lambda value: _MARKDOWN_SYNTAX.sub(r"\\\g<0>", str(value)).replace("<", "&lt;").replace("\n", " ")
    return environment
