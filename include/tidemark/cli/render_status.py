"""Render what pipelines have committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import filesize
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tidemark.cli.quality_warnings import render_failures
from tidemark.cli.rich_table import create_table, create_unwrapped_line
from tidemark.cli.status_summary import SideStatus, Status
from tidemark.formatting import format_count, format_span
from tidemark.planning.deleted_inputs import DeletedInputs

_Line = tuple[str, Callable[[Status], str]]


def render_status(*statuses: Status) -> RenderableType:
    """Show what pipelines have committed, one column per pipeline; more tables if they do not fit the width."""
    findings = [
        line
        for status in statuses
        for line in render_failures(status.cli_arguments, status.slices, status.grouped_failures)
    ]
    findings += [line for status in statuses for line in _describe_rejections(status)]
    findings += [
        _describe_deleted(status.pipeline, status.deleted_inputs) for status in statuses if status.deleted_inputs
    ]
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
        remaining = self.statuses
        unlimited = options.update_width(_UNLIMITED_WIDTH)
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


def _describe_deleted(pipeline: str, inputs: DeletedInputs) -> Text:
    return Text(f"{pipeline}: {inputs.description}", "red" if inputs.stops_next_run else "yellow")


def _describe_erasure(erasure: dict[str, Any]) -> str:
    where = ", ".join(f"{side} rows where {text}" for side, text in erasure["predicates"].items())
    rows = ", ".join(f"{count:,} of {name}" for name, count in erasure["row_counts"].items())
    return f"erased by {erasure['user']} at {erasure['at']}: {where} ({rows or 'no rows'})"


_QUANTILE_LABELS = {"p50": "median", "p99": "99th percentile of", "max": "greatest"}
"""Labels of `SideStatus.lateness`."""


def _describe_late(side: SideStatus) -> str:
    spans = "".join(
        f"\n[dim]{_QUANTILE_LABELS[name]} lateness {format_span(ms)}[/dim]" for name, ms in side.lateness.items()
    )
    processed = f"\n[dim]{side.late_but_processed:,} late_but_processed[/dim]" if side.late_but_processed else ""
    return f"{side.late:,}{processed}{spans}"


def _describe_rejected(side: SideStatus) -> str:
    reasons = "".join(f"\n[dim]{count:,} {reason}[/dim]" for reason, count in sorted(side.reasons.items()))
    return f"{side.rejected:,}{reasons}"


def _describe_read(side: SideStatus) -> str:
    return f"{side.read:,}" + ("\n[dim]that meet `where`[/dim]" if side.where else "")


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
    return f"{adopted['until']}, from {escape(adopted['table'])}, version {adopted['version']}" if adopted else ""


def _side_value(side: str, value: Callable[[SideStatus], str]) -> Callable[[Status], str]:
    return lambda status: value(getattr(status, side))


def _upstream(side: str) -> Callable[[Status], str]:
    """Return a function that describes the pipeline whose output an input is, and what of it can be read."""

    def describe(status: Status) -> str:
        upstream = status.upstreams.get(side)
        if upstream is None:
            return ""
        stale = f", stale from {upstream['stale']}" if upstream["stale"] else ""
        return f"{upstream['pipeline']}, {'to ' + upstream['end'] if upstream['end'] else 'no slice'}{stale}"

    return describe


_LINES: tuple[_Line, ...] = (
    ("slices", lambda s: f"{s.slices:,} in {format_count(s.jobs, 'Spark job')}"),
    ("from", lambda s: s.first or ""),
    ("to (exclusive)", lambda s: s.end or ""),
    ("adopted before", _describe_adoption),
    ("[bold]rows emitted[/bold]", lambda s: f"[bold]{s.emissions:,}[/bold]"),
    ("rows before explode", lambda s: "" if s.pairs is None else f"{s.pairs:,}"),
    ("in quarantine", lambda s: f"{s.quarantined:,}" if s.quarantined else ""),
    ("left input", _upstream("left")),
    ("right input", _upstream("right")),
    ("left rows read", _side_value("left", _describe_read)),
    ("right rows read", _side_value("right", _describe_read)),
    ("left rows filtered", _side_value("left", _describe_filtered)),
    ("right rows filtered", _side_value("right", _describe_filtered)),
    ("left rows late", _side_value("left", _describe_late)),
    ("right rows late", _side_value("right", _describe_late)),
    ("left rows rejected", _side_value("left", _describe_rejected)),
    ("right rows rejected", _side_value("right", _describe_rejected)),
    ("left watermark", _side_value("left", lambda side: side.watermark or "none yet")),
    ("right watermark", _side_value("right", lambda side: side.watermark or "none yet")),
    ("left rows carried", _side_value("left", lambda side: f"{side.carried:,}")),
    ("right rows carried", _side_value("right", lambda side: f"{side.carried:,}")),
    ("event times floored to ms", lambda s: f"{s.floored_event_times:,}" if s.floored_event_times else ""),
    ("quality", lambda s: ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(s.quality.items()))),
    ("job duration", lambda s: f"{s.seconds:,.1f} s"),
    ("tables", _describe_size),
    ("oldest readable versions", _describe_oldest_versions),
)
