"""Collect the data of a report from a comparison and the tables of the compared pipelines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
from pyspark.sql import SparkSession

from tidemark.comparison import Comparison, ComparisonRequest
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.row_lookup import format_row
from tidemark.comparison.what_if import WhatIf, vary_setting
from tidemark.config import Pipeline
from tidemark.config.candidate_version import get_candidate_name
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration, format_instant, parse_instant
from tidemark.report.example_rows import ExampleCollector, ExampleHistory, ExplainedCause
from tidemark.report.lateness import LatenessSummary, choose_trial_delays, choose_varied_input, summarize_lateness

MAX_PERIODS = 400
"""Maximum number of periods in a chart."""
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True)
class Invocation:
    """Command line of the comparison, for commands that repeat it."""

    arguments: tuple[str, ...]
    """Arguments of `tidemark` as typed."""
    pipeline: str
    """Pipeline as typed."""
    reference: str | None
    """Pipeline passed by `--reference`; None without the option."""
    lake: str | None
    """Folder passed by `--lake`; None without the option."""


@dataclass(frozen=True)
class Period:
    """Compared rows of the slices that begin in [start, end)."""

    start: str
    end: str
    equal_rows: int
    explained_rows: int
    """Number of rows in one table only whose cause is known."""
    unexplained_rows: int


@dataclass(frozen=True)
class StatePeriod:
    """Maximum number of rows carried out of a slice that begins in [start, end)."""

    start: str
    end: str
    rows: int


@dataclass(frozen=True)
class CarriedState:
    """Rows that a pipeline carried from slice to slice."""

    pipeline: str
    period_length: str
    periods: tuple[StatePeriod, ...]
    peak_rows: int


@dataclass(frozen=True)
class Setting:
    """Setting of the compared pipeline and of the reference, if there is one."""

    name: str
    values: tuple[str | None, ...]
    """Value in each pipeline; None for the default."""

    @property
    def differs(self) -> bool:
        """True if the values are not all equal."""
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class ReportData:
    """Content of a report."""

    comparison: Comparison
    created_at: str
    version: str
    leading_columns: tuple[str, ...]
    """Most informative columns of an example: keys, event times, bounds of windows."""
    causes: tuple[ExplainedCause, ...]
    row_histories: tuple[ExampleHistory, ...]
    period_length: str
    """Length of each of `periods`."""
    periods: tuple[Period, ...]
    rows_without_slice: int
    """Number of rows of the stream that cannot be assigned to a slice."""
    lateness: LatenessSummary
    what_if: WhatIf | None
    """Outcomes of other watermark delays; None if they were not tried."""
    current_value: str | None
    """Current value of the setting that `what_if` varies."""
    no_what_if_reason: str | None
    """Reason why `what_if` is None."""
    states: tuple[CarriedState, ...]
    settings: tuple[Setting, ...]
    versions: dict[str, int]
    """Versions of the tables read, by name."""
    commands: tuple[str, ...]
    """Commands that repeat the comparison."""
    explain_commands: dict[str, str]
    """Command that prints each row history, by its name."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary. `comparison` is as `compare --json` prints it, without the causes."""
        comparison = {name: value for name, value in self.comparison.to_dict().items() if name != "causes"}
        histories = [asdict(example) | {"history": example.history.to_dict()} for example in self.row_histories]
        what_if = self.what_if.to_dict() if self.what_if else None
        return {**asdict(self), "comparison": comparison, "row_histories": histories, "what_if": what_if}


def collect_report_data(
    spark: SparkSession,
    comparison: Comparison,
    request: ComparisonRequest,
    pipelines: tuple[Pipeline, Pipeline | None],
    lake: str,
    invocation: Invocation,
    *,
    include_what_if: bool = True,
) -> ReportData:
    """Collect the content of a report.

    Spark returns only aggregates and single rows, apart from the ledger.

    Args:
        spark: Session to read tables with.
        comparison: Result to report.
        request: The comparison's request.
        pipelines: The compared pipeline and the reference.
        lake: Root folder of the lake.
        invocation: Command line to repeat.
        include_what_if: True to replay the slices for each of about ten watermark delays.
    """
    batch = CommittedView.read(spark, pipelines[0], lake)
    reference = CommittedView.read(spark, pipelines[1], lake) if pipelines[1] else None
    views = [batch, reference] if reference else [batch]
    stream = views[-1]
    collector = ExampleCollector(batch, reference)
    causes = collector.explain_causes(comparison)
    histories = tuple(collector.histories.values())
    period_length, periods = _create_periods(comparison, batch)
    stream_slices = _select_slices(stream, request)
    lateness = summarize_lateness(stream, stream_slices)
    what_if: WhatIf | None = None
    no_what_if_reason: str | None = "disabled by --no-what-if"
    if include_what_if:
        what_if, no_what_if_reason = _try_delays(spark, stream, lateness, stream_slices, lake)
    versions = {} if comparison.table_version is None else {comparison.table: comparison.table_version}
    for view in views:
        versions |= dict(zip((source.table.name for source in view.inputs), view.last.versions, strict=True))
    return ReportData(
        comparison=comparison,
        created_at=format_instant(datetime.now(UTC).replace(second=0, microsecond=0)),
        version=version("tidemark"),
        leading_columns=comparison.leading_columns,
        causes=causes,
        row_histories=histories,
        period_length=period_length,
        periods=periods,
        rows_without_slice=sum(agreement.differing for agreement in comparison.agreement if agreement.slice is None),
        lateness=lateness,
        what_if=what_if,
        current_value=what_if.current if what_if else None,
        no_what_if_reason=no_what_if_reason,
        states=tuple(_create_state(view, _select_slices(view, request)) for view in views),
        settings=_list_settings([view.pipeline for view in views]),
        versions=versions,
        commands=tuple(_list_commands(invocation, views)),
        explain_commands={
            example.name: _create_explain_command(
                invocation, (stream if example.is_reference else batch).pipeline, example
            )
            for example in histories
        },
    )


def _select_slices(view: CommittedView, request: ComparisonRequest) -> range:
    """Return the numbers of the committed slices that begin in the requested range."""
    grid = view.grid
    selected = [
        number
        for number in view.ledger.entries
        if (not request.start or grid.datetime_of(number) >= request.start)
        and (not request.end or grid.datetime_of(number) < request.end)
    ]
    return range(selected[0], selected[-1] + 1) if selected else range(0)


def _create_periods(comparison: Comparison, batch: CommittedView) -> tuple[str, tuple[Period, ...]]:
    rows = [
        (
            parse_instant(agreement.slice),
            agreement.same,
            agreement.differing - agreement.unexplained,
            agreement.unexplained,
        )
        for agreement in comparison.agreement
        if agreement.slice is not None
    ]
    table = pd.DataFrame(rows, columns=["start", "equal", "explained", "unexplained"]).set_index("start").sort_index()
    table.index = _to_local_times(table.index, _get_zone(batch))
    length = _choose_period_length(table.index, _get_slice_length(batch))
    sums = _resample(table, length).sum()
    bounds = _create_bounds(sums.index, length, _get_zone(batch))
    periods = (Period(*bound, *map(int, row)) for bound, row in zip(bounds, sums.to_numpy(), strict=True))
    return format_duration(length), tuple(periods)


def _create_state(view: CommittedView, slices: range) -> CarriedState:
    ledger = view.ledger.rows
    ledger = ledger[ledger["number"].isin(slices)]
    starts = [view.grid.datetime_of(int(number)) for number in ledger["number"]]
    index = _to_local_times(pd.Index(starts), _get_zone(view))
    side_counts = zip(*(ledger[side] for side in SIDES), strict=True)
    carried = pd.Series(
        [sum(counts["carried_out"] for counts in both) for both in side_counts], index=index, dtype="int64"
    )
    length = _choose_period_length(index, _get_slice_length(view))
    maxima = _resample(carried, length).max().ffill()
    bounds = _create_bounds(maxima.index, length, _get_zone(view))
    periods = tuple(StatePeriod(*bound, int(rows)) for bound, rows in zip(bounds, maxima, strict=True))
    return CarriedState(view.pipeline.name, format_duration(length), periods, int(carried.max() if len(carried) else 0))


def _choose_period_length(starts: pd.Index[Any], slice_length: timedelta) -> timedelta:
    """Return the length of a slice, or a longer one with which `MAX_PERIODS` suffice."""
    extent = starts[-1] - starts[0] + slice_length if len(starts) else slice_length
    lengths = [slice_length, *(length for length in (_HOUR, 6 * _HOUR, _DAY, 7 * _DAY) if length > slice_length)]
    return next((length for length in lengths if extent / length <= MAX_PERIODS), extent / MAX_PERIODS)


def _get_slice_length(view: CommittedView) -> timedelta:
    return timedelta(microseconds=view.grid.every)


def _get_zone(view: CommittedView) -> ZoneInfo:
    """Return the time zone of the slices, whose days are shown."""
    return ZoneInfo(view.pipeline.slices.time_zone)


def _to_local_times(starts: pd.Index[Any], zone: ZoneInfo) -> pd.DatetimeIndex:
    """Convert instants to local times without zone, among which all days have equal length."""
    return pd.DatetimeIndex(pd.to_datetime(starts, utc=True)).tz_convert(zone).tz_localize(None)


def _resample(table: Any, length: timedelta) -> Any:
    """Group rows into periods; periods of whole days begin at midnight."""
    return table.resample(length, origin="start_day" if length % _DAY == timedelta() else "start")


def _create_bounds(starts: pd.Index[Any], length: timedelta, zone: ZoneInfo) -> Iterator[tuple[str, str]]:
    for start in starts:
        first = start.to_pydatetime().replace(tzinfo=zone)
        yield format_instant(first), format_instant(first + length)


def _try_delays(
    spark: SparkSession, stream: CommittedView, lateness: LatenessSummary, slices: range, lake: str
) -> tuple[WhatIf | None, str | None]:
    """Try other delays of the input that determined the watermark of most late rows.

    Returns:
        The outcomes and None; or None and the reason why there are no other delays to try.
    """
    pipeline = stream.pipeline
    if pipeline.checkpoint_arrival:
        return None, f"{pipeline.name} replays a streaming checkpoint, whose watermarks are recorded"
    if pipeline.recorded_watermark_sides:
        return None, f"{pipeline.name} uses recorded watermarks"
    if pipeline.clock != "arrival":
        return None, (
            f"{pipeline.name} runs in order of event time, so that delays have no effect; pass a pipeline on the clock "
            "`arrival` as --reference to try other delays"
        )
    side = choose_varied_input(lateness)
    if side is None or not slices:
        return None, f"{pipeline.name} has no watermark delay in these slices"
    delay = getattr(pipeline, side).watermark_delay
    missing_delay_ms = sorted(lateness.missing_delay_ms.get(side, {}).values())
    values = choose_trial_delays(delay // timedelta(milliseconds=1), missing_delay_ms)
    if len(values) == 1:
        return None, f"no row of {pipeline.name} was late, although its watermarks have no delay"
    return vary_setting(spark, pipeline, lake, f"{side}.watermark_delay", values, slices), None


def _list_settings(pipelines: Sequence[Pipeline]) -> tuple[Setting, ...]:
    by_pipeline = [
        {"clock": pipeline.clock, **dict(_flatten(pipeline.output_affecting_settings()))} for pipeline in pipelines
    ]
    names = dict.fromkeys(name for settings in by_pipeline for name in settings)
    return tuple(Setting(name, tuple(settings.get(name) for settings in by_pipeline)) for name in names)


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        match value:
            case dict():
                yield from _flatten(value, f"{prefix}{name}.")
            case list():
                items = (" = ".join(dict.fromkeys(map(str, item.values()))) for item in value)
                yield f"{prefix}{name}", ", ".join(items)
            case _:
                yield f"{prefix}{name}", str(value)


def _list_commands(invocation: Invocation, views: Sequence[CommittedView]) -> Iterator[str]:
    names = (invocation.pipeline, invocation.reference or views[-1].pipeline.command_argument)
    for name, view in zip(names, views, strict=False):
        arguments = (name, *_get_candidate_option(view.pipeline), "--to", view.grid.label(view.end))
        yield _join_command("run", *arguments, *_get_lake_option(invocation))
    yield _join_command(*invocation.arguments)


def _create_explain_command(invocation: Invocation, compared: Pipeline, example: ExampleHistory) -> str:
    if example.command_argument:
        arguments: tuple[str, ...] = (example.command_argument,)
    else:
        reference = invocation.reference or compared.command_argument
        arguments = (reference if example.is_reference else invocation.pipeline, *_get_candidate_option(compared))
    row = format_row(example.key)
    return _join_command("explain", *arguments, f"--{example.history.side}", row, *_get_lake_option(invocation))


def _get_candidate_option(pipeline: Pipeline) -> tuple[str, ...]:
    name = get_candidate_name(pipeline)
    return ("--candidate", name) if name else ()


def _get_lake_option(invocation: Invocation) -> tuple[str, ...]:
    return ("--lake", invocation.lake) if invocation.lake else ()


def _join_command(*arguments: str) -> str:
    return shlex.join(["tidemark", *arguments])
