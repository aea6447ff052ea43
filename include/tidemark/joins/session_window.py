"""Joins on session windows.

Where every row came before the session that it belongs to could fire, sessions are runs of event times with no gap
between them: a closed form. The other sessions are replayed row by row, in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from typing_extensions import override

from tidemark.joins.base import JobRows, Join, JoinResult, with_reason
from tidemark.joins.keys import key_columns
from tidemark.joins.window import Rules
from tidemark.joins.window_output import JoinType, Members, group_members, join_members
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import computed_once
from tidemark.timegrid.zones import Zone
from tidemark.watermarks.buckets import END_OF_INPUT

_ROLES = T.StructType([
    T.StructField("role", T.StringType()),
    *(T.StructField(name, T.LongType()) for name in ("window_start", "window_end", "pane", "refired_in")),
])  # fmt: skip
_ORDER = ("clock", "tiebreak", "met", "side", "event_time")
"""Rows at one place have met one watermark, unless each has recorded its own."""


@dataclass(frozen=True)
class SessionJoin(Join):
    """A window join or coGroup on sessions: of both inputs together (DataStream), or of each by itself (SQL)."""

    gap: Column
    rules: Rules
    join_type: JoinType
    by_side: bool
    """Whether each input has sessions of its own, which its own watermark closes."""
    cogroup: bool = False
    latest: bool = False
    """Emit each session once, with all of its rows, when it is gone."""
    condition: str | None = None
    zone: Zone | None = None
    """In whose local time they begin, end and have gaps; None for UTC."""
    replays_all: bool = False
    """Whether a session that ends later may be gone sooner, so that no run is one as it stands."""

    exact_watermarks = True
    carries = ("left_watermark", "right_watermark", "watermark")

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        if self.zone:
            left, right = self.zone.local(left), self.zone.local(right)
        return F.abs(left - right) <= self.gap

    def apply(self, came: JobRows) -> JoinResult:
        """Sessions whose rows all came in time as runs, the others replayed."""
        horizon, end = came.horizon, F.col("window_end")
        clean, unclean = self._runs(came.taking_part(), few=came.cacheable)
        replayed = computed_once(self._replayed(unclean))
        alone = {"role": F.lit("state"), "pane": F.lit(0).cast("long"), "refired_in": F.lit(None).cast("long")}
        state = clean.transform(with_columns, alone)
        rows = state.unionByName(replayed)
        in_state = rows.where(F.col("role") == "state")
        level = self.rules.purged_at(end) if self.latest else self.rules.fires_at(end)
        firing = in_state if self.latest else state.unionByName(replayed.where(F.col("role") == "member"))
        fired = horizon.first_slice_reaching(firing.withColumnRenamed("slice", "came"), level, "fired_in")
        fired = fired.withColumn("slice", F.coalesce("refired_in", "fired_in"))
        members = Members(fired.where(F.col("slice") >= horizon.first), not self.by_side, self.zone)
        joined = group_members(members) if self.cogroup else join_members(members, self.join_type, self.condition)
        late = replayed.where(F.col("role") == "late").withColumn("watermark", F.col("met"))
        late = late.select(*came.maybe_late.columns)
        rejected = came.maybe_late.where(F.col("rejected").isNotNull())
        return JoinResult(
            joined,
            with_reason(late, F.lit("late")).unionByName(with_reason(rejected, F.col("rejected"))),
            kept=horizon.first_slice_reaching(in_state, self.rules.purged_at(end), "reached"),
        )

    def _parts(self, rows: DataFrame) -> list[str]:
        """What a session belongs to."""
        return [*key_columns(rows), *(["side"] if self.by_side else [])]

    def _replayed(self, rows: DataFrame) -> DataFrame:
        """The rows of runs with the columns of `_ROLES`: each once for every role that it has."""
        run = [*self._parts(rows), "session"]
        head = F.row_number().over(Window.partitionBy(*run).orderBy(*_ORDER)) == 1
        in_order = rows.withColumn("head", head).sortWithinPartitions(*run, *_ORDER)
        kinds = [T.StructField(field.name, field.dataType) for field in in_order.schema]
        return in_order.mapInArrow(_replay, T.StructType([*kinds, *_ROLES.fields])).drop("head")

    def _runs(self, rows: DataFrame, *, few: bool) -> tuple[DataFrame, DataFrame]:
        """The rows of runs that are sessions as they stand (with `window_start` and `window_end`), and the others.

        Both have their `time`, which sessions are made of, when a session of it alone `fires` and is `gone`, and the
        watermark that was `met`. Unless they are `few` what is found of them is kept.

        A run is a session if no part of it fired before the rest came: each row but the newest met a watermark before
        the end of what the next one prolongs, and each row one before the end of it all.
        """
        own = F.when(F.col("side") == "left", F.col("left_watermark")).otherwise(F.col("right_watermark"))
        time = self.zone.local(F.col("event_time")) if self.zone else F.col("event_time")
        added = {"met": own if self.by_side else F.col("watermark"), "gap": self.gap, "time": time}
        parts = self._parts(rows)
        by_time, end = Window.partitionBy(*parts).orderBy("time", "met"), F.col("time") + F.col("gap")
        timers = {"fires": self.rules.fires_at(end), "gone": self.rules.purged_at(end)}
        # By time and watermark: what follows the last row of one time is the least watermark met at the next.
        next_time, next_met = (F.lead(name).over(by_time) for name in ("time", "met"))
        prolonged = (next_time > F.col("time")) & (next_time <= end)
        broken = prolonged & (next_met >= F.col("fires"))
        begins = F.coalesce(F.lag(end).over(by_time) < F.col("time"), F.lit(False))
        numbered = (
            rows.transform(with_columns, added)
            .transform(with_columns, timers)
            .withColumns({"begins": begins.cast("long"), "broken": F.coalesce(broken, F.lit(False))})
            .withColumn("session", F.sum("begins").over(by_time.rowsBetween(Window.unboundedPreceding, 0)))
        )
        run = Window.partitionBy(*parts, "session")
        bounds = {"window_start": F.min("time").over(run), "window_end": F.max(end).over(run)}
        known = numbered.withColumns({**bounds, "broken": F.max("broken").over(run), "latest": F.max("met").over(run)})
        if not few:  # or runs would be put in order for each of what is made of them
            known = computed_once(known)
        whole = ~F.col("broken") & (F.col("latest") < self.rules.fires_at(F.col("window_end")))
        if self.replays_all:
            whole = F.lit(False)
        inner = ("begins", "broken", "latest")
        return known.where(whole).drop(*inner), known.where(~whole).drop(*inner, "window_start", "window_end")


@dataclass
class _Session:
    start: int
    end: int
    fires: int
    """The watermark at which it does."""
    gone: int
    """The watermark at which it is."""
    rows: list[int]
    """Offsets of its rows in the table."""
    fired: int = 0
    """How often it has fired, or the most often of those that it was merged from."""
    due: bool = True
    """Whether its firing on time is to come."""


@dataclass
class _Fates:
    """What became of rows, by their offsets in the table: the columns of `_ROLES`."""

    offsets: list[int] = field(default_factory=list)
    columns: dict[str, list[object]] = field(default_factory=lambda: {name: [] for name in _ROLES.names})

    def tell(self, offsets: list[int], role: str, session: _Session, refired_in: int | None = None) -> None:
        """The same of several rows."""
        self.offsets += offsets
        for name, value in zip(
            _ROLES.names, (role, session.start, session.end, session.fired, refired_in), strict=True
        ):
            self.columns[name] += [value] * len(offsets)


def _replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replay runs, which follow one another, each from its `head` on in the order of arrival."""
    rest: list[pa.RecordBatch] = []
    for batch in batches:
        heads = pc.indices_nonzero(batch["head"])
        if not heads:
            rest.append(batch)
            continue
        last = heads[-1].as_py()
        yield from _fates(pa.Table.from_batches([*rest, batch.slice(0, last)]))
        rest = [batch.slice(last)]
    if rest:
        yield from _fates(pa.Table.from_batches(rest))


def _fates(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Of whole runs: members of firings, late rows, and the session that each other row ends in.

    A session fires and is gone by the watermark that the rows met, both as the last of its times would alone.
    """
    fates, in_flight = _Fates(), list[_Session]()
    labels = (rows[name].to_pylist() for name in ("head", "time", "gap", "fires", "gone", "met", "slice"))
    for offset, (head, time, gap, fires, gone, met, number) in enumerate(zip(*labels, strict=True)):
        in_flight = _advance(in_flight, END_OF_INPUT if head else met, fates)
        touched = [session for session in in_flight if session.start <= time + gap and time <= session.end]
        last = max([*touched, _Session(time, time + gap, fires, gone, [])], key=lambda one: one.end)
        session = _Session(
            min([time, *(one.start for one in touched)]),
            last.end,
            last.fires,
            last.gone,
            [member for one in touched for member in one.rows] + [offset],
            max((one.fired for one in touched), default=0),
        )
        if session.gone <= met:
            fates.tell([offset], "late", session)
            continue
        in_flight = [one for one in in_flight if one not in touched] + [session]
        if session.fires <= met:
            fates.tell(session.rows, "member", session, number)
            session.fired, session.due = session.fired + 1, False
    _advance(in_flight, END_OF_INPUT, fates)
    found = rows.combine_chunks().take(pa.array(fates.offsets, pa.int64()))
    for column in to_arrow_schema(_ROLES):
        found = found.append_column(column, pa.array(fates.columns[column.name], column.type))
    yield from found.to_batches()


def _advance(in_flight: list[_Session], watermark: int, fates: _Fates) -> list[_Session]:
    """Fire what is due on time, and let go of what is gone; gives the sessions that stay."""
    for session in in_flight:
        if session.due and session.fires <= watermark:
            fates.tell(session.rows, "member", session)
            session.fired, session.due = session.fired + 1, False
        if session.gone <= watermark:
            fates.tell(session.rows, "state", session)
    return [session for session in in_flight if session.gone > watermark]
