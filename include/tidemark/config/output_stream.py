"""Inputs that are the output of another pipeline: the columns of its output stream, and which joins can be chained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tidemark.config.clock_changes import list_skipped_times
from tidemark.config.dialect_support import TICK_MICROS, get_remedy
from tidemark.config.inputs import PipelineInput, Upstream
from tidemark.config.read_columns import list_read_columns
from tidemark.config.sides import SIDES, SideName
from tidemark.config.validation_errors import explain_validation_error

if TYPE_CHECKING:
    from tidemark.config.join import WindowSettings
    from tidemark.config.pipeline import Pipeline

OUTPUT_STREAM = "output_stream"
"""Table, and setting, of a pipeline whose output another pipeline reads."""
EMITTED_AT = "_emitted_at"
"""Arrival of the event that emits a row, a timestamp."""
EMITTED_ORDER = "_emitted_order"
"""Order of this event among those with equal arrivals."""
OUTPUT_WATERMARK = "_watermark"
"""Watermark that the operator emits after the event, ms. It is null in rows, and rows without one are no watermark."""
ORDER_STEPS = 1024
"""Factor of `_emitted_order`: rows that one event emits, and then its watermark, have consecutive numbers."""
MAX_DEPTH = 3
"""Most joins before another one. `ORDER_STEPS` to this power, times the order of the end of input, is a long."""
EVENT_TIME = "_event_time"
"""Event time of a row in flink-datastream."""
EVENT_TIMES: dict[SideName, str] = {"left": "_left_event_time", "right": "_right_event_time"}
"""Event times of a row in flink-sql, where the next join selects one: null if the side is padded."""
EMISSION_ORDER = "_emission_order"
"""Order of a row among those that one event emits. It matters if the next join processes them one by one: a window may
fire for each late row, and an interval join of flink-sql may remove buffered rows at each lookup."""

OUTPUT_STREAM_COLUMNS = (
    *(EMITTED_AT, EMITTED_ORDER, OUTPUT_WATERMARK, EMISSION_ORDER),
    *(EVENT_TIME, *EVENT_TIMES.values()),
)
"""Columns of output streams that emissions do not have."""


def to_input(fields: PipelineInput, upstream: Pipeline) -> dict[str, Any]:
    """Return the content of the input that reads a pipeline's output stream.

    Args:
        fields: Content of the input in the pipeline file.
        upstream: The pipeline that it names.

    Raises:
        ValueError: The pipeline writes no output stream, or the event time is missing or ambiguous.
    """
    for problem in _find_input_problems(fields, upstream):
        raise ValueError(problem)
    return {
        **fields.model_dump(mode="json", exclude_unset=True, exclude={"pipeline", "event_time"}),
        "table": f"{upstream.output}/{OUTPUT_STREAM}",
        "event_time": EVENT_TIMES[fields.event_time] if fields.event_time else EVENT_TIME,
        "arrival": EMITTED_AT,
        "tiebreak": EMITTED_ORDER,
        "recorded_watermark": {"column": OUTPUT_WATERMARK, "unit": "ms"},
        "upstream": describe_upstream(upstream).model_dump(mode="json"),
    }


def describe_upstream(pipeline: Pipeline) -> Upstream:
    """Return the facts about a pipeline that the join needs which reads its output."""
    window = pipeline.join.window
    return Upstream(
        pipeline=pipeline.name,
        dialect=pipeline.dialect,
        window=None if window is None else window.model_dump(mode="json", exclude_defaults=True),
        window_time_zone=pipeline.window_time_zone,
        slices=pipeline.slices.model_dump(mode="json", include={"every", "start", "time_zone"}),
        depth=compute_depth(pipeline) + 1,
        selected=None if pipeline.select is None else list(pipeline.select),
    )


def parse_input(content: dict[str, Any]) -> PipelineInput:
    """Parse an input that names a pipeline.

    Raises:
        ValueError: A field is unknown or invalid.
    """
    try:
        return PipelineInput.model_validate(content)
    except ValidationError as error:
        raise ValueError(explain_validation_error(error, PipelineInput)) from None


def compute_depth(pipeline: Pipeline) -> int:
    """Return the number of joins before a pipeline's own in its longest chain."""
    return max((upstream.depth for upstream in pipeline.upstreams.values()), default=0)


def compute_order_factor(pipeline: Pipeline, side: SideName) -> int:
    """Return the factor by which the tiebreaks of an input are multiplied, so that both inputs have one order.

    The output stream of a pipeline has more numbers between two tiebreaks than its inputs have.
    """
    depth = pipeline.upstreams[side].depth if side in pipeline.upstreams else 0
    return int(ORDER_STEPS ** (compute_depth(pipeline) - depth))


def compute_watermark_delay(pipeline: Pipeline) -> int:
    """Return the time that the pipeline's operator subtracts from the watermarks it emits, ms.

    Flink SQL's interval join subtracts the longest time that it waits for a partner, also if it is an inner join.
    """
    interval = pipeline.join.interval
    if pipeline.dialect != "flink-sql" or interval is None:
        return 0
    lower, upper = interval.to_closed(TICK_MICROS[pipeline.dialect])
    assert lower is not None and upper is not None, "dialect_support checks this"  # noqa: PT018
    return max(0, upper, -lower)


def check_chain(pipeline: Pipeline) -> None:
    """Check that a pipeline can write the output stream, and read those of other pipelines, if it does.

    Raises:
        ValueError: A join or a setting is not supported in a chain.
    """
    for problem in find_output_problems(pipeline) if pipeline.output_stream else ():
        raise ValueError(f"output_stream: {problem}")
    for side, upstream in pipeline.upstreams.items():
        for problem in _find_upstream_problems(pipeline, side, upstream):
            raise ValueError(f"{side}.pipeline: {problem}")


def _find_input_problems(fields: PipelineInput, upstream: Pipeline) -> Iterator[str]:
    if not upstream.output_stream:
        yield f"pipeline {upstream.name} has no output stream. Set `output_stream: on` in its file, and reprocess it."
    if upstream.dialect == "flink-sql" and fields.event_time is None:
        yield f"event_time is missing. Write left or right: the side of {upstream.name} whose event time rows keep."
    if upstream.dialect == "flink-datastream" and fields.event_time is not None:
        yield "event_time: rows of flink-datastream have one event time, that of the emission. Remove it."


def find_output_problems(pipeline: Pipeline) -> Iterator[str]:
    """Yield the reasons why a pipeline cannot write an output stream."""
    join = pipeline.join
    if pipeline.dialect == "spark":
        yield "dialect spark is not supported in a chain: its rules are not known. Remove it."
    if (depth := compute_depth(pipeline)) >= MAX_DEPTH:
        yield f"a chain has at most {MAX_DEPTH + 1} joins, and this is number {depth + 1}. Remove it."
    yield from _find_join_problems(pipeline)
    if join.type in {"semi", "anti"} or join.api == "cogroup" or pipeline.explode is not None:
        name = "join.api: cogroup" if join.api == "cogroup" else f"join.type: {join.type}"
        yield f"{'explode' if pipeline.explode is not None else name} is not supported before another join. Remove it."
    if join.emit == "latest":
        yield "join.emit: latest is no output of Flink. Remove it."
    if any(expectation.on_failure == "quarantine" for expectation in pipeline.quality):
        yield "rows in quarantine would be missing in the next join. Use on_failure: stop, or remove output_stream."


def _find_join_problems(pipeline: Pipeline) -> Iterator[str]:
    """Yield settings of a join whose output, or whose lateness in a chain, is not known."""
    join = pipeline.join
    if not join.has_default_firing:
        yield "triggers and evictors are not supported in a chain. Remove them."
    if pipeline.uses_processing_time_only:
        yield "processing time is not supported in a chain. Use event time."
    if pipeline.dialect == "flink-sql" and join.window and join.window.session:
        yield "session windows of flink-sql are not supported in a chain. Use other windows."
    if pipeline.restarts:
        yield "restarts are not supported in a chain. Remove them."
    for side in SIDES:
        source = getattr(pipeline, side)
        for name in ("partition", "idle_timeout"):
            if getattr(source, name):
                yield f"{side}.{name} is not supported in a chain. {get_remedy(name)}"
        if source.recorded_watermark and not source.upstream:
            yield f"{side}.recorded_watermark is not supported in a chain. Set {side}.watermark_delay."


def _find_upstream_problems(pipeline: Pipeline, side: SideName, upstream: Upstream) -> Iterator[str]:
    if pipeline.dialect != upstream.dialect:
        yield f"{upstream.pipeline} has dialect {upstream.dialect}. Both joins of a chain are of one dialect."
    yield from _find_join_problems(pipeline)
    if upstream.selected is not None:
        read = list_read_columns(pipeline, side, upstream.selected)
        if missing := [name for name in read if name not in upstream.selected and not name.startswith("_")]:
            yield f"{upstream.pipeline} has no column {missing[0]} in its `select`. Add it there."
    own = describe_upstream(pipeline)
    if own.slices != upstream.slices:
        yield f"slices differ from those of {upstream.pipeline} ({upstream.slices}). Use the same slices."
    if pipeline.dialect == "flink-sql" and own.window and upstream.window and own.window != upstream.window:
        yield (
            f"join.window differs from that of {upstream.pipeline}. Flink's planner makes it a regular join, without a "
            "watermark. Use the same windows."
        )
    window = pipeline.join.window
    if window and own.window and upstream.window:
        if own.window_time_zone != upstream.window_time_zone:
            zone = upstream.window_time_zone or "UTC"
            yield f"time_zone differs from that of {upstream.pipeline} ({zone}). Use the same for windows of windows."
        elif own.window_time_zone and _may_end_in_skipped_time(pipeline, window, own.window_time_zone):
            yield (
                f"time_zone: windows of {upstream.pipeline} may end in an hour that the clocks of "
                f"{own.window_time_zone} skip, and their rows would be in other windows here. Use UTC, or tumbling "
                "windows without offset that never do, such as those of 1 day or of a part of an hour in most zones."
            )


def _may_end_in_skipped_time(pipeline: Pipeline, window: WindowSettings, zone: str) -> bool:
    """Return True if a window with rows may end within local time that clocks skip, after its start."""
    if window.tumbling is None or window.offset:
        return True
    bounds = (pipeline.time_bounds.earliest, pipeline.time_bounds.latest) if pipeline.time_bounds else ()
    return any(
        start % window.tumbling and start - start % window.tumbling + window.tumbling <= end
        for start, end in list_skipped_times(zone, *bounds)
    )
