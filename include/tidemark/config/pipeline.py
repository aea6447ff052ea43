"""The pipeline file as frozen settings that are validated at construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from tidemark.config.airflow import AirflowSettings
from tidemark.config.allowed_functions import check_column
from tidemark.config.base import Settings
from tidemark.config.cluster import Cluster
from tidemark.config.compare import CompareSettings
from tidemark.config.dialect_support import (
    TICK_MICROS,
    can_join_null_keys,
    check_join,
    check_restarts,
    check_time_zone,
    check_watermarks,
    flink_version_defaults,
)
from tidemark.config.expressions import check_expression
from tidemark.config.inputs import COMMIT, CheckpointArrival, CommitArrival, Input, Upstream, expand_kafka_arrival
from tidemark.config.join import Join
from tidemark.config.maintenance import CompactionSettings, Retention
from tidemark.config.notify import Receiver
from tidemark.config.output_stream import check_chain
from tidemark.config.quality import Expectation, create_default_expectations
from tidemark.config.sides import SIDES, SideName
from tidemark.config.slices import DAY, Slices
from tidemark.config.types import Duration, Instant, TimeZone, Version, format_duration, parse_switch

Dialect = Literal["flink-datastream", "flink-sql", "spark"]
WatermarkStrategy = Literal["datastream", "sql"]
Name = Field(
    pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", description="Pipeline name: letters, digits, _ and -, beginning with a letter."
)
_SKEW_PER_DELAY = 10
"""Default of `allowed_clock_skew`, as a multiple of the watermark delay."""
_MAX_CLOCK_SHIFT = timedelta(days=1)
"""Upper bound on how far the clocks of any time zone have been set back."""
_DEFAULT_FILTER = {
    "flink-datastream": "after_watermark",
    "flink-sql": "after_watermark",
    "spark": "before_watermark",
}
_QUALITY_SETTINGS = ("quality", "quality_defaults", "expectation_suite", "notify", "expose_row_values", "compare")
_OPERATION_SETTINGS = ("on_late_arriving_rows", "on_input_delete", "compact", "retention", "airflow", "cluster")
_NOT_OUTPUT_AFFECTING: dict[str, Any] = {
    **dict.fromkeys(("name", "output", "flink_version", "select", *_QUALITY_SETTINGS, *_OPERATION_SETTINGS), True),
    **{side: {"complete": True, "allowed_clock_skew": True, "upstream": {"selected"}} for side in SIDES},
    "slices": {"end"},
}


def _find_default_policies(content: dict[str, Any]) -> dict[str, str]:
    """Return the defaults of a pipeline file whose input is the output of another pipeline: that is reprocessed too."""
    inputs = (content.get(side) for side in SIDES)
    is_chained = any(isinstance(source, dict) and source.get("upstream") for source in inputs)
    return {"on_late_arriving_rows": "reprocess", "on_input_delete": "reprocess"} if is_chained else {}


class SparkSettings(Settings):
    """Settings of the reproduced Structured Streaming query. Defaults are Spark's own."""

    multiple_watermark_policy: Literal["min", "max"] = "min"
    """`spark.sql.streaming.multipleWatermarkPolicy`: watermark of the slower (`min`) or of the faster (`max`) input."""
    late_watermark: Literal["previous_batch", "current_batch"] = "previous_batch"
    """Batch whose watermark decides if a row is late. Set `current_batch` if the query runs with
    `spark.sql.streaming.statefulOperator.allowMultiple=false`."""
    micro_batches: Literal["idle", "back_to_back"] = "idle"
    """Timing of micro-batches, one for each slice with rows. `idle`: no input is available at the end of a batch, so a
    no-data batch may run. `back_to_back`: the next slice is already available, so a no-data batch runs only at the end
    of the stream, with `--drain`."""


class TimeBounds(Settings):
    """Range of accepted times. Rows outside it are rejected and do not advance the watermark."""

    earliest: Instant = datetime(1970, 1, 1, tzinfo=UTC)
    """Earliest accepted time (inclusive)."""
    latest: Instant = datetime(2100, 1, 1, tzinfo=UTC)
    """Latest accepted time (exclusive)."""
    max_ahead_of_arrival: Duration = timedelta(days=1)
    """Maximum time by which an event time may be after its row's arrival (inclusive). Arrival clock only."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.earliest >= self.latest:
            raise ValueError("earliest must be before latest, because no row could be between them")
        if self.max_ahead_of_arrival < timedelta():
            raise ValueError("max_ahead_of_arrival must not be negative")
        return self


@dataclass(frozen=True)
class CommandArgument:
    """Argument with which the command `tidemark` finds a pipeline file. Equal for all files: it is no setting."""

    text: str = field(compare=False)


class Pipeline(Settings):
    """Content of a pipeline file."""

    name: str = Name
    dialect: Dialect
    """Engine whose rules decide which rows are late, kept and matched."""
    flink_version: Version | None = None
    """Flink version of the streaming job, in quotes. Settings that are not set get the defaults of this version."""
    left: Input
    """Left input, or the name of a shared input."""
    right: Input
    """Right input, or the name of a shared input."""
    join: Join
    """Join condition."""
    slices: Slices
    """Slices of the pipeline's clock."""
    time_zone: TimeZone = "UTC"
    """flink-sql windows: IANA time zone in whose local time windows begin and end. It is `table.local-time-zone` of the
    streaming job if its event time is TIMESTAMP_LTZ."""
    restarts: list[Instant] = []
    """Intervals of Flink's dialects, and tumbling windows of flink-datastream: instants at which the streaming job
    continued from a checkpoint after a failure, with its state and without a watermark. Rows with this arrival time or
    a later one were read by the restarted job."""
    output: str = ""
    """Folder of the pipeline's tables, relative to the lake root. Default: the pipeline's name."""
    select: list[str] | dict[str, str] | None = None
    """Output columns: names such as left_carrier, or {name: SQL expression over left_* and right_* columns}. Default:
    all columns."""
    output_stream: bool = False
    """Write the table `output_stream`: emissions and watermarks in the order in which the streaming join emits them. It
    is the input of other pipelines (`left: {pipeline: NAME}`)."""
    explode: str | None = None
    """SQL expression that returns an array of structs for each pair, over left_* and right_* columns or over the arrays
    left and right of a coGroup. Each struct becomes an output row with its fields as columns, instead of one row per
    pair. Null and empty arrays give no row."""
    quality: list[Expectation] = []
    """Expectations on the inputs and the output, in addition to the invariants of the join."""
    quality_defaults: bool = True
    """Enable default warnings: row count or match rate below 50 % or above 200 % of the usual value for that time of
    day, a late-row share above 300 % of it, or rows far ahead of their arrival. Set to `off` to disable."""
    expectation_suite: str | None = None
    """Stored Great Expectations suite whose expectations are appended to `quality`: a .json file in the folder of this
    file, in the pipelines folder, or where the installation allows it (`TIDEMARK_ALLOWED_ROOTS`)."""
    notify: list[Receiver] = []
    """Receivers of validation results."""
    time_bounds: TimeBounds | None = TimeBounds()
    """Range of accepted event times and arrivals. Set to `off` for an exact replay."""
    watermark_strategy: WatermarkStrategy | None = None
    """Watermark of Flink's dialects. `datastream`: maximum event time - delay - 1 ms. `sql`: maximum event time -
    delay. Default: the dialect's own."""
    spark: SparkSettings = SparkSettings()
    """Dialect spark: settings of the streaming query."""
    on_late_arriving_rows: Literal["append", "reprocess"] = "append"
    """Handling of rows that arrive in an input after their slice was committed. `append`: they arrive at the start of
    the next slice that runs. `reprocess`: they wait, and `tidemark plan` proposes the slices to recompute."""
    on_input_delete: Literal["refuse", "ignore", "reprocess"] = "refuse"
    """Handling of input rows that were deleted or updated after a slice consumed them. `refuse`: stop and name the
    first affected slice. `ignore`: keep the published output; affected slices can no longer be recomputed.
    `reprocess`: recompute the affected slices first. An update is a deletion and a late-arriving row."""
    expose_row_values: bool = False
    """Enable row values in logs, the ledger and Data Docs: some values that fail an expectation, and some differing
    rows in the log of a saved comparison."""
    compare: CompareSettings | None = None
    """Streamed table of the same join to compare with, and the accepted differences."""
    compact: CompactionSettings | None = None
    """Small files that `tidemark tables compact` merges. Default: none."""
    retention: Retention = Retention()
    """Minimum ages of files that `tidemark tables vacuum` removes."""
    airflow: AirflowSettings = AirflowSettings()
    """Settings of the Airflow DAGs."""
    cluster: Cluster = Cluster()
    """Cluster resources of a job."""
    _command_argument: CommandArgument = PrivateAttr(CommandArgument(""))

    @model_validator(mode="before")
    @classmethod
    def _expand_short_forms(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        has_partitions = value.get("dialect") != "spark"
        inputs = {
            side: expand_kafka_arrival(value[side], has_partitions=has_partitions) for side in SIDES if side in value
        }
        value = {"output": value.get("name"), **_find_default_policies(value), **value, **inputs}
        if (has_bounds := parse_switch(value.get("time_bounds"))) is not None:
            value["time_bounds"] = {} if has_bounds else None
        match value:
            case {"dialect": "flink-sql", "join": {"event_time_equality": switch} as join} if parse_switch(switch):
                if not join.get("interval") and not join.get("window"):
                    interval = {"lower": timedelta(), "upper": timedelta()}
                    value["join"] = {**join, "event_time_equality": False, "interval": interval}
        match value:
            case {"dialect": "flink-sql", "flink_version": str(version), "join": {"interval": {}} as join}:
                value["join"] = flink_version_defaults(version) | join
        return value

    @field_validator("restarts")
    @classmethod
    def _sort_restarts(cls, value: list[datetime]) -> list[datetime]:
        return sorted(set(value))

    @field_validator("select")
    @classmethod
    def _check_select(cls, value: list[str] | dict[str, str] | None) -> list[str] | dict[str, str] | None:
        match value:
            case list(names):
                for name in names:
                    check_column(name)
            case dict(expressions):
                for name, expression in expressions.items():
                    if name.startswith("_"):
                        raise ValueError(f"{name}: names that begin with _ are Tidemark's. Use another one.")
                    try:
                        check_expression(expression)
                    except ValueError as error:
                        raise ValueError(f"{name}: {error}") from None
        return value

    @field_validator("explode")
    @classmethod
    def _check_explode(cls, value: str | None) -> str | None:
        if value is not None:
            check_expression(value)
        return value

    @field_validator("quality")
    @classmethod
    def _check_distinct(cls, value: list[Expectation]) -> list[Expectation]:
        checks = [expectation.check for expectation in value]
        for number, check in enumerate(checks, 1):
            if (first := checks.index(check) + 1) < number:
                raise ValueError(
                    f"expectation {number} ({check[0]}) is the same check as expectation {first}, with the same "
                    "severity. Remove one of them."
                )
        return value

    @model_validator(mode="after")
    def _check_output_columns(self) -> Self:
        if self.explode is not None and self.select is not None:
            raise ValueError(
                "explode: cannot be combined with select. Name the output columns by the fields of its structs."
            )
        return self

    @model_validator(mode="after")
    def _check_clock(self) -> Self:
        if (self.left.arrival is None) != (self.right.arrival is None):
            present, absent = ("left", "right") if self.left.arrival else ("right", "left")
            raise ValueError(
                f"{present} has an arrival column and {absent} has none. Set it on both for the arrival clock, or on "
                "neither for the event-time clock."
            )
        sources = (self.left, self.right)
        checkpoints = {
            source.arrival.streaming_checkpoint for source in sources if isinstance(source.arrival, CheckpointArrival)
        }
        if len(checkpoints) > 1 or (
            checkpoints and not all(isinstance(source.arrival, CheckpointArrival) for source in sources)
        ):
            raise ValueError(
                "arrival: a streaming checkpoint describes both inputs. Set the same streaming_checkpoint on both."
            )
        for side, source in zip(SIDES, sources, strict=True):
            if checkpoints and source.complete:
                raise ValueError(f"{side}.complete: has no effect with a streaming checkpoint. Remove it.")
        if checkpoints and "micro_batches" in self.spark.model_fields_set:
            raise ValueError("spark.micro_batches: has no effect with a streaming checkpoint. Remove it.")
        if checkpoints and self.dialect != "spark":
            raise ValueError(f"arrival: only dialect spark has streaming checkpoints. Set a column for {self.dialect}.")
        return self

    @model_validator(mode="after")
    def _check_compare_interval(self) -> Self:
        every = self.compare and self.compare.every
        if every and self.slices.time_zone != "UTC" and every != DAY:
            raise ValueError(
                f"compare.every ({format_duration(every)}) differs from the slices, which are days of "
                f"{self.slices.time_zone}. Set it to 1 day."
            )
        if every and every % self.slices.every:
            raise ValueError(
                f"compare.every ({format_duration(every)}) is not a multiple of slices.every "
                f"({format_duration(self.slices.every)}). Change one of them."
            )
        return self

    @model_validator(mode="after")
    def _check_watched_inputs(self) -> Self:
        if not self.airflow.watch_inputs:
            return self
        for side in SIDES:
            source: Input = getattr(self, side)
            has_rule = source.complete is not None and source.complete.by != "asset"
            if not (has_rule or source.upstream or isinstance(source.arrival, CheckpointArrival)):
                raise ValueError(
                    f"airflow.watch_inputs: {side}.complete is missing or waits for an asset, so a slice could run "
                    f"before its rows are there. Set {side}.complete to row, commit or a marker."
                )
        return self

    @model_validator(mode="after")
    def _check_compaction_period(self) -> Self:
        if self.compact:
            self.compact.check_period(self.slices.every)
        return self

    @model_validator(mode="after")
    def _check_dialect_support(self) -> Self:
        for name in ("flink_version", "watermark_strategy") if self.dialect == "spark" else ():
            if getattr(self, name):
                raise ValueError(f"{name}: has no effect in dialect spark. Remove it.")
        check_join(self.dialect, self.join)
        check_watermarks(self)
        check_time_zone(self)
        check_restarts(self)
        check_chain(self)
        return self

    def with_command_argument(self, argument: str) -> Self:
        """Return a copy with the argument with which the command `tidemark` finds its file."""
        copy = self.model_copy()
        copy._command_argument = CommandArgument(argument)  # noqa: SLF001 - of the same class
        return copy

    @property
    def command_argument(self) -> str:
        """Argument with which the command `tidemark` finds the file: a name or a path. Without a file, the name."""
        return self._command_argument.text or self.name

    @property
    def checkpoint_arrival(self) -> CheckpointArrival | None:
        """Checkpoint that determines arrival times; None if a column or the event time does."""
        return self.left.arrival if isinstance(self.left.arrival, CheckpointArrival) else None

    @property
    def clock(self) -> Literal["arrival", "event-time"]:
        """Time that slices cut."""
        return "arrival" if self.left.arrival else "event-time"

    @property
    def recorded_watermark_sides(self) -> tuple[SideName, ...]:
        """Inputs with recorded watermarks."""
        return tuple(side for side in SIDES if getattr(self, side).recorded_watermark)

    @property
    def upstreams(self) -> dict[SideName, Upstream]:
        """Pipelines whose output is an input, by the side of the input."""
        inputs: dict[SideName, Input] = {"left": self.left, "right": self.right}
        return {side: source.upstream for side, source in inputs.items() if source.upstream}

    def get_clock_source(self, source: Input) -> str:
        """Return the source of an input's clock: a column, the path of a checkpoint, or the word commit."""
        match source.arrival or source.event_time:
            case CheckpointArrival(streaming_checkpoint=checkpoint):
                return checkpoint
            case CommitArrival():
                return COMMIT
            case clock:
                return clock.column

    @property
    def tick_micros(self) -> int:
        """Precision of event times in the dialect, in microseconds."""
        return TICK_MICROS[self.dialect]

    @property
    def can_join_null_times(self) -> bool:
        """True if a row with a null event time can take part; its clock must not be null."""
        if self.dialect == "flink-datastream":
            event_time_triggers = {"delta", "continuous_event_time"}
            return self.join.time == "processing" and self.join.effective_trigger.kind not in event_time_triggers
        return self.dialect == "spark" and self.clock == "arrival"

    @property
    def can_join_null_keys(self) -> bool:
        """True if a row with a null key can take part."""
        return can_join_null_keys(self.dialect)

    @property
    def window_time_zone(self) -> str | None:
        """Time zone in which windows begin and end; None for UTC."""
        return self.time_zone if self.join.window and self.time_zone != "UTC" else None

    @property
    def max_time_distance(self) -> timedelta | None:
        """Maximum distance between the event times of a pair; None if unlimited."""
        distance = self.join.max_time_distance
        return distance + _MAX_CLOCK_SHIFT if distance is not None and self.window_time_zone else distance

    def has_filter_before_watermark(self, source: Input) -> bool:
        """Return True if rows that an input's `where` removes count as missing from its table."""
        return source.where is not None and self.get_filter(source) == "before_watermark"

    def get_filter(self, source: Input) -> str:
        """Return the position of an input's filter, by default that of the dialect."""
        return source.filter or _DEFAULT_FILTER[self.dialect]

    def get_allowed_clock_skew(self, side: SideName) -> timedelta | None:
        """Return the time by which an input's event times may be after their arrival.

        None if no row of the input can move a watermark ahead of its arrival: slices cut event time, the join is on
        processing time, or the input has no watermark or is the output of another pipeline.
        """
        source: Input = getattr(self, side)
        has_watermark = not source.upstream and (self.dialect != "spark" or source.watermark_delay is not None)
        if source.arrival is None or self.join.time == "processing" or not has_watermark:
            return None
        default = max(_SKEW_PER_DELAY * (source.watermark_delay or timedelta()), self.slices.every)
        return source.allowed_clock_skew or default

    @property
    def default_expectations(self) -> list[Expectation]:
        """Warnings in addition to `quality`, without those that it has; empty with `quality_defaults: off`."""
        if not self.quality_defaults:
            return []
        sides_ahead = [side for side in SIDES if self.get_allowed_clock_skew(side) is not None]
        checks = [expectation.check for expectation in self.quality]
        return [default for default in create_default_expectations(sides_ahead) if default.check not in checks]

    @property
    def joins_union_of_inputs(self) -> bool:
        """True if the join reads both inputs as one stream, as windows of the DataStream API do."""
        return self.dialect == "flink-datastream" and self.join.window is not None

    @property
    def uses_processing_time_only(self) -> bool:
        """True if arrival is the only time of rows: Flink SQL on processing time."""
        return self.dialect == "flink-sql" and self.join.time == "processing"

    def output_affecting_settings(self, *, include_defaults: bool = False) -> dict[str, Any]:
        """Return the settings that affect output rows, JSON-ready.

        A slice can only continue from a slice that ran with equal output-affecting settings.
        """
        return self.model_dump(mode="json", exclude_defaults=not include_defaults, exclude=_NOT_OUTPUT_AFFECTING)
