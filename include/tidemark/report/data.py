"""What a report shows, as data: gathered from a comparison, and from the tables of the pipelines compared."""

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

from tidemark.comparison import Asked, Comparison
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.what_if import WhatIf, what_if
from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration, format_instant, parse_instant
from tidemark.delta.pipeline_tables import DeltaInput
from tidemark.report.example_rows import ExplainedCause, Stories, Story
from tidemark.report.lateness import Late, delay_to_vary, delays_to_try, late_rows

MOST_DRAWN = 400
"""How many stretches of time a chart shows at most."""
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True)
class Called:
    """How a user has called the comparison, for the commands that do it again."""

    arguments: tuple[str, ...]
    """The arguments of `tidemark`, as typed."""
    pipeline: str
    reference: str | None
    """The pipeline that `--told-by` names; None where it names none."""
    lake: str | None


@dataclass(frozen=True)
class Period:
    """The slices that begin in [start, end), together."""

    start: str
    end: str
    same: int
    explained: int
    """Rows that only one side has, and whose cause is known."""
    unexplained: int


@dataclass(frozen=True)
class Held:
    """Most rows carried over the end of a slice that begins in [start, end)."""

    start: str
    end: str
    rows: int


@dataclass(frozen=True)
class CarriedState:
    """What a pipeline carried from slice to slice."""

    pipeline: str
    each: str
    """How long each of `held` is."""
    held: tuple[Held, ...]
    peak: int


@dataclass(frozen=True)
class Setting:
    """A setting of the pipeline and of the one that tells the stream's story; None where it is left to its default."""

    name: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        """Whether they are not all the same."""
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Facts:
    """All that a report shows."""

    comparison: Comparison
    made_at: str
    version: str
    leading: tuple[str, ...]
    """The columns that tell most about an example: keys, event times, the bounds of windows."""
    causes: tuple[ExplainedCause, ...]
    stories: tuple[Story, ...]
    each: str
    """How long each of `periods` is."""
    periods: tuple[Period, ...]
    nowhere: int
    """Rows of the stream of which no slice can be told."""
    late: Late
    what_if: WhatIf | None
    present: str | None
    """The value that the setting varied by `what_if` has."""
    no_what_if: str | None
    """Why there is none."""
    state: tuple[CarriedState, ...]
    settings: tuple[Setting, ...]
    versions: dict[str, int]
    """The versions of the tables read, by their names."""
    commands: tuple[str, ...]
    explains: dict[str, str]
    """The command that tells each story again, by its name."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready. `comparison` is what `compare --json` prints, but for the causes."""
        described = asdict(self)
        described["comparison"] = {
            name: value for name, value in self.comparison.describe().items() if name != "causes"
        }
        described["stories"] = [asdict(one) | {"life": one.life.describe()} for one in self.stories]
        described["what_if"] = self.what_if.describe() if self.what_if else None
        return described


def gather(
    spark: SparkSession,
    comparison: Comparison,
    asked: Asked,
    pipelines: tuple[Pipeline, Pipeline | None],
    lake: str,
    called: Called,
    *,
    ask_what_if: bool = True,
) -> Facts:
    """The facts about a comparison of a pipeline, and of the one that tells the stream's story where there is one.

    All that comes out of Spark is the size of the ledger, or a handful of rows. `ask_what_if` replays the slices once
    for each of about ten watermark delays.
    """
    batch = CommittedView.read(spark, pipelines[0], lake)
    reference = CommittedView.read(spark, pipelines[1], lake) if pipelines[1] else None
    views = [batch, reference] if reference else [batch]
    stream = views[-1]
    stories = Stories(batch, reference)
    causes = stories.of(comparison)
    told = tuple(stories.told.values())
    each, periods = _periods(comparison, batch)
    late = late_rows(stream, _slices(stream, asked))
    outcomes: WhatIf | None = None
    left_out: str | None = "left out by --no-what-if"
    if ask_what_if:
        outcomes, left_out = _what_if(spark, stream, late, _slices(stream, asked), lake)
    versions = {asked.table: DeltaInput.find(spark, lake, asked.table).version}
    for view in views:
        versions |= dict(zip((one.table.name for one in view.inputs), view.last.versions, strict=True))
    return Facts(
        comparison=comparison,
        made_at=format_instant(datetime.now(UTC).replace(second=0, microsecond=0)),
        version=version("tidemark"),
        leading=comparison.leading,
        causes=causes,
        stories=told,
        each=each,
        periods=periods,
        nowhere=sum(one.only_batch + one.only_stream for one in comparison.agreement if one.slice is None),
        late=late,
        what_if=outcomes,
        present=_present(stream.pipeline, outcomes.setting) if outcomes else None,
        no_what_if=left_out,
        state=tuple(_state(view, _slices(view, asked)) for view in views),
        settings=_settings([view.pipeline for view in views]),
        versions=versions,
        commands=tuple(_commands(called, views)),
        explains={one.name: _explain(called, one) for one in told},
    )


def _slices(view: CommittedView, asked: Asked) -> range:
    """The committed slices of a view that begin in what the user has named."""
    grid, numbers = view.grid, list(view.ledger.entries)
    inside = [
        number
        for number in numbers
        if (not asked.start or grid.datetime_of(number) >= asked.start)
        and (not asked.end or grid.datetime_of(number) < asked.end)
    ]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def _periods(comparison: Comparison, batch: CommittedView) -> tuple[str, tuple[Period, ...]]:
    rows = [
        (parse_instant(one.slice), one.same, one.only_batch + one.only_stream - one.unexplained, one.unexplained)
        for one in comparison.agreement
        if one.slice is not None
    ]
    table = pd.DataFrame(rows, columns=["start", "same", "explained", "unexplained"]).set_index("start").sort_index()
    table.index = _local(table.index, _zone(batch))
    span = _stretch(table.index, _every(batch))
    summed = _resampled(table, span).sum()
    bounds = _bounds(summed.index, span, _zone(batch))
    return format_duration(span), tuple(
        Period(*bound, *map(int, row)) for bound, row in zip(bounds, summed.to_numpy(), strict=True)
    )


def _state(view: CommittedView, slices: range) -> CarriedState:
    ledger = view.ledger.rows
    ledger = ledger[ledger["number"].isin(slices)]
    starts = [view.grid.datetime_of(int(number)) for number in ledger["number"]]
    index = _local(pd.Index(starts), _zone(view))
    carried = pd.Series(
        [sum(counts["carried_out"] for counts in both) for both in zip(*(ledger[s] for s in SIDES), strict=True)],
        index=index,
        dtype="int64",
    )
    span = _stretch(index, _every(view))
    most = _resampled(carried, span).max().ffill()
    held = (Held(*bound, int(rows)) for bound, rows in zip(_bounds(most.index, span, _zone(view)), most, strict=True))
    return CarriedState(
        view.pipeline.name, format_duration(span), tuple(held), int(carried.max() if len(carried) else 0)
    )


def _stretch(starts: pd.Index[Any], every: timedelta) -> timedelta:
    """How much time to show as one: a slice, or so much that `MOST_DRAWN` suffice."""
    extent = starts[-1] - starts[0] + every if len(starts) else every
    spans = [every, *(span for span in (_HOUR, 6 * _HOUR, _DAY, 7 * _DAY) if span > every)]
    return next((span for span in spans if extent / span <= MOST_DRAWN), extent / MOST_DRAWN)


def _every(view: CommittedView) -> timedelta:
    return timedelta(microseconds=view.grid.every)


def _zone(view: CommittedView) -> ZoneInfo:
    """The zone whose days are shown: that of the slices."""
    return ZoneInfo(view.pipeline.slices.time_zone)


def _local(starts: pd.Index[Any], zone: ZoneInfo) -> pd.DatetimeIndex:
    """What the clocks of a zone show at instants, without it: there all days are of one length."""
    return pd.DatetimeIndex(pd.to_datetime(starts, utc=True)).tz_convert(zone).tz_localize(None)


def _resampled(table: Any, span: timedelta) -> Any:
    """The rows of each stretch of time together; whole days begin at midnight."""
    return table.resample(span, origin="start_day" if span % _DAY == timedelta() else "start")


def _bounds(starts: pd.Index[Any], span: timedelta, zone: ZoneInfo) -> Iterator[tuple[str, str]]:
    for start in starts:
        first = start.to_pydatetime().replace(tzinfo=zone)
        yield format_instant(first), format_instant(first + span)


def _what_if(
    spark: SparkSession, stream: CommittedView, late: Late, slices: range, lake: str
) -> tuple[WhatIf | None, str | None]:
    """Other delays of the input that held most late rows back; or why it makes no sense to ask."""
    pipeline = stream.pipeline
    if pipeline.trace:
        return (
            None,
            f"{pipeline.name} replays a trace, whose watermarks are recorded; no other delay can be asked",
        )
    if pipeline.recorded:
        return None, f"{pipeline.name} goes by watermarks that were recorded; no other delay can be asked"
    if pipeline.clock != "arrival":
        return None, (
            f"{pipeline.name} runs in order of event time, where no delay decides; name a pipeline on the clock "
            "`arrival` with --told-by to ask what other delays would have kept"
        )
    side = delay_to_vary(late)
    if side is None or not slices:
        return None, f"{pipeline.name} has no watermark delay in these slices"
    delay = getattr(pipeline, side).watermark_delay
    values = delays_to_try(delay // timedelta(milliseconds=1), sorted(late.asked_ms.get(side, {}).values()))
    if len(values) == 1:
        return None, f"no row of {pipeline.name} was late, though its watermarks have no delay"
    return what_if(spark, pipeline, lake, f"{side}.watermark_delay", values, slices), None


def _present(pipeline: Pipeline, setting: str) -> str:
    side, _, name = setting.partition(".")
    return format_duration(getattr(getattr(pipeline, side), name))


def _settings(pipelines: Sequence[Pipeline]) -> tuple[Setting, ...]:
    settings_of = [{"clock": one.clock, **dict(_flat(one.semantic_settings()))} for one in pipelines]
    names = dict.fromkeys(name for one in settings_of for name in one)
    return tuple(Setting(name, tuple(one.get(name) for one in settings_of)) for name in names)


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        match value:
            case dict():
                yield from _flat(value, f"{above}{name}.")
            case list():
                yield f"{above}{name}", ", ".join(" = ".join(dict.fromkeys(map(str, one.values()))) for one in value)
            case _:
                yield f"{above}{name}", str(value)


def _commands(called: Called, views: Sequence[CommittedView]) -> Iterator[str]:
    names = (called.pipeline, called.reference or views[-1].pipeline.name)
    for name, view in zip(names, views, strict=False):
        yield _command("run", name, "--to", view.grid.name(view.end), *_lake(called))
    yield _command(*called.arguments)


def _explain(called: Called, story: Story) -> str:
    row = ",".join(f"{column}={value}" for column, value in story.told.items())
    name = (called.reference or story.pipeline) if story.tells_stream else called.pipeline
    return _command("explain", name, f"--{story.life.side}", row, *_lake(called))


def _lake(called: Called) -> tuple[str, ...]:
    return ("--lake", called.lake) if called.lake else ()


def _command(*arguments: str) -> str:
    return shlex.join(["tidemark", *arguments])
