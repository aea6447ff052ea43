"""How plans and results look on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import filesize
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemark.cli.status import SideStatus, Status
from tidemark.comparison import CAUSES, RULES, Comparison, Dialects
from tidemark.comparison.config_impact import ChangedRows
from tidemark.comparison.row_history import Life
from tidemark.comparison.what_if import WhatIf
from tidemark.config.diff import Difference, Effect
from tidemark.execution.job import JobResult
from tidemark.formatting import brief_span, counted
from tidemark.planning.plan import Plan
from tidemark.streaming.live_query import TwinResult
from tidemark.timegrid.slices import Grid

_Line = tuple[str, Callable[[Status], str]]


_FOLLOWS: Mapping[Effect, str] = {
    "other pipeline": "its tables begin anew",
    "answer": "committed slices: reprocess",
    "slices since": "committed slices behind it: reprocess",
    "next slice": "slices from now on",
    "no row": "no row",
}


def differences_view(found: Sequence[Difference]) -> RenderableType:
    """What differs between two pipeline files, and what follows."""
    if not found:
        return "no setting differs"
    table = Table(title="Settings that differ", title_justify="left")
    for name in ("setting", "was", "is", "what it changes"):
        table.add_column(name, overflow="fold")
    for one in found:
        was, now = ("" if value is None else str(value) for value in (one.was, one.now))
        table.add_row(Text(one.setting), Text(was), Text(now), _FOLLOWS[one.effect])
    return table


def changed_rows_view(found: ChangedRows) -> str:
    """How many rows a change of a pipeline file would change."""
    if not found.slices:
        return (
            f"Of the rows of {found.start} to {found.end} (exclusive) none is another one: {found.same:,} are the same"
        )
    return (
        f"{found.start} to {found.end} (exclusive): {found.added:,} rows come, {found.removed:,} go, "
        f"{found.same:,} are the same; {counted(found.slices, 'slice')} with other rows"
    )


def plan_view(plan: Plan) -> RenderableType:
    """What a plan would run and why."""
    described = plan.describe()
    table = Table(
        title=f"Plan of {described['pipeline']} ({described['clock']} clock)", show_header=False, title_justify="left"
    )
    table.add_column(style="bold")
    table.add_column()
    table.add_row(
        "slices", counted(plan.slices, "slice") + (f", {plan.skipped} committed already" if plan.skipped else "")
    )
    if plan.jobs:
        table.add_row("from, to", f"{described['from']} to {described['to']} (exclusive)")
    for segment in described["segments"]:
        extent = f"{segment['from']} to {segment['to']}, {counted(segment['slices'], 'slice')}"
        table.add_row(segment["reason"], f"{segment['because']} ({extent})")
    if not described["segments"]:
        table.add_row("why", described["why"])
    if plan.jobs:
        least, most = min(map(len, plan.jobs)), max(map(len, plan.jobs))
        size = counted(most, "slice") if least == most else f"{least:,} to {most:,} slices"
        why = f" each: {described['sizing']}" if described["sizing"] else ""
        table.add_row("Spark jobs", f"{len(plan.jobs):,}, of {size}{why}")
    if plan.atomic:
        table.add_row("commit", "all slices at once, at the end, or none")
    table.add_row("state", f"continues {described['carry_in']}" if described["carry_in"] else "starts empty")
    for side, source in described["inputs"].items():
        rows = "unknown" if source["rows"] is None else f"{source['rows']:,}"
        reads = (
            f": up to {rows} rows in {counted(source['files'], 'file')}, {filesize.decimal(source['bytes'])}"
            if plan.jobs
            else ""
        )
        table.add_row(side, f"{source['table']}, version {source['version']}{reads}")
    if plan.jobs:
        guess = plan.estimate
        told_time = f"{guess.seconds:,.0f} s, give or take {guess.error:,.0f} s" if guess else "no history yet"
        table.add_row("time", told_time)
    if plan.waiting:
        table.add_row("late landing", f"{counted(len(plan.waiting), 'slice')} would change: {_extents(described)}")
        table.add_row("", f"{plan.proposed}")
    complete = (f"{one.table} up to {one.name}: {one.because}" for one in plan.reaches)
    for label, told in [
        *(("complete", one) for one in complete),
        *(("note", note) for note in plan.notes),
        *(("asked Spark", one) for one in plan.asked),
    ]:
        table.add_row(label, told)
    return table


def changes_view(grid: Grid, results: Iterable[JobResult]) -> RenderableType:
    """What a rerun changed, slice by slice; slices that came out the same in one line."""
    changes = describe_changes(grid, results)
    table = Table("slice", title="Changed", title_justify="left")
    for name in ("added", "removed", "same"):
        table.add_column(name, justify="right")
    for line in changes:
        if line["added"] or line["removed"]:
            table.add_row(line["slice"], *(f"{line[name]:,}" for name in ("added", "removed", "same")))
    alike = sum(not line["added"] and not line["removed"] for line in changes)
    return Group(table, f"{counted(len(changes), 'slice')} run again, {alike:,} of them with the same emissions")


def describe_changes(grid: Grid, results: Iterable[JobResult]) -> list[dict[str, Any]]:
    """Emissions added, removed and same of each slice that was run again: JSON-ready."""
    return [
        {"slice": grid.name(number), **asdict(change)}
        for result in results
        for number, change in sorted(result.changes.items())
    ]


def status_view(*statuses: Status) -> RenderableType:
    """What pipelines have committed, side by side."""
    table = Table(title="Committed", title_justify="left")
    table.add_column("")
    for status in statuses:
        table.add_column(f"{status.pipeline}\n[dim]{status.clock} clock[/dim]", justify="right")
    for name, value in _LINES:
        cells = [value(status) for status in statuses]
        if any(cells):
            table.add_row(name, *cells)
    findings = [Text(f"warning: {finding}", "yellow") for status in statuses for finding in status.findings]
    findings += [
        Text(f"waived for the next run of slice {one['slice']}, by {one['by']}: {one['expectation']}: {one['because']}")
        for status in statuses
        for one in status.waivers
    ]
    findings += [Text(_forgotten(one)) for status in statuses for one in status.forgotten]
    return Group(table, *findings)


def _forgotten(told: dict[str, Any]) -> str:
    where = ", ".join(f"{side} rows where {text}" for side, text in told["where"].items())
    rows = ", ".join(f"{count:,} of {name}" for name, count in told["all"].items())
    return f"forgotten by {told['by']} at {told['at']}: {where} ({rows or 'there were none'})"


def _extents(described: dict[str, Any]) -> str:
    return ", ".join(
        one["from"] if one["slices"] == 1 else f"{one['from']} to {one['to']}" for one in described["waiting"]
    )


def twin_view(result: TwinResult) -> str:
    """What a streaming twin has done, and how to replay it."""
    line = (
        f"{result.pipeline} streamed by {result.rate}: {counted(result.rows, 'row')} from "
        f"{counted(result.batches, 'micro-batch')} in {result.seconds:,.1f} s, "
        f"{result.dropped:,} dropped behind the watermark\nTable: {result.table}"
    )
    return f"{line}\nReplay: tidemark run {result.replay} --to {result.replay_to}" if result.replay else line


def _behind(side: SideStatus) -> str:
    spans = "".join(f"\n[dim]{name} behind {brief_span(ms)}[/dim]" for name, ms in side.behind.items())
    return f"{side.late:,}{spans}"


def _rejected(side: SideStatus) -> str:
    reasons = "".join(f"\n[dim]{count:,} {reason}[/dim]" for reason, count in sorted(side.reasons.items()))
    return f"{side.rejected:,}{reasons}"


def _filtered(side: SideStatus) -> str:
    return "" if side.filtered is None else f"{side.filtered:,}"


def _size(status: Status) -> str:
    files, size = (sum(one[what] for one in status.tables.values()) for what in ("files", "bytes"))
    return f"{counted(files, 'file')}, {filesize.decimal(size)}" if files else ""


def _oldest(status: Status) -> str:
    beyond = ", ".join(f"{name} {version}" for name, version in status.oldest.items() if version)
    return beyond or ("all" if status.oldest else "")


def _upkeep(status: Status) -> str:
    gain = status.upkeep
    if gain is None:
        return ""
    freed = f"vacuum would free {counted(gain.vacuum_files, 'file')}, {filesize.decimal(gain.vacuum_bytes)}"
    merged = f"; compact would make {counted(gain.compact_into, 'file')} of {gain.compact_files:,}"
    return freed + (merged if gain.compact_files else "")


def _of(side: str, value: Callable[[SideStatus], str]) -> Callable[[Status], str]:
    return lambda status: value(getattr(status, side))


_LINES: tuple[_Line, ...] = (
    ("slices", lambda s: f"{s.slices:,} in {counted(s.jobs, 'Spark job')}"),
    ("from", lambda s: s.first or ""),
    ("to (exclusive)", lambda s: s.end or ""),
    ("[bold]pairs[/bold]", lambda s: f"[bold]{s.emissions if s.pairs is None else s.pairs:,}[/bold]"),
    ("rows that flatten made of them", lambda s: "" if s.pairs is None else f"{s.emissions:,}"),
    ("in quarantine", lambda s: f"{s.quarantined:,}" if s.quarantined else ""),
    ("left rows read", _of("left", lambda side: f"{side.read:,}")),
    ("right rows read", _of("right", lambda side: f"{side.read:,}")),
    ("left left out by where", _of("left", _filtered)),
    ("right left out by where", _of("right", _filtered)),
    ("left late", _of("left", _behind)),
    ("right late", _of("right", _behind)),
    ("left rejected", _of("left", _rejected)),
    ("right rejected", _of("right", _rejected)),
    ("left watermark", _of("left", lambda side: side.watermark or "none yet")),
    ("right watermark", _of("right", lambda side: side.watermark or "none yet")),
    ("left rows carried", _of("left", lambda side: f"{side.carried:,}")),
    ("right rows carried", _of("right", lambda side: f"{side.carried:,}")),
    ("event times floored to ms", lambda s: f"{s.floored:,}" if s.floored else ""),
    ("quality", lambda s: ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(s.quality.items()))),
    ("time of the jobs", lambda s: f"{s.seconds:,.1f} s"),
    ("its tables", _size),
    ("oldest versions to read", _oldest),
    ("upkeep", _upkeep),
)


def differences(stream: Status, batch: Status) -> Sequence[str]:
    """What the arrival clock lost against the event-time clock of the same join, in sentences."""
    lost = batch.emissions - stream.emissions
    late = stream.left.late + stream.right.late
    rejected = stream.left.rejected + stream.right.rejected - batch.left.rejected - batch.right.rejected
    return (
        f"With every row on time the join has {batch.emissions:,} pairs; the stream emitted {stream.emissions:,}.",
        f"{lost:,} pairs ({lost / max(1, batch.emissions):.1%}) are missing from the stream.",
        f"Why: {late:,} rows came behind the watermark, and {rejected:,} never arrived.",
    )


def what_if_view(result: WhatIf) -> RenderableType:
    """Outcomes by the value of a setting, and what follows."""
    table = Table(
        title=f"{result.pipeline}: what if {result.setting} were\n{result.start} to {result.end}", title_justify="left"
    )
    for name in ("", "pairs", "of all", "padded", "late", "in state", "state", "comes after"):
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in [*result.outcomes, *([result.complete] if result.complete else [])]:
        table.add_row(
            outcome.value or "no row late",
            f"{outcome.matched:,}",
            f"{result.kept(outcome):.2%}" if result.complete else "",
            f"{outcome.padded:,}",
            f"{sum(outcome.late.values()):,}",
            f"{outcome.state_rows:,.0f}",
            filesize.decimal(round(outcome.state_bytes)),
            "" if outcome.output_delay_ms is None else brief_span(round(outcome.output_delay_ms)),
        )
    advice = result.recommendation()
    return Group(table, *([Text(f"{advice}.", "bold")] if advice else []))


def lives_view(lives: Iterable[Life]) -> RenderableType:
    """What happened to input rows, one after another."""
    lines: list[RenderableType] = []
    for life in lives:
        row = life.describe()["row"]
        lines.append(Text(f"{life.side} row {', '.join(f'{name} {value}' for name, value in row.items())}", "bold"))
        lines += [Text(f"  {step}") for step in life.steps]
    return Group(*lines)


def comparison_view(comparison: Comparison) -> RenderableType:
    """How far two tables agree, and why not."""
    rows = comparison.same + comparison.differences
    share = f" ({comparison.same / rows:.2%})" if rows else ""
    headline = f"{comparison.unexplained:,} unexplained" if comparison.differences else "no difference"
    lines: list[RenderableType] = [
        Text(f"{comparison.pipeline} with {comparison.table}, {comparison.start} to {comparison.end} (exclusive)"),
        Text(headline, "bold red" if comparison.over_budget else "bold green"),
        Text(f"{comparison.same:,} rows are the same{share}, {comparison.differences:,} differ"),
    ]
    if comparison.causes:
        table = Table("cause", "only in", title_justify="left")
        table.add_column("rows", justify="right")
        table.add_column("such as")
        for cause in comparison.causes:
            only_in = "batch" if cause.missing_in == "stream" else "stream"
            such_as = "\n".join(
                f"{one['_number']}: {_example(comparison.brief(one), one)}" for one in cause.examples[:1]
            )
            name = f"{cause.cause}\n[dim]{CAUSES[cause.cause]}[/dim]"
            table.add_row(name, only_in, f"{cause.rows:,}", Text(such_as))
        lines.append(table)
    return Group(*lines, *(Text(f"note: {note}") for note in comparison.notes))


def dialects_view(result: Dialects) -> RenderableType:
    """What each dialect emits, and the rows that only one of two emits, by rule."""
    answers = Table(
        "dialect", title=f"{result.pipeline}, {result.start} to {result.end} (exclusive)", title_justify="left"
    )
    for name in ("emissions", "late rows"):
        answers.add_column(name, justify="right")
    answers.add_column("does not know the join")
    for one in result.answered:
        counts = ("", "") if one.refused else (f"{one.emissions:,}", f"{one.late:,}")
        answers.add_row(one.dialect, *counts, Text(one.refused or ""))
    if not result.differences:
        return Group(answers, Text("no difference", "bold green"))
    table = Table("only in", "not in")
    table.add_column("rows", justify="right")
    table.add_column("because of")
    table.add_column("such as")
    for difference in result.differences:
        rule = f"{difference.rule}\n[dim]{RULES[difference.rule]}[/dim]"
        such_as = Text(_example({name: difference.example.get(name) for name in result.identity}, {}))
        table.add_row(difference.only_in, difference.not_in, f"{difference.rows:,}", rule, such_as)
    return Group(answers, table, Text("Rules: docs/dialects.md#why-dialects-differ"))


def _example(shown: dict[str, Any], row: dict[str, Any]) -> str:
    """Columns of a row, and what is known of why it differs."""
    words = ", ".join(f"{name} {value}" for name, value in shown.items() if value is not None)
    late = f"{row['_input']} row {brief_span(row['_behind_ms'])} behind" if "_behind_ms" in row else ""
    why = ", ".join(filter(None, (late, row.get("_detail"))))
    return f"{words}: {why}" if why else words
