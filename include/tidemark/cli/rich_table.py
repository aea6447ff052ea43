"""Tables for a terminal that wrap long values instead of cutting them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text


def create_table(
    texts: Sequence[str],
    figures: Sequence[str] = (),
    title: str | None = None,
    *,
    show_header: bool = True,
    show_lines: bool = False,
) -> Table:
    """Create a table that fits 80 columns without cutting a value.

    Args:
        texts: Headers of columns of text, which wraps, within a word if it must.
        figures: Headers of columns to the right of them, whose lines never wrap. Use few of them, with short lines.
        title: Title above the table.
        show_header: False for a table without headers.
        show_lines: True for lines between rows.
    """
    table = Table(title=title, title_justify="left", show_header=show_header, show_lines=show_lines)
    for text in texts:
        table.add_column(text, overflow="fold")
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True, overflow="fold")
    return table


def create_unwrapped_line(text: str) -> Text:
    """Create a line that only the terminal wraps, so that a command in it can be copied. Print it in a `Group`."""
    return Text(text, no_wrap=True, overflow="ignore")
