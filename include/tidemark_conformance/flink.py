"""Vectors of Flink's joins."""

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
from tidemark.config.interval_bounds import closed_bounds
from tidemark.config.sides import SIDES
from tidemark.config.types import from_micros
from tidemark.execution.replay import Replay
from tidemark.joins import Join, lane_of
from tidemark.joins.datastream_interval import DatastreamIntervalJoin
from tidemark.joins.restarts import RestartedIntervalJoin, RestartedWindowJoin
from tidemark.joins.rules import flink_datastream, flink_sql
from tidemark.joins.rules.flink_common import watermark_lag
from tidemark.joins.session_window import SessionJoin
from tidemark.joins.sql_interval.join import SqlIntervalJoin
from tidemark.joins.sql_interval.processing_time import ProcessingTimeJoin
from tidemark.joins.window import WindowJoin, Windows
from tidemark.joins.window_output import HALVES, JoinType
from tidemark.timegrid.zones import Zone, changes_by_hours, changes_yearly, local_time
from tidemark.watermarks.buckets import Lane, Watermarks
from tidemark.watermarks.job_restarts import RestartedLane
from tidemark.watermarks.processing_time import ClockLane
from tidemark_conformance.adapter import KEYS, Kind, Params, Row
from tidemark_conformance.vectors import Cut

_SIDES = {"L": "left", "R": "right"}
_BOUNDS = ("lower", "upper")
_RECORDED = {"column": "watermark", "unit": "ms"}
_AROUND = timedelta(days=10)
"""Where else a window of a vector's rows may begin or end."""


class FlinkKind(Kind):
    """An event a step.

    An input without a delay has recorded its watermarks: what an event has as `watermark` came just before it. The job
    has failed before the events whose numbers `restarts` has, and they are the first of those read then; or behind the
    last event, by the number that would be next.
    """

    dialect: str
    columns = (("watermark", int),)

    @property
    @abstractmethod
    def join_settings(self) -> dict[str, Any]:
        """The join of the pipeline file."""

    @override
    def pipeline(self) -> Pipeline:
        watermark = self.vector["watermark"]
        delays = {side: watermark[f"delay_ms_{side}"] for side in SIDES}
        left, right = (
            {"watermark": _RECORDED} if delay is None else {"watermark_delay": f"{delay} ms"}
            for delay in delays.values()
        )
        join = {"keys": [*KEYS, *self.params], **self.join_settings}
        more = {"watermark_kind": watermark["kind"], "join": join, "restarts": [from_micros(n) for n in self._restarts]}
        return Pipeline.model_validate(self.settings(left, right, "ms", dialect=self.dialect, **more))

    @override
    def lane(self, pipeline: Pipeline, clocks: Sequence[int]) -> Lane:
        lane = lane_of(pipeline, Watermarks())
        if isinstance(lane, RestartedLane):
            every = [*clocks, clocks[-1] + 1]
            return replace(lane, restarts=tuple(every[step] for step in self._restarts))
        return lane

    @override
    def steps(self) -> Iterator[list[Row]]:
        for event in self.vector["events"][: self._last + 1]:
            ts = None if event["ts"] == -(2**63) else event["ts"]  # Flink's mark of a row without a timestamp
            yield [{**event, "side": _SIDES[event["side"]], "ts": ts}]

    @property
    def _recorded(self) -> tuple[str, ...]:
        """The inputs that have recorded their watermarks."""
        return tuple(side for side in SIDES if self.vector["watermark"][f"delay_ms_{side}"] is None)

    @property
    def _restarts(self) -> list[int]:
        """The steps with which the job has begun again."""
        return list(self.vector.get("restarts", ()))

    @property
    def _fails(self) -> bool:
        """Whether the last event ended the engine's job: in a replay that row is rejected."""
        return "error" in self.vector["expected"]

    @property
    def _last(self) -> int:
        """The last event that the engine saw."""
        if self._fails:
            return int(self.vector["expected"]["error"].split(":")[0].removeprefix("at event "))
        return len(self.vector["events"]) - 1

    def slice_at(self, cut: Cut, at: int | str) -> int:
        """The slice of what came out at an event, or when the input ended."""
        return cut.slice_of(self._last if at == "drain" else int(at))

    @override
    def expected(self, cut: Cut) -> Iterator[str]:
        for row in self.vector["expected"]["rows"]:
            yield f"slice {self.slice_at(cut, row['at'])}: {self.emitted(row)}"
        for row in self.vector["expected"]["dropped"]:
            yield f"slice {self.slice_at(cut, row['at'])}: {self.lost(row)}"

        if self._fails:
            event = self.vector["events"][self._last]
            yield f"slice {cut.slice_of(self._last)}: {event['id']} rejected"

    @override
    def found(self, answer: Replay) -> Iterator[tuple[int, str]]:
        for row in answer.joined.collect():
            lane, text = self.found_emission(row)
            yield lane, f"slice {row['slice']}: {text}"
        for row in answer.late.collect():
            its = row[row["side"]]
            for text in self.found_loss(row, its):
                yield its["lane"], f"slice {row['slice']}: {its['id']} {text}"

    def emitted(self, row: Row) -> str:
        """An emission of the vector, or of a replay in the vector's form."""
        ids = row.get("left_id"), row.get("right_id"), row.get("left_ids"), row.get("right_ids")
        windows = row.get("window_start"), row.get("window_end"), row.get("right_window_start")
        return f"{ids} at {row['ts']} in {windows}"

    @abstractmethod
    def found_emission(self, row: SparkRow) -> tuple[int, str]:
        """Lane and text of an emission of a replay."""

    @abstractmethod
    def found_loss(self, row: SparkRow, its: SparkRow) -> Iterator[str]:
        """What the vectors say of a row of the side output, `its` being the input's columns."""

    def lost(self, row: Row) -> str:
        """A late row of the vector."""
        return f"{row['id']} late"


class DatastreamInterval(FlinkKind):
    """DataStream API, interval join."""

    dialect = "flink-datastream"

    @property
    @override
    def group(self) -> object:
        return self._recorded, bool(self._restarts)

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        interval = {k: f"{v} ms" if k in {"lower", "upper"} else v for k, v in self.vector["params"].items()}
        return {"interval": interval}

    @cached_property
    @override
    def params(self) -> Params:
        given = self.vector["params"]
        closed = {f"{bound}_inclusive": given.get(f"{bound}_inclusive", True) for bound in _BOUNDS}
        return dict(zip(_BOUNDS, closed_bounds(given["lower"], given["upper"], **closed), strict=True))

    @override
    def join(self, _spark: SparkSession, others: Sequence[Kind]) -> Join:
        join = RestartedIntervalJoin if self._restarts else DatastreamIntervalJoin
        return join(flink_datastream.IntervalRules(self.param("lower"), self.param("upper")))

    @override
    def found_emission(self, row: SparkRow) -> tuple[int, str]:
        ids = {"left_id": row["left"]["id"], "right_id": row["right"]["id"], "ts": row["result_time"]}
        return row["left"]["lane"], self.emitted(ids)

    @override
    def found_loss(self, row: SparkRow, its: SparkRow) -> Iterator[str]:
        yield "late" if row["reason"] == "late" else "rejected"


class DatastreamWindow(FlinkKind):
    """DataStream API, window join and coGroup."""

    dialect = "flink-datastream"

    @property
    @override
    def group(self) -> object:
        given = self.vector["params"]
        return self._recorded, bool(self._restarts), given["mode"], given["window"] == "session"

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        given = self.vector["params"]
        match given:
            case {"window": "session", "gap": gap}:
                window: dict[str, Any] = {"session": {"gap": f"{gap} ms"}}
            case {"window": "tumbling", "size": size}:
                window = {"tumbling": f"{size} ms", "offset": f"{given.get('offset', 0)} ms"}
            case {"window": "sliding", "size": size, "slide": slide}:
                window = {"sliding": {"size": f"{size} ms", "slide": f"{slide} ms"}}
                window["offset"] = f"{given.get('offset', 0)} ms"
            case _:
                raise ValueError(f"{given} are no windows")
        return {"window": window, "api": given["mode"], "allowed_lateness": f"{given['allowed_lateness']} ms"}

    @cached_property
    @override
    def params(self) -> Params:
        given = self.vector["params"]
        if given["window"] == "session":
            return {"lateness": given["allowed_lateness"], "gap": given["gap"]}
        shape = {"size": given["size"], "slide": given.get("slide", given["size"]), "offset": given.get("offset", 0)}
        return {"lateness": given["allowed_lateness"], **shape}

    @override
    def join(self, _spark: SparkSession, others: Sequence[Kind]) -> Join:
        given, lateness = self.vector["params"], self.param("lateness")
        tumbling = all(other.vector["params"]["window"] == "tumbling" for other in others)
        rules, inner, cogroup = flink_datastream.WindowRules(lateness), JoinType.of("inner"), given["mode"] == "cogroup"
        if given["window"] == "session":
            return SessionJoin(self.param("gap"), rules, inner, by_side=False, cogroup=cogroup)
        size, slide, offset = (self.param(name) for name in ("size", "slide", "offset"))
        windows = Windows(size, slide, offset, F.lit(False), tumbling=tumbling)
        if self._restarts:
            return RestartedWindowJoin(windows, rules, inner, refires=False, cogroup=cogroup)
        return WindowJoin(windows, rules, inner, refires=True, cogroup=cogroup)

    @override
    def found_emission(self, row: SparkRow) -> tuple[int, str]:
        firing = {"ts": row["result_time"], "window_start": row["window_start"], "window_end": row["window_end"]}
        if self.vector["params"]["mode"] == "join":
            ids = {"left_id": row["left"]["id"], "right_id": row["right"]["id"]}
            return row["left"]["lane"], self.emitted({**firing, **ids})
        ids = {f"{side}_ids": sorted(its["id"] for its in row[side]) for side in SIDES}
        return (row["left"] or row["right"])[0]["lane"], self.emitted({**firing, **ids})

    @override
    def found_loss(self, row: SparkRow, its: SparkRow) -> Iterator[str]:
        if row["reason"] != "late_for_window":
            yield "late" if row["reason"] == "late" else "rejected"


class SqlInterval(FlinkKind):
    """Flink SQL, interval join. The vectors bound the left time by the right one."""

    dialect = "flink-sql"

    @property
    @override
    def group(self) -> object:
        return self._recorded, bool(self._restarts)

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        given = self.vector["params"]
        bounds = sorted((-given["upper"], -given["lower"]))  # a pipeline file could not name the empty ones
        return {"type": given["join_type"], "interval": {k: f"{v} ms" for k, v in zip(_BOUNDS, bounds, strict=True)}}

    @cached_property
    @override
    def params(self) -> Params:
        given = self.vector["params"]
        closed = {
            f"{bound}_inclusive": given.get(f"{other}_inclusive", True)
            for bound, other in zip(_BOUNDS, reversed(_BOUNDS), strict=True)
        }
        lower, upper = closed_bounds(-given["upper"], -given["lower"], **closed)
        return {
            "type": given["join_type"],
            "lower": lower,
            "upper": upper,
            "lateness": given["allowed_lateness"],
            "min_cleanup": given["min_cleanup_interval"],
        }

    @override
    def join(self, spark: SparkSession, others: Sequence[Kind]) -> Join:
        types = frozenset(str(other.params["type"]) for other in others)
        rules = flink_sql.IntervalRules(*(self.param(name) for name in ("lower", "upper", "lateness", "min_cleanup")))
        return SqlIntervalJoin(rules, JoinType(self.param("type"), types))

    @override
    def found_emission(self, row: SparkRow) -> tuple[int, str]:
        left, right = row["left"], row["right"]
        ids = {"left_id": left and left["id"], "right_id": right and right["id"], "ts": row["result_time"]}
        return (left or right)["lane"], self.emitted(ids)

    @override
    def found_loss(self, row: SparkRow, its: SparkRow) -> Iterator[str]:
        if row["reason"] not in {"behind_watermark", "lost_at_end"}:
            yield "rejected"


class SqlIntervalOnProcessingTime(SqlInterval):
    """Flink SQL, interval join on processing time."""

    columns = (("pt", int),)

    @override
    def lane(self, pipeline: Pipeline, _clocks: Sequence[int]) -> Lane:
        return ClockLane(watermark_lag(pipeline))

    @override
    def steps(self) -> Iterator[list[Row]]:
        for [event] in super().steps():
            yield [{**event, "ts": event["pt"]}]  # times of the vector's own make watermarks alone

    @override
    def clocks(self, cut: Cut, slices: range) -> dict[int, int]:
        clock, found, events = 0, dict[int, int](), list(enumerate(self.vector["events"]))
        for number in slices:
            clock = max([clock, *(event["pt"] for at, event in events if cut.slice_of(at) == number)])
            if number == len(cut.starts):
                clock = max(clock, self.vector.get("end_pt", clock))
            found[number] = clock
        return found

    @override
    def join(self, spark: SparkSession, others: Sequence[Kind]) -> Join:
        join = super().join(spark, others)
        assert isinstance(join, SqlIntervalJoin)
        return ProcessingTimeJoin(join.rules, F.coalesce("left.pt", "right.pt"), join.join_type)


class SqlWindow(FlinkKind):
    """Flink SQL, window join."""

    dialect = "flink-sql"

    @property
    @override
    def group(self) -> object:
        of_halves = self.vector["params"]["join_type"] in HALVES
        return self._recorded, self._by_session, of_halves, self._changes

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        given = self.vector["params"]
        offset = f"{given.get('offset', 0)} ms"
        match given:
            case {"tvf": "SESSION", "gap": gap}:
                window: dict[str, Any] = {"session": {"gap": f"{gap} ms"}}
            case {"tvf": "TUMBLE", "size": size}:
                window = {"tumbling": f"{size} ms", "offset": offset}
            case {"tvf": "HOP", "size": size, "slide": slide}:
                window = {"sliding": {"size": f"{size} ms", "slide": f"{slide} ms"}, "offset": offset}
            case {"tvf": "CUMULATE", "size": size, "step": step}:
                window = {"cumulate": {"size": f"{size} ms", "step": f"{step} ms"}, "offset": offset}
            case _:
                raise ValueError(f"{given} are no windows")
        return {"window": window, "type": given["join_type"]}

    @override
    def settings(self, left: dict[str, Any], right: dict[str, Any], unit: str, **more: Any) -> dict[str, Any]:
        zone = {"time_zone": self._zone} if self._zone else {}
        return {**super().settings(left, right, unit, **more), **zone}

    @cached_property
    @override
    def params(self) -> Params:
        given = self.vector["params"]
        zone: Params = {"zone": self._zone, "changes": changes_yearly(self._zone)} if self._zone else {}
        if self._by_session:
            return {"type": given["join_type"], "gap": given["gap"], **zone}
        slide = given.get("slide", given.get("step", given["size"]))
        shape = {"size": given["size"], "slide": slide, "offset": given.get("offset", 0)}
        return {"type": given["join_type"], "cumulating": given["tvf"] == "CUMULATE", **shape, **zone}

    @override
    def join(self, _spark: SparkSession, others: Sequence[Kind]) -> Join:
        types = frozenset(str(other.params["type"]) for other in others)
        zone = Zone(self.param("zone"), self.param("changes")) if self._zone else None
        join_type, rules, odd = JoinType(self.param("type"), types), flink_sql.WindowRules(zone), self._changes == "odd"
        if self._by_session:
            return SessionJoin(self.param("gap"), rules, join_type, by_side=True, zone=zone, replays_all=odd)
        size, slide, offset, cumulating = (self.param(name) for name in ("size", "slide", "offset", "cumulating"))
        tumbling = all(other.vector["params"]["tvf"] == "TUMBLE" for other in others)
        shape = Windows(size, slide, offset, cumulating, zone, tumbling=tumbling)
        return WindowJoin(shape, rules, join_type, refires=False, exact_watermarks=odd)

    @property
    def _zone(self) -> str | None:
        """The time zone of the session, None for UTC."""
        zone = self.vector["params"].get("time_zone")
        return None if zone is None else str(zone)

    @property
    def _changes(self) -> str:
        """How the clocks change: of a lane that goes by UTC not at all."""
        if self._zone is None:
            return ""
        times = [event["ts"] for event in self.vector["events"] if event["ts"] is not None]
        first, last = (datetime.fromtimestamp(time / 1000, UTC) for time in (min(times), max(times)))
        return "by an hour" if changes_by_hours(self._zone, first - _AROUND, last + _AROUND) else "odd"

    @property
    def _by_session(self) -> bool:
        return bool(self.vector["params"]["tvf"] == "SESSION")

    @override
    def lost(self, row: Row) -> str:
        if row["by"] == "null_rowtime":
            return f"{row['id']} rejected"
        return f"{row['id']} late" + (f" for {row['window_end']}" if "window_end" in row else "")

    @override
    def found_emission(self, row: SparkRow) -> tuple[int, str]:
        left, right = row["left"], row["right"]
        firing = {name: row[name] for name in ("window_start", "window_end")}
        if self._by_session and left and right:
            firing["right_window_start"] = row["right_window_start"]
        ids = {"left_id": left and left["id"], "right_id": right and right["id"], "ts": row["result_time"]}
        return (left or right)["lane"], self.emitted({**firing, **ids})

    @override
    def found_loss(self, row: SparkRow, its: SparkRow) -> Iterator[str]:
        given = self.vector["params"]
        match row["reason"], given["tvf"]:
            case "late", "SESSION":
                yield "late"
            case "late", _:
                yield from (f"late for {end}" for end in _window_ends(its))
            case "late_for_window", _:
                yield f"late for {row['window_end']}"
            case _:
                yield "rejected"


def _window_ends(row: SparkRow) -> range:
    """The ends of all windows of a row."""
    time = local_time(row["ts"], row["zone"]) if "zone" in row else row["ts"]
    step = time - (time - row["offset"]) % row["slide"]
    if row["cumulating"]:
        base = time - (time - row["offset"]) % row["size"]
        return range(step + row["slide"], base + row["size"] + 1, row["slide"])
    return range(step + row["size"], time, -row["slide"])


KINDS: dict[str, type[Kind]] = {
    "datastream_interval": DatastreamInterval,
    "datastream_window": DatastreamWindow,
    "sql_interval": SqlInterval,
    "sql_interval_proctime": SqlIntervalOnProcessingTime,
    "sql_window": SqlWindow,
}
