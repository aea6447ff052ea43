"""Read options with settings of a pipeline file, write the file, and print what it lacks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from tidemark.cli.common import print_result
from tidemark.config.safe_yaml import parse_value
from tidemark.errors import UserError
from tidemark.importing.draft import Draft
from tidemark.importing.pipeline_writer import format_pipeline_file


def parse_settings(texts: Iterable[str] | None) -> dict[str, Any]:
    """Parse the options `--set NAME=VALUE`, whose values are YAML. A Flink version is text, although 2.10 is a number.

    Raises:
        UserError: One has no value.
    """
    settings = dict(split_option("--set", text) for text in texts or ())
    return {
        name: text if name == "flink_version" and re.fullmatch(r"[\d.]+", text) else _parse_value(text)
        for name, text in settings.items()
    }


def split_option(option: str, text: str) -> tuple[str, str]:
    """Split NAME=VALUE.

    Raises:
        UserError: There is no name or no value.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UserError(f"{option} {text} has no value. Write NAME=VALUE.")
    return name, value


def write_drafts(
    drafts: Sequence[Draft], command: str, output: Path | None, *, replaces_file: bool | None = None
) -> None:
    """Write drafts as pipeline files, and print their paths and what they lack.

    Args:
        drafts: The drafts: one, or those of a chain.
        command: Command that writes the files, with its arguments.
        output: File of the only draft. Default: the name of the pipeline, in the working directory.
        replaces_file: Replace existing files. None for a command without the option --force.

    Raises:
        UserError: A file exists or cannot be written, or two drafts have the same name.
    """
    draft_by_path = {output or Path(f"{draft.get_content()['name']}.yaml"): draft for draft in drafts}
    if len(draft_by_path) < len(drafts):
        raise UserError("two joins of the chain would have one file. Choose another name with --name.")
    for path in () if replaces_file else draft_by_path:
        if path.exists():
            raise explain_existing_file(path, has_force=replaces_file is not None)
    for path, draft in draft_by_path.items():
        _write_file(path, format_pipeline_file(draft, command), replaces_file=replaces_file)
    values = [_describe(draft, path) for path, draft in draft_by_path.items()]
    print_result(
        values if values[1:] else values[0],
        lambda: Text("\n").join(_render(draft, path) for path, draft in draft_by_path.items()),
        soft_wrap=True,
    )


def _describe(draft: Draft, path: Path) -> dict[str, Any]:
    return {
        "file": str(path),
        "join": draft.title,
        "open_settings": draft.list_open_settings(),
        "omissions": [{"subject": omission.subject, "reason": omission.reason} for omission in draft.omissions],
    }


def _parse_value(text: str) -> Any:
    try:
        return parse_value(text)
    except ValueError:
        return text


def explain_existing_file(path: Path, *, has_force: bool) -> UserError:
    """Return the error that a file exists, with the remedies that the command has."""
    remedy = "Pass --force to replace it" if has_force else "Remove it"
    return UserError(f"{path} exists already. {remedy}, or choose another file with --output.")


def _write_file(path: Path, text: str, *, replaces_file: bool | None) -> None:
    try:
        with path.open("w" if replaces_file else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise explain_existing_file(path, has_force=replaces_file is not None) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}. Choose a file with --output."
        ) from None


def _render(draft: Draft, path: Path) -> Text:
    lines = [f"{path}: written. {draft.title}"]
    if names := draft.list_open_settings():
        lines.append(f"Fill in: {', '.join(names)}")
    if draft.omissions:
        lines += ["Not taken over:", *(f"- {omission.subject}: {omission.reason}" for omission in draft.omissions)]
    return Text("\n".join(lines))
