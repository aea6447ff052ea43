"""Render the results of test cases for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemark.cli.rich_table import create_table, create_unwrapped_line
from tidemark.formatting import format_count, format_value
from tidemark.pipeline_tests.differences import RowDifference, SectionDifference
from tidemark.pipeline_tests.runner import CaseResult

_STYLES = {"missing": "red", "unexpected": "red", "changed": "yellow"}


def render_results(results: Sequence[CaseResult], seconds: float) -> RenderableType:
    """Show the cases that failed, with their differences, and the number of cases that passed."""
    parts: list[RenderableType] = []
    for result in results:
        if result.status != "passed":
            parts += _render_failure(result)
    parts += [
        create_unwrapped_line(f"{result.place}: {result.case} ran on its own: {result.own_job}.")
        for result in results
        if result.own_job and not result.own_job.startswith("it expects")
    ]
    failed = sum(result.status != "passed" for result in results)
    pipelines = format_count(len({result.pipeline for result in results}), "pipeline")
    summary = f"{format_count(len(results) - failed, 'case')} passed, {failed} failed"
    parts.append(create_unwrapped_line(f"{summary} ({pipelines}, {seconds:.1f} s)"))
    return Group(*parts)


def _render_failure(result: CaseResult) -> Iterator[RenderableType]:
    """Yield the parts of the description of a case that failed."""
    line = create_unwrapped_line(f"{result.place}: {result.pipeline}: {result.case}: {result.status}")
    line.stylize("bold")
    yield line
    if result.message:
        yield create_unwrapped_line(f"  {result.message}")
    for difference in result.differences:
        yield render_difference(difference)


def render_difference(difference: SectionDifference) -> Table:
    """Show the rows that are missing, unexpected or changed."""
    table = create_table(("", *difference.columns), title=difference.title)
    for row in difference.rows:
        cells = [Text(_render_cell(row, column)) for column in difference.columns]
        table.add_row(Text(row.kind, style=_STYLES[row.kind]), *cells)
    return table


def _render_cell(row: RowDifference, column: str) -> str:
    """Format a value, and of a changed row the expected and the actual one."""
    expected, actual = row.expected, row.actual
    if expected is None or actual is None:
        values = expected or actual or {}
        return format_value(values[column]) if column in values else ""
    if column not in expected:
        return ""
    texts = format_value(expected[column]), format_value(actual.get(column))
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} → {texts[1]}"
