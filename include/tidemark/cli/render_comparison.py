"""Render comparisons of tables, settings and dialects, and the histories of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich import filesize
from rich.console import Group, RenderableType
from rich.text import Text

from tidemark.cli.rich_table import create_table
from tidemark.comparison import CAUSES, RULES, Comparison, DialectComparison
from tidemark.comparison.config_impact import ChangedRows
from tidemark.comparison.row_history import RowHistory
from tidemark.comparison.what_if import WhatIf
from tidemark.config.diff import Effect, SettingChange
from tidemark.formatting import format_count, format_lateness, format_span, format_values

_CONSEQUENCES: Mapping[Effect, str] = {
    "new pipeline": "all tables: it is another pipeline",
    "new output": "committed slices cannot continue: give the pipeline a new `output`",
    "all slices": "committed slices: reprocess them",
    "slices since": "committed slices after it: reprocess them",
    "new slices": "slices from now on",
    "no rows": "no rows",
}


def render_setting_diff(differences: Sequence[SettingChange]) -> RenderableType:
    """Show the settings that differ between two pipeline files, and the effect of each."""
    if not differences:
        return "no setting differs"
    table = create_table(("setting", "was", "is", "what it changes"), title="Settings that differ")
    for difference in differences:
        was, now = ("" if value is None else str(value) for value in (difference.old, difference.new))
        table.add_row(Text(difference.setting), Text(was), Text(now), _CONSEQUENCES[difference.effect])
    return table


def render_changed_rows(changed: ChangedRows) -> str:
    """Show how many rows a change of a pipeline file would add and remove."""
    if not changed.slices:
        return f"{changed.start} to {changed.end} (exclusive): no rows change ({changed.same:,} identical)"
    return (
        f"{changed.start} to {changed.end} (exclusive): {changed.added:,} rows added, {changed.removed:,} removed, "
        f"{changed.same:,} identical; {format_count(changed.slices, 'slice')} changed"
    )


def render_what_if(result: WhatIf) -> RenderableType:
    """Show the outcome for each value of a setting, and the recommendation."""
    table = create_table(
        ("",),
        ("emitted", "late rows", "state, mean"),
        title=f"{result.pipeline}: what if {result.setting} were\n{result.start} to {result.end} (exclusive)",
        show_lines=True,
    )
    for outcome in [*result.outcomes, *([result.without_lateness] if result.without_lateness else [])]:
        share = f"{result.matched_share(outcome):.2%} complete" if result.without_lateness else ""
        delay = outcome.output_delay_ms
        lines = (
            f"{outcome.matched:,} matched",
            share,
            f"{outcome.padded:,} padded" if outcome.padded else "",
            "" if delay is None else f"{format_span(round(delay))} mean delay",
        )
        table.add_row(
            Text(outcome.value or "no row late").append("\ncurrent" if outcome.value == result.current else "", "dim"),
            "\n".join(filter(None, lines)),
            f"{sum(outcome.late.values()):,}",
            f"{outcome.state_rows:,.0f} rows\n{filesize.decimal(round(outcome.state_bytes))}",
        )
    advice = result.recommend()
    notes = (Text(f"note: {note}") for note in result.notes)
    return Group(table, *([Text(f"{advice}.", "bold")] if advice else []), *notes)


def render_row_histories(histories: Iterable[RowHistory]) -> RenderableType:
    """Show the history of each input row, in a chain with the name of the pipeline that reads it."""
    histories = list(histories)
    lines: list[RenderableType] = []
    is_chain = len({history.pipeline for history in histories}) > 1
    for history in histories:
        owner = f" of {history.pipeline}:" if is_chain else ""
        lines.append(Text(f"{history.side} row{owner} {format_values(history.row)}", "bold"))
        lines += [Text(f"  {step}") for step in history.steps]
    return Group(*lines)


def render_comparison(comparison: Comparison) -> RenderableType:
    """Show how many rows two tables share, and the causes of the differences."""
    rows = comparison.same + comparison.differences
    share = f" ({comparison.same / rows:.2%})" if rows else ""
    headline = f"{comparison.unexplained:,} unexplained" if comparison.differences else "no difference"
    lines: list[RenderableType] = [
        Text(f"{comparison.pipeline} with {comparison.table}, {comparison.start} to {comparison.end} (exclusive)"),
        Text(headline, "bold red" if comparison.over_budget else "bold green"),
        Text(f"{comparison.same:,} rows are the same{share}, {comparison.describe_differences()}"),
    ]
    if comparison.causes:
        table = create_table(("cause", "such as"), ("only in", "rows"))
        for cause in comparison.causes_by_row:
            only_in = comparison.label_other_table(cause.missing_in)
            examples = "\n".join(_format_numbered_example(comparison, example) for example in cause.examples)
            name = comparison.adapt_words(f"{cause.cause}\n[dim]{CAUSES[cause.cause]}[/dim]")
            table.add_row(name, Text(examples), only_in, f"{cause.rows:,}")
        lines.append(table)
    return Group(*lines, *(Text(f"note: {note}") for note in comparison.notes))


def _format_numbered_example(comparison: Comparison, example: dict[str, Any]) -> str:
    """Format an example with the number by which `compare minimize` finds it; a changed row also with its table."""
    table = f" in {comparison.label_table(example['_only_in'])}" if "_only_in" in example else ""
    values = comparison.summarize_example(example)
    return f"{example['_number']}{table}: {_describe_example(values, example, comparison.adapt_words)}"


def render_dialects(result: DialectComparison) -> RenderableType:
    """Show how many rows each dialect emits, and the differences of each pair by rule."""
    title = f"{result.pipeline}, {result.start} to {result.end} (exclusive)"
    answers = create_table(("dialect", "not supported"), ("emissions", "late rows"), title=title)
    for dialect in result.results:
        counts = ("", "") if dialect.unsupported else (f"{dialect.emissions:,}", f"{dialect.late:,}")
        answers.add_row(dialect.dialect, Text(dialect.unsupported or ""), *counts)
    if not result.differences:
        return Group(answers, Text("no difference", "bold green"))
    table = create_table(("only in", "because of", "such as"), ("rows",))
    for difference in result.differences:
        rule = f"{difference.rule}\n[dim]{RULES[difference.rule]}[/dim]"
        example = Text(_describe_example({name: difference.example.get(name) for name in result.key_columns}, {}))
        only_in = f"{difference.only_in}\n[dim]not in {difference.not_in}[/dim]"
        table.add_row(only_in, rule, example, f"{difference.rows:,}")
    return Group(answers, table, Text("Rules: docs/dialects.md#why-dialects-differ"))


def _describe_example(
    values: dict[str, Any], row: dict[str, Any], adapt_words: Callable[[str], str] = lambda text: text
) -> str:
    """Describe a row by some of its columns, and why it differs.

    Args:
        values: Some of its columns.
        row: The example.
        adapt_words: Adapts the words for both tables in the reason. Values stay as they are.
    """
    words = format_values({name: value for name, value in values.items() if value is not None})
    late = f"{row['_input']} row {format_lateness(row['_lateness_ms'])}" if "_lateness_ms" in row else ""
    join = f"in {row['_pipeline']}" if "_pipeline" in row else ""
    why = ": ".join(filter(None, (join, adapt_words(", ".join(filter(None, (late, row.get("_detail"))))))))
    return f"{words}: {why}" if why else words
