"""Find the settings of a pipeline with which no Flink reference job can run its join."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES

_MAX_INTERVAL = timedelta(days=99)
_PROCESSING_TIME_TRIGGERS = ("processing_time", "continuous_processing_time")


def find_obstacles(pipeline: Pipeline) -> Iterator[str]:
    """Yield the reasons why Flink cannot run a pipeline's join, in whatever order it reads the rows."""
    join, is_sql = pipeline.join, pipeline.dialect == "flink-sql"
    if pipeline.dialect == "spark":
        yield "has dialect spark. A Flink reference needs dialect flink-sql or flink-datastream."
    for side in pipeline.recorded_watermark_sides:
        if side not in pipeline.upstreams:
            yield f"has a recorded watermark ({side}.recorded_watermark), and this job computes its own. Name a delay."
    if join.time == "processing" or join.effective_trigger.kind in _PROCESSING_TIME_TRIGGERS:
        yield "depends on processing time, which this job cannot replay. Use event time."
    if join.condition:
        yield "has a join.condition in Spark SQL, which Flink cannot evaluate. Remove it."
    if join.api == "cogroup":
        yield "is a coGroup, and this job writes pairs. Remove `api`."
    if join.emit == "latest":
        yield "emits each window once, and this job writes each pane. Remove `emit`."
    if is_sql and (join.max_time_distance or timedelta()) > _MAX_INTERVAL:
        yield f"joins rows more than {_MAX_INTERVAL.days} days apart, which Flink SQL cannot express. Shorten it."
    if is_sql and join.window and join.window.session:
        yield "joins on sessions, which this job does not support. Use other windows."


def find_obstacles_by_arrival(pipeline: Pipeline) -> Iterator[str]:
    """Yield the reasons why Flink cannot run a pipeline's join over rows in the order of its clock."""
    yield from find_obstacles(pipeline)
    if pipeline.restarts:
        yield "has restarts, and this job cannot simulate a failure. Remove them."
    for side in SIDES:
        source = getattr(pipeline, side)
        if source.partition or source.idle_timeout:
            yield f"has partitions or idle_timeout on {side}, and this job has one watermark per input. Remove them."
