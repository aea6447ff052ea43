"""Render plans and results for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import filesize
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tidemark.cli.quality_warnings import render_failures
from tidemark.cli.rich_table import create_table, create_unwrapped_line
from tidemark.cli.status import SideStatus, Status
from tidemark.comparison import CAUSES, RULES, Comparison, DialectComparison
from tidemark.comparison.config_impact import ChangedRows
from tidemark.comparison.row_history import RowHistory
from tidemark.comparison.what_if import WhatIf
from tidemark.config.diff import Effect, SettingChange
from tidemark.execution.job import JobResult
from tidemark.formatting import format_count, format_estimate, format_lateness, format_span, format_values
from tidemark.planning.plan import Plan
from tidemark.streaming.live_query import LiveQueryResult
from tidemark.timegrid.slices import Grid

_Line = tuple[str, Callable[[Status], str]]


_CONSEQUENCES: Mapping[Effect, str] = {
    "new pipeline": "all tables: it is another pipeline",
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


def render_plan(plan: Plan) -> RenderableType:
    """Show which slices a plan would run, and why."""
    described = plan.to_dict()
    title = f"Plan of {described['pipeline']} ({described['clock']} clock)"
    table = create_table(("", ""), title=title, show_header=False)
    table.columns[0].style = "bold"
    table.add_row(
        "slices",
        format_count(plan.slice_count, "slice")
        + (f", {plan.already_committed} committed already" if plan.already_committed else ""),
    )
    if plan.jobs:
        table.add_row("from, to", f"{described['from']} to {described['to']} (exclusive)")
    for segment in described["slice_ranges"]:
        extent = f"{segment['from']} to {segment['to']}, {format_count(segment['slices'], 'slice')}"
        table.add_row(segment["reason"], f"{segment['explanation']} ({extent})")
    if not described["slice_ranges"]:
        table.add_row("why", described["explanation"])
    if plan.jobs:
        table.add_row("Spark jobs", describe_jobs(plan))
        strategies = Counter(job["replay"] for job in described["jobs"])
        by_strategy = [f"{format_count(jobs, 'job')}: {text}" for text, jobs in strategies.items()]
        table.add_row("replay", "; ".join(by_strategy if len(strategies) > 1 else strategies))
    if plan.atomic:
        table.add_row("commit", "all slices at once, at the end, or none")
    table.add_row("state", f"continues {described['continues']}" if described["continues"] else "starts empty")
    for side, source in described["inputs"].items():
        rows = "unknown" if source["rows"] is None else f"{source['rows']:,}"
        reads = (
            f": up to {rows} rows in {format_count(source['files'], 'file')}, {filesize.decimal(source['bytes'])}"
            if plan.jobs
            else ""
        )
        table.add_row(side, f"{source['table']}, version {source['version']}{reads}")
    if plan.jobs:
        estimate = plan.estimate
        time_text = f"{estimate.seconds:,.0f} s, give or take {estimate.error:,.0f} s" if estimate else "no history yet"
        table.add_row("time", time_text)
    if plan.unread_slices:
        table.add_row(
            "late-arriving rows",
            f"{format_count(len(plan.unread_slices), 'slice')} would change: {_describe_ranges(described)}",
        )
        table.add_row("", f"{plan.proposed_command}")
    complete = (f"{input_.table} up to {input_.until_text}: {input_.reason}" for input_ in plan.input_completeness)
    for label, text in [
        *(("complete", line) for line in complete),
        *(("note", note) for note in plan.notes),
        *(("Spark query", query) for query in plan.spark_queries),
    ]:
        table.add_row(label, text)
    return table


def describe_jobs(plan: Plan) -> str:
    """Describe the number and size of the jobs, and the capacity by which memory limits them."""
    rows = format_estimate(sum(plan.rows_by_job.values()), "row")
    smallest, largest = min(map(len, plan.jobs)), max(map(len, plan.jobs))
    size = format_count(largest, "slice") if smallest == largest else f"{smallest:,} to {largest:,} slices"
    if len(plan.jobs) == 1:
        return f"1 job for {size}, {rows}"
    limit = ""
    if plan.capacity and plan.is_cut_by_memory:
        limit = f"; memory holds {format_estimate(plan.capacity.rows, 'row')} of a job"
    return f"{len(plan.jobs):,} jobs of {size} each, {rows} in all{limit}"


def render_reprocess_changes(grid: Grid, results: Iterable[JobResult]) -> RenderableType:
    """Show what a reprocess changed per slice, and how many slices did not change."""
    changes = describe_changes(grid, results)
    table = create_table(("slice",), ("added", "removed", "same"), title="Changed")
    for line in changes:
        if line["added"] or line["removed"]:
            table.add_row(line["slice"], *(f"{line[name]:,}" for name in ("added", "removed", "same")))
    unchanged = sum(not line["added"] and not line["removed"] for line in changes)
    return Group(
        table, f"{format_count(len(changes), 'slice')} run again, {unchanged:,} of them with the same emissions"
    )


def describe_changes(grid: Grid, results: Iterable[JobResult]) -> list[dict[str, Any]]:
    """Return the emissions added, removed and unchanged of each reprocessed slice, JSON-ready."""
    return [
        {"slice": grid.label(number), **asdict(change)}
        for result in results
        for number, change in sorted(result.changes.items())
    ]


def render_status(*statuses: Status) -> RenderableType:
    """Show what pipelines have committed, one column per pipeline; more tables if they do not fit the width."""
    findings = [
        line
        for status in statuses
        for line in render_failures(status.cli_arguments, status.slices, status.grouped_failures)
    ]
    findings += [line for status in statuses for line in _describe_rejections(status)]
    findings += [
        Text(
            f"waived for the next run of slice {waiver['slice']}, by {waiver['user']}: {waiver['expectation']}: "
            f"{waiver['reason']}"
        )
        for status in statuses
        for waiver in status.waivers
    ]
    findings += [Text(_describe_erasure(erasure)) for status in statuses for erasure in status.erasures]
    return Group(_StatusTables(statuses), *findings)


_UNLIMITED_WIDTH = 10_000


@dataclass(frozen=True)
class _StatusTables:
    """Table with a column per pipeline, or several tables where the width is not enough for all columns."""

    statuses: Sequence[Status]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        remaining, unlimited = self.statuses, options.update_width(_UNLIMITED_WIDTH)
        while remaining:
            tables = (_create_status_table(remaining[:count]) for count in range(len(remaining), 1, -1))
            fitting = (
                table for table in tables if console.measure(table, options=unlimited).minimum <= options.max_width
            )
            table = next(fitting, None) or _create_status_table(remaining[:1])
            yield table
            remaining = remaining[len(table.columns) - 1 :]


def _create_status_table(statuses: Sequence[Status]) -> Table:
    table = create_table(("",), title="Committed")
    for status in statuses:
        header = f"{status.pipeline}\n[dim]{status.clock} clock[/dim]"
        table.add_column(header, justify="right", overflow="fold")
    for name, value in _LINES:
        cells = [value(status) for status in statuses]
        if any(cells):
            table.add_row(name, *cells)
    return table


def _describe_rejections(status: Status) -> Iterator[Text]:
    for rejection in status.rejections:
        names = "; ".join(rejection.expectations)
        yield Text(
            f"slice {rejection.slice} was rejected by the quality gate at {rejection.rejected_at}: {names}", "red"
        )
    if status.rejections:
        yield create_unwrapped_line(f"To see why: tidemark quality show {status.cli_arguments}")


def _describe_erasure(erasure: dict[str, Any]) -> str:
    where = ", ".join(f"{side} rows where {text}" for side, text in erasure["predicates"].items())
    rows = ", ".join(f"{count:,} of {name}" for name, count in erasure["row_counts"].items())
    return f"erased by {erasure['user']} at {erasure['at']}: {where} ({rows or 'no rows'})"


def _describe_ranges(described: dict[str, Any]) -> str:
    return ", ".join(
        range_["from"] if range_["slices"] == 1 else f"{range_['from']} to {range_['to']}"
        for range_ in described["slices_to_reprocess"]
    )


def render_live_query(result: LiveQueryResult) -> str:
    """Show what a live query wrote, and how to replay it."""
    line = (
        f"{result.pipeline} streamed by {result.rate}: {format_count(result.rows, 'row')} from "
        f"{format_count(result.batches, 'micro-batch')} in {result.seconds:,.1f} s, "
        f"{result.dropped:,} dropped behind the watermark\nTable: {result.table}"
    )
    return f"{line}\nReplay: tidemark run {result.replay} --to {result.replay_to}" if result.replay else line


def _describe_late(side: SideStatus) -> str:
    spans = "".join(f"\n[dim]{name} behind {format_span(ms)}[/dim]" for name, ms in side.lateness.items())
    return f"{side.late:,}{spans}"


def _describe_rejected(side: SideStatus) -> str:
    reasons = "".join(f"\n[dim]{count:,} {reason}[/dim]" for reason, count in sorted(side.reasons.items()))
    return f"{side.rejected:,}{reasons}"


def _describe_filtered(side: SideStatus) -> str:
    return "" if side.filtered is None else f"{side.filtered:,}"


def _describe_size(status: Status) -> str:
    files, size = (sum(table[key] for table in status.tables.values()) for key in ("files", "bytes"))
    return f"{format_count(files, 'file')}, {filesize.decimal(size)}" if files else ""


def _describe_oldest_versions(status: Status) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in status.oldest_versions.items() if version)
    return versions or ("all" if status.oldest_versions else "")


def _describe_adoption(status: Status) -> str:
    adopted = status.adopted
    return f"{adopted['until']}, from {adopted['table']}, version {adopted['version']}" if adopted else ""


def _side_value(side: str, value: Callable[[SideStatus], str]) -> Callable[[Status], str]:
    return lambda status: value(getattr(status, side))


_LINES: tuple[_Line, ...] = (
    ("slices", lambda s: f"{s.slices:,} in {format_count(s.jobs, 'Spark job')}"),
    ("from", lambda s: s.first or ""),
    ("to (exclusive)", lambda s: s.end or ""),
    ("adopted before", _describe_adoption),
    ("[bold]rows emitted[/bold]", lambda s: f"[bold]{s.emissions:,}[/bold]"),
    ("rows before explode", lambda s: "" if s.pairs is None else f"{s.pairs:,}"),
    ("in quarantine", lambda s: f"{s.quarantined:,}" if s.quarantined else ""),
    ("left rows read", _side_value("left", lambda side: f"{side.read:,}")),
    ("right rows read", _side_value("right", lambda side: f"{side.read:,}")),
    ("left left out by where", _side_value("left", _describe_filtered)),
    ("right left out by where", _side_value("right", _describe_filtered)),
    ("left late", _side_value("left", _describe_late)),
    ("right late", _side_value("right", _describe_late)),
    ("left rejected", _side_value("left", _describe_rejected)),
    ("right rejected", _side_value("right", _describe_rejected)),
    ("left watermark", _side_value("left", lambda side: side.watermark or "none yet")),
    ("right watermark", _side_value("right", lambda side: side.watermark or "none yet")),
    ("left rows carried", _side_value("left", lambda side: f"{side.carried:,}")),
    ("right rows carried", _side_value("right", lambda side: f"{side.carried:,}")),
    ("event times floored to ms", lambda s: f"{s.floored_event_times:,}" if s.floored_event_times else ""),
    ("quality", lambda s: ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(s.quality.items()))),
    ("time of the jobs", lambda s: f"{s.seconds:,.1f} s"),
    ("its tables", _describe_size),
    ("oldest versions to read", _describe_oldest_versions),
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
    """Show the history of each input row."""
    lines: list[RenderableType] = []
    for history in histories:
        lines.append(Text(f"{history.side} row {format_values(history.row)}", "bold"))
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
    table = f" in {comparison.label_other_table(example['_missing_in'])}" if "_missing_in" in example else ""
    values = comparison.summarize_example(example)
    return f"{example['_number']}{table}: {_describe_example(values, example, comparison.adapt_words)}"


def render_dialects(result: DialectComparison) -> RenderableType:
    """Show how many rows each dialect emits, and the differences of each pair by rule."""
    title = f"{result.pipeline}, {result.start} to {result.end} (exclusive)"
    answers = create_table(("dialect", "does not know the join"), ("emissions", "late rows"), title=title)
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
    why = adapt_words(", ".join(filter(None, (late, row.get("_detail")))))
    return f"{words}: {why}" if why else words
