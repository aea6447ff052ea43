"""Write an imported or proposed pipeline as YAML, with a comment on each line."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from tidemark.formatting import to_single_line
from tidemark.importing.draft import Draft, Omission, Section, Setting

_COLUMNS = 118
_COMMENT_COLUMN = 44


def format_pipeline_file(draft: Draft, command: str) -> str:
    """Return the text of a pipeline file.

    Args:
        draft: The settings with their origins.
        command: Command that writes the file, with its arguments.
    """
    head = [f"Written by {command}", f"The join: {draft.title}", *draft.notes]
    lines = [line for text in head for line in _wrap(text, "# ", "#   ")]
    if draft.omissions:
        lines += ["# Not taken over:", *_format_omissions(draft.omissions)]
    return "\n".join([*lines, *_format_section(draft.settings, "")]) + "\n"


def _format_omissions(omissions: list[Omission]) -> Iterator[str]:
    for omission in omissions:
        yield from _wrap(f"{omission.subject}: {omission.reason}", "# - ", "#   ")


def _wrap(text: str, first: str, other: str) -> list[str]:
    """Wrap one line of text into lines that begin with the given texts."""
    line = to_single_line(text)
    return textwrap.wrap(line, _COLUMNS, initial_indent=first, subsequent_indent=other, break_on_hyphens=False)


def _format_section(section: Section, indent: str) -> Iterator[str]:
    for name, entry in section.items():
        key = _format_value(name)
        if not isinstance(entry, Setting):
            yield f"{indent}{key}:"
            yield from _format_section(entry, f"{indent}  ")
            continue
        text, comment = f"{indent}{key}: {_format_value(entry.value)}", f"# {to_single_line(entry.origin)}"
        line = f"{text.ljust(_COMMENT_COLUMN - 2)}  {comment}"
        if len(line) <= _COLUMNS:
            yield line
        else:
            yield from _wrap(entry.origin, f"{indent}# ", f"{indent}# ")
            yield text


def _format_value(value: Any) -> str:
    """Return a value as YAML in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1_000_000, sort_keys=False, allow_unicode=True)
    text = text.removesuffix("\n").removesuffix("\n...")
    return json.dumps(value, ensure_ascii=False) if "\n" in text else text
