"""Adapters of vectors that Flink's joins recorded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config import Pipeline
from tidemark.config.interval_bounds import to_closed_bounds
from tidemark.config.sides import SIDES
from tidemark.config.types import from_micros
from tidemark.execution.replay import ReplayResult
from tidemark.joins.base import Join
from tidemark.joins.datastream_interval import DatastreamIntervalJoin
from tidemark.joins.factory import create_lane
from tidemark.joins.join_type import SEMI_ANTI_TYPES, JoinType
from tidemark.joins.restarts import RestartedIntervalJoin, RestartedWindowJoin
from tidemark.joins.rules import flink_datastream, flink_sql
from tidemark.joins.rules.flink_common import compute_watermark_lag
from tidemark.joins.session_window import SessionWindowJoin
from tidemark.joins.sql_interval.join import SqlIntervalJoin
from tidemark.joins.sql_interval.processing_time import ProcessingTimeJoin
from tidemark.joins.window import AlignedWindows, WindowJoin
from tidemark.timegrid.zones import Zone, changes_by_full_hours, has_yearly_changes, to_local_time
from tidemark.watermarks.lanes import Lane
from tidemark.watermarks.processing_time_lane import ProcessingTimeLane
from tidemark.watermarks.restarted_lane import RestartedLane
from tidemark.watermarks.values import Watermarks
from tidemark_conformance.adapter import KEYS, Params, Row, VectorAdapter
from tidemark_conformance.vectors import Cut, failed_at_drain

_SIDES = {"L": "left", "R": "right"}
_BOUNDS = ("lower", "upper")
_RECORDED = {"column": "watermark", "unit": "ms"}
_WINDOW_MARGIN = timedelta(days=10)
"""Largest distance from a vector's rows to the bounds of their windows."""


class FlinkAdapter(VectorAdapter):
    """A Flink vector, with an event per step.

    An input without a delay has recorded its watermarks: the `watermark` of an event was emitted just before it.
    `restarts` contains the numbers of the first events read after a failure of the job; a failure after the last event
    has the number that would be next. An event with `simultaneous` arrives at the position of the event before it.
    """

    dialect: str
    columns = (("watermark", int),)

    @property
    @abstractmethod
    def join_settings(self) -> dict[str, Any]:
        """The join section of the pipeline file."""

    @property
    @override
    def job_key(self) -> object:
        return self._recorded_watermark_sides, bool(self._restarts)

    @override
    def create_pipeline(self) -> Pipeline:
        watermark = self.vector["watermark"]
        delays = {side: watermark[f"delay_ms_{side}"] for side in SIDES}
        left, right = (
            {"recorded_watermark": _RECORDED} if delay is None else {"watermark_delay": f"{delay} ms"}
            for delay in delays.values()
        )
        join = {"keys": [*KEYS, *self.params], **self.join_settings}
        more = {
            "watermark_strategy": watermark["kind"],
            "join": join,
            "restarts": [from_micros(n) for n in self._restarts],
        }
        return Pipeline.model_validate(self.create_settings(left, right, "ms", dialect=self.dialect, **more))

    @override
    def create_lane(self, pipeline: Pipeline, clocks: Sequence[int]) -> Lane:
        lane = create_lane(pipeline, Watermarks())
        if isinstance(lane, RestartedLane):
            clocks_and_end = [*clocks, clocks[-1] + 1]
            return replace(lane, restarts=tuple(clocks_and_end[step] for step in self._restarts))
        return lane

    @override
    def read_steps(self) -> Iterator[list[Row]]:
        events = self.vector["events"][: self._last + 1]
        steps = [list[Row]() for _ in events]
        position = 0
        for number, event in enumerate(events):
            position = position if event.get("simultaneous") else number
            ts = None if event["ts"] == -(2**63) else event["ts"]  # Flink's marker for a row without a timestamp
            if event["side"] in _SIDES:  # a chain has events of other inputs between
                steps[position].append({**event, "side": _SIDES[event["side"]], "ts": ts})
        return iter(steps)

    @property
    def _recorded_watermark_sides(self) -> tuple[str, ...]:
        """Inputs with recorded watermarks."""
        return tuple(side for side in SIDES if self.vector["watermark"][f"delay_ms_{side}"] is None)

    @property
    def _restarts(self) -> list[int]:
        """Steps that the job read first after a restart."""
        return list(self.vector.get("restarts", ()))

    @property
    def _has_error(self) -> bool:
        """True if the last event failed the engine's job. A replay rejects that row."""
        return "error" in self.vector["expected"] and not failed_at_drain(self.vector)

    @property
    def _last(self) -> int:
        """Number of the last event that the engine read."""
        if self._has_error:
            return int(self.vector["expected"]["error"].split(":")[0].removeprefix("at event "))
        return len(self.vector["events"]) - 1

    def slice_at(self, cut: Cut, at: int | str) -> int:
        """Return the slice of output emitted at an event, or at `drain`, the end of the input."""
        return cut.slice_of(self._last if at == "drain" else int(at))

    @override
    def format_expected(self, cut: Cut) -> Iterator[str]:
        if failed_at_drain(self.vector):
            raise ValueError("only an evictor fails at the end of the input, at a row without a timestamp")
        for row in self.vector["expected"]["rows"]:
            yield f"slice {self.slice_at(cut, row['at'])}: {self.format_row(row)}"
        for row in self.vector["expected"]["dropped"]:
            yield f"slice {self.slice_at(cut, row['at'])}: {self.format_dropped_row(row)}"

        if self._has_error:
            event = self.vector["events"][self._last]
            yield f"slice {cut.slice_of(self._last)}: {event['id']} rejected"

    @override
    def format_replay(self, answer: ReplayResult) -> Iterator[tuple[int, str]]:
        for row in answer.joined.collect():
            lane, text = self.format_emission(row)
            yield lane, f"slice {row['slice']}: {text}"
        for row in answer.late.collect():
            row_data = row[row["side"]]
            for text in self.format_late_row(row, row_data):
                yield row_data["lane"], f"slice {row['slice']}: {row_data['id']} {text}"

    def format_row(self, row: Row) -> str:
        """Format an emission of the vector, or of a replay in the vector's form."""
        ids = row.get("left_id"), row.get("right_id"), row.get("left_ids"), row.get("right_ids")
        windows = row.get("window_start"), row.get("window_end"), row.get("right_window_start")
        return f"{ids} at {row['ts']} in {windows}"

    @abstractmethod
    def format_emission(self, row: SparkRow) -> tuple[int, str]:
        """Return lane and text of an emission of a replay."""

    @abstractmethod
    def format_late_row(self, row: SparkRow, row_data: SparkRow) -> Iterator[str]:
        """Yield the texts that vectors have for a row of the side output.

        Args:
            row: The side output's row.
            row_data: The input's columns.
        """

    def format_dropped_row(self, row: Row) -> str:
        """Format a late row of the vector."""
        return f"{row['id']} late"


class DatastreamInterval(FlinkAdapter):
    """Interval join of the DataStream API."""

    dialect = "flink-datastream"

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        interval = {k: f"{v} ms" if k in {"lower", "upper"} else v for k, v in self.vector["params"].items()}
        return {"interval": interval}

    @cached_property
    @override
    def params(self) -> Params:
        params = self.vector["params"]
        closed = {f"{bound}_inclusive": params.get(f"{bound}_inclusive", True) for bound in _BOUNDS}
        return dict(zip(_BOUNDS, to_closed_bounds(params["lower"], params["upper"], **closed), strict=True))

    @override
    def create_join(self, _spark: SparkSession, adapters: Sequence[VectorAdapter]) -> Join:
        join = RestartedIntervalJoin if self._restarts else DatastreamIntervalJoin
        return join(flink_datastream.IntervalRules(self.param_column("lower"), self.param_column("upper")))

    @override
    def format_emission(self, row: SparkRow) -> tuple[int, str]:
        ids = {"left_id": row["left"]["id"], "right_id": row["right"]["id"], "ts": row["result_time"]}
        return row["left"]["lane"], self.format_row(ids)

    @override
    def format_late_row(self, row: SparkRow, row_data: SparkRow) -> Iterator[str]:
        yield "late" if row["reason"] == "late" else "rejected"


class DatastreamWindow(FlinkAdapter):
    """Window join and coGroup of the DataStream API."""

    dialect = "flink-datastream"

    @property
    @override
    def job_key(self) -> object:
        params = self.vector["params"]
        return self._recorded_watermark_sides, bool(self._restarts), params["mode"], params["window"] == "session"

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        params = self.vector["params"]
        match params:
            case {"window": "session", "gap": gap}:
                window: dict[str, Any] = {"session": {"gap": f"{gap} ms"}}
            case {"window": "tumbling", "size": size}:
                window = {"tumbling": f"{size} ms", "offset": f"{params.get('offset', 0)} ms"}
            case {"window": "sliding", "size": size, "slide": slide}:
                window = {"sliding": {"size": f"{size} ms", "slide": f"{slide} ms"}}
                window["offset"] = f"{params.get('offset', 0)} ms"
            case _:
                raise ValueError(f"{params} describe no window.")
        return {"window": window, "api": params["mode"], "allowed_lateness": f"{params['allowed_lateness']} ms"}

    @cached_property
    @override
    def params(self) -> Params:
        params = self.vector["params"]
        if params["window"] == "session":
            return {"lateness": params["allowed_lateness"], "gap": params["gap"]}
        shape = {
            "size": params["size"],
            "slide": params.get("slide", params["size"]),
            "offset": params.get("offset", 0),
        }
        return {"lateness": params["allowed_lateness"], **shape}

    @override
    def create_join(self, _spark: SparkSession, adapters: Sequence[VectorAdapter]) -> Join:
        params = self.vector["params"]
        lateness = self.param_column("lateness")
        tumbling = all(adapter.vector["params"]["window"] == "tumbling" for adapter in adapters)
        rules, inner, cogroup = (
            flink_datastream.WindowRules(lateness),
            JoinType.from_name("inner"),
            params["mode"] == "cogroup",
        )
        if params["window"] == "session":
            return SessionWindowJoin(
                gap=self.param_column("gap"),
                rules=rules,
                join_type=inner,
                has_sessions_by_side=False,
                is_cogroup=cogroup,
            )
        size, slide, offset = (self.param_column(name) for name in ("size", "slide", "offset"))
        windows = AlignedWindows(size, slide, offset, F.lit(False), is_tumbling=tumbling)
        window_join = RestartedWindowJoin if self._restarts else WindowJoin
        return window_join(
            windows=windows,
            rules=rules,
            join_type=inner,
            has_late_firings=not self._restarts,
            is_cogroup=cogroup,
        )

    @override
    def format_emission(self, row: SparkRow) -> tuple[int, str]:
        firing = {"ts": row["result_time"], "window_start": row["window_start"], "window_end": row["window_end"]}
        if self.vector["params"]["mode"] == "join":
            ids = {"left_id": row["left"]["id"], "right_id": row["right"]["id"]}
            return row["left"]["lane"], self.format_row({**firing, **ids})
        ids = {f"{side}_ids": sorted(row_data["id"] for row_data in row[side]) for side in SIDES}
        return (row["left"] or row["right"])[0]["lane"], self.format_row({**firing, **ids})

    @override
    def format_late_row(self, row: SparkRow, row_data: SparkRow) -> Iterator[str]:
        if row["reason"] != "late_for_window":
            yield "late" if row["reason"] == "late" else "rejected"


class SqlInterval(FlinkAdapter):
    """Interval join of Flink SQL. Its vectors bound the left time by the right one."""

    dialect = "flink-sql"

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        params = self.vector["params"]
        bounds = sorted((-params["upper"], -params["lower"]))  # a pipeline file refuses empty intervals
        return {"type": params["join_type"], "interval": {k: f"{v} ms" for k, v in zip(_BOUNDS, bounds, strict=True)}}

    @cached_property
    @override
    def params(self) -> Params:
        params = self.vector["params"]
        closed = {
            f"{bound}_inclusive": params.get(f"{other}_inclusive", True)
            for bound, other in zip(_BOUNDS, reversed(_BOUNDS), strict=True)
        }
        lower, upper = to_closed_bounds(-params["upper"], -params["lower"], **closed)
        return {
            "type": params["join_type"],
            "lower": lower,
            "upper": upper,
            "lateness": params["allowed_lateness"],
            "min_cleanup": params["min_cleanup_interval"],
        }

    @override
    def create_lane(self, pipeline: Pipeline, clocks: Sequence[int]) -> Lane:
        # The bounds of the pipeline are those of the vector without its exclusive ends.
        late_margin = max(0, int(self.params["lower"]), -int(self.params["upper"]))
        return replace(super().create_lane(pipeline, clocks), late_margin=late_margin)

    @override
    def create_join(self, spark: SparkSession, adapters: Sequence[VectorAdapter]) -> Join:
        types = frozenset(str(adapter.params["type"]) for adapter in adapters)
        rules = flink_sql.IntervalRules(
            *(self.param_column(name) for name in ("lower", "upper", "lateness", "min_cleanup"))
        )
        return SqlIntervalJoin(rules, JoinType(self.param_column("type"), types))

    @override
    def format_emission(self, row: SparkRow) -> tuple[int, str]:
        left, right = row["left"], row["right"]
        ids = {"left_id": left and left["id"], "right_id": right and right["id"], "ts": row["result_time"]}
        return (left or right)["lane"], self.format_row(ids)

    @override
    def format_late_row(self, row: SparkRow, row_data: SparkRow) -> Iterator[str]:
        if row["reason"] not in {"late_but_processed", "lost_at_end_of_input"}:
            yield "rejected"


class SqlIntervalOnProcessingTime(SqlInterval):
    """Interval join of Flink SQL on processing time."""

    columns = (("pt", int),)

    @override
    def create_lane(self, pipeline: Pipeline, _clocks: Sequence[int]) -> Lane:
        return ProcessingTimeLane(compute_watermark_lag(pipeline))

    @override
    def read_steps(self) -> Iterator[list[Row]]:
        for step in super().read_steps():
            yield [{**event, "ts": event["pt"]} for event in step]  # the vector's own times only determine watermarks

    @override
    def processing_times(self, cut: Cut, slices: range) -> dict[int, int]:
        clock = 0
        times = dict[int, int]()
        events = list(enumerate(self.vector["events"]))
        for number in slices:
            clock = max([clock, *(event["pt"] for at, event in events if cut.slice_of(at) == number)])
            if number == len(cut.starts):
                clock = max(clock, self.vector.get("end_pt", clock))
            times[number] = clock
        return times

    @override
    def create_join(self, spark: SparkSession, adapters: Sequence[VectorAdapter]) -> Join:
        join = super().create_join(spark, adapters)
        assert isinstance(join, SqlIntervalJoin)
        return ProcessingTimeJoin(join.rules, F.coalesce("left.pt", "right.pt"), join.join_type)


class SqlWindow(FlinkAdapter):
    """Window join of Flink SQL."""

    dialect = "flink-sql"

    @property
    @override
    def job_key(self) -> object:
        of_halves = self.vector["params"]["join_type"] in SEMI_ANTI_TYPES
        return self._recorded_watermark_sides, self._by_session, of_halves, self._clock_changes

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        params = self.vector["params"]
        offset = f"{params.get('offset', 0)} ms"
        match params:
            case {"tvf": "SESSION", "gap": gap}:
                window: dict[str, Any] = {"session": {"gap": f"{gap} ms"}}
            case {"tvf": "TUMBLE", "size": size}:
                window = {"tumbling": f"{size} ms", "offset": offset}
            case {"tvf": "HOP", "size": size, "slide": slide}:
                window = {"sliding": {"size": f"{size} ms", "slide": f"{slide} ms"}, "offset": offset}
            case {"tvf": "CUMULATE", "size": size, "step": step}:
                window = {"cumulate": {"size": f"{size} ms", "step": f"{step} ms"}, "offset": offset}
            case _:
                raise ValueError(f"{params} describe no window.")
        return {"window": window, "type": params["join_type"]}

    @override
    def create_settings(self, left: dict[str, Any], right: dict[str, Any], unit: str, **more: Any) -> dict[str, Any]:
        zone = {"time_zone": self._zone} if self._zone else {}
        return {**super().create_settings(left, right, unit, **more), **zone}

    @cached_property
    @override
    def params(self) -> Params:
        params = self.vector["params"]
        zone: Params = {"zone": self._zone, "changes": has_yearly_changes(self._zone)} if self._zone else {}
        if self._by_session:
            return {"type": params["join_type"], "gap": params["gap"], **zone}
        slide = params.get("slide", params.get("step", params["size"]))
        shape = {"size": params["size"], "slide": slide, "offset": params.get("offset", 0)}
        return {"type": params["join_type"], "cumulating": params["tvf"] == "CUMULATE", **shape, **zone}

    @override
    def create_join(self, _spark: SparkSession, adapters: Sequence[VectorAdapter]) -> Join:
        types = frozenset(str(adapter.params["type"]) for adapter in adapters)
        zone = Zone(self.param_column("zone"), self.param_column("changes")) if self._zone else None
        join_type, rules, odd = (
            JoinType(self.param_column("type"), types),
            flink_sql.WindowRules(zone),
            self._clock_changes == "odd",
        )
        if self._by_session:
            return SessionWindowJoin(
                gap=self.param_column("gap"),
                rules=rules,
                join_type=join_type,
                has_sessions_by_side=True,
                zone=zone,
                simulates_all=odd,
            )
        size, slide, offset, cumulating = (
            self.param_column(name) for name in ("size", "slide", "offset", "cumulating")
        )
        tumbling = all(adapter.vector["params"]["tvf"] == "TUMBLE" for adapter in adapters)
        shape = AlignedWindows(size, slide, offset, cumulating, zone, is_tumbling=tumbling)
        return WindowJoin(
            windows=shape, rules=rules, join_type=join_type, has_late_firings=False, needs_exact_watermarks=odd
        )

    @property
    def _zone(self) -> str | None:
        """Time zone of the session; None for UTC."""
        zone = self.vector["params"].get("time_zone")
        return None if zone is None else str(zone)

    @property
    def _clock_changes(self) -> str:
        """Kind of the zone's clock changes: `by an hour`, `odd`, or empty for UTC."""
        if self._zone is None:
            return ""
        times = [event["ts"] for event in self.vector["events"] if event["ts"] is not None]
        first, last = (datetime.fromtimestamp(time / 1000, UTC) for time in (min(times), max(times)))
        return (
            "by an hour" if changes_by_full_hours(self._zone, first - _WINDOW_MARGIN, last + _WINDOW_MARGIN) else "odd"
        )

    @property
    def _by_session(self) -> bool:
        return bool(self.vector["params"]["tvf"] == "SESSION")

    @override
    def format_dropped_row(self, row: Row) -> str:
        if row["by"] == "null_rowtime":
            return f"{row['id']} rejected"
        return f"{row['id']} late" + (f" for {row['window_end']}" if "window_end" in row else "")

    @override
    def format_emission(self, row: SparkRow) -> tuple[int, str]:
        left, right = row["left"], row["right"]
        firing = {name: row[name] for name in ("window_start", "window_end")}
        if self._by_session and left and right:
            firing["right_window_start"] = row["right_window_start"]
        ids = {"left_id": left and left["id"], "right_id": right and right["id"], "ts": row["result_time"]}
        return (left or right)["lane"], self.format_row({**firing, **ids})

    @override
    def format_late_row(self, row: SparkRow, row_data: SparkRow) -> Iterator[str]:
        params = self.vector["params"]
        match row["reason"], params["tvf"]:
            case "late", "SESSION":
                yield "late"
            case "late", _:
                yield from (f"late for {end}" for end in _window_ends(row_data))
            case "late_for_window", _:
                yield f"late for {row['window_end']}"
            case _:
                yield "rejected"


def _window_ends(row: SparkRow) -> range:
    """List the ends of all windows of a row."""
    time = to_local_time(row["ts"], row["zone"]) if "zone" in row else row["ts"]
    step = time - (time - row["offset"]) % row["slide"]
    if row["cumulating"]:
        base = time - (time - row["offset"]) % row["size"]
        return range(step + row["slide"], base + row["size"] + 1, row["slide"])
    return range(step + row["size"], time, -row["slide"])


ADAPTERS: dict[str, type[VectorAdapter]] = {
    "datastream_interval": DatastreamInterval,
    "datastream_window": DatastreamWindow,
    "sql_interval": SqlInterval,
    "sql_interval_proctime": SqlIntervalOnProcessingTime,
    "sql_window": SqlWindow,
}
