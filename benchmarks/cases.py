"""Define the benchmark cases: shapes of rows and joins, each run by some of the peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from benchmarks.data import START, Shape
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration, format_instant

PLAIN = ("floor", "binned", "integers", "as written")
STREAMS = ("structured streaming", "structured streaming, hourly", "flink batch", "flink streaming")
WARM_UP_ROWS = 50_000
DELAY = timedelta(minutes=1)
"""Delay of both watermarks."""


@dataclass(frozen=True)
class Setup:
    """Resources of Spark."""

    memory: str = "4g"
    """Memory of the driver, which is all of Spark without workers."""
    workers: int = 0
    """Workers of a standalone cluster, with a core each; 0 for a driver with all cores."""


@dataclass(frozen=True)
class Case:
    """Rows, and a join over them."""

    name: str
    description: str
    shape: Shape
    peers: tuple[str, ...] = ("binned", "tidemark")
    join_type: str = "inner"
    dialect: str = "flink-datastream"
    window: Mapping[str, Any] | None = None
    """Window in the form of a pipeline file; None for the interval of the shape."""
    trigger: Mapping[str, Any] | None = None
    """Trigger of the windows in the form of a pipeline file; None for the default."""
    every: timedelta = timedelta(hours=1)
    """Length of a slice."""
    setup: Setup = field(default_factory=Setup)
    on_request_only: bool = False
    """True if the case runs only when selected by name."""

    @property
    def warm_up(self) -> Case:
        """The same case over few rows."""
        return replace(self, shape=replace(self.shape, rows=min(WARM_UP_ROWS, self.shape.rows // 2)))

    @property
    def join_description(self) -> str:
        """Description of the join; cases with the same one differ in their rows only."""
        return f"{self.dialect} {self.join_type} {self.window}" + (f" {self.trigger}" if self.trigger else "")

    @property
    def pipeline_settings(self) -> dict[str, Any]:
        """Content of the pipeline file, without its output."""
        bounds = (format_duration(timedelta(milliseconds=ms)) for ms in self.shape.interval_ms)
        interval = {"interval": dict(zip(("lower", "upper"), bounds, strict=True))}
        matched: dict[str, Any] = {"window": dict(self.window)} if self.window else interval
        if self.trigger:
            matched["trigger"] = dict(self.trigger)
        rows = {"event_time": "at", "arrival": "seen", "watermark_delay": format_duration(DELAY)}
        return {
            "name": "bench",
            "dialect": self.dialect,
            **{side: {"table": side, **rows} for side in SIDES},
            "join": {"type": self.join_type, "keys": ["key"], **matched},
            "slices": {"every": format_duration(self.every), "start": format_instant(START)},
        }


def create_cases(rows: int) -> dict[str, Case]:
    """Create all cases by name, with so many rows per input."""
    base = Shape(rows)
    dense, year = replace(base, rows_per_key=4_000), replace(base, rows_per_key=4_000, days=365)
    in_time, with_late_rows = replace(base, late_share=0.0), replace(base, late_share=0.05)
    large = replace(base, rows=5 * rows)
    left = Case("", "", base, join_type="left", dialect="flink-sql", on_request_only=True)
    sliding = {"size": "2 minutes", "slide": "10 seconds"}
    cases = [
        Case("base", "80 rows a key over a day", base, (*PLAIN, "tidemark", *STREAMS, "polars")),
        Case("half", "half as many rows", replace(base, rows=rows // 2)),
        Case("doubled", "160 rows a key, as many pairs", replace(base, rows_per_key=160)),
        Case("dense", "4,000 rows a key, as many pairs", dense, (*PLAIN, "tidemark")),
        Case("skewed", "half of all rows on one key, as many pairs", replace(base, hot_share=0.5)),
        Case("late", "10 % of the rows late", replace(base, late_share=0.1)),
        Case("inner", "inner join, flink-sql", base, dialect="flink-sql"),
        Case("left", "left join, flink-sql", base, join_type="left", dialect="flink-sql"),
        Case("full", "full join, flink-sql", base, join_type="full", dialect="flink-sql"),
        Case("tumbling", "windows of 12 minutes", base, window={"tumbling": "12 minutes"}),
        Case("sliding", "windows of 2 minutes, one every 10 seconds", base, window={"sliding": sliding}),
        Case(
            "sliding count",
            "the same, fired at each second row",
            base,
            ("tidemark",),
            window={"sliding": sliding},
            trigger={"count": 2},
            on_request_only=True,
        ),
        Case("session", "sessions with gaps of 5 minutes", base, window={"session": {"gap": "5 minutes"}}),
        Case("dozen", "a year in a dozen slices", year, every=timedelta(hours=730)),
        Case("hourly", "a year in 8,760 slices", year),
        Case("one worker", "a cluster of a worker with a core", base, ("tidemark",), setup=Setup("2g", 1)),
        Case("two workers", "a cluster of two workers, a core each", base, ("tidemark",), setup=Setup("2g", 2)),
        replace(left, name="left in time", description="flink-sql, no row late", shape=in_time),
        replace(left, name="left beyond", description="flink-sql, 5 % of the rows late", shape=with_late_rows),
        Case(
            "dozen sql",
            "a year in a dozen slices, flink-sql",
            year,
            every=timedelta(hours=730),
            dialect="flink-sql",
            on_request_only=True,
        ),
        Case("large", "five times the rows, 2 GB", large, setup=Setup("2g"), on_request_only=True),
        Case(
            "large sql",
            "inner join, flink-sql, five times the rows, 2 GB",
            large,
            dialect="flink-sql",
            setup=Setup("2g"),
            on_request_only=True,
        ),
    ]  # fmt: skip
    return {case.name: case for case in cases}
