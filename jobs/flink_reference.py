"""Run a pipeline's join, with those before it in a chain, in a real Flink, into a Delta table for `compare`.

Flink runs in a virtual environment of its own, as one of three jobs:

- Flink SQL over rows in the order of event time, for flink-sql without arrivals;
- windows of flink-datastream with their triggers and evictors, in the order of the pipeline's clock
  (`FlinkWindows.java`);
- all others in the order of the pipeline's clock, instant by instant (`flink_streams.py`): flink-sql by arrival,
  intervals of flink-datastream, and chains.

The last two are Java, because Flink's Python lacks parts of the DataStream API. Flink reads the number, event time and
keys of each row, and writes the numbers of the rows that it has joined; their columns are looked up.
"""

import argparse
import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial, reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.flink_java import FLINK, require_flink, run_java, run_process
from jobs.flink_keys import encode_keys, list_input_keys
from jobs.flink_streams import FlinkStreams
from tidemark.comparison.compared_columns import NOT_COMPARED
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.output_stream import ORDER_STEPS, OUTPUT_STREAM_COLUMNS, compute_depth
from tidemark.config.sides import OTHER, SIDES
from tidemark.delta.paths import resolve_lake_root
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import PipelineFileError, TidemarkError
from tidemark.formatting import quote_identifier
from tidemark.joins.join_type import SEMI_ANTI_TYPES
from tidemark.joins.keys import key_name
from tidemark.joins.output_schema import (
    check_expressions,
    flatten_emissions,
    list_provenance_columns,
    select_emissions,
    select_output,
)
from tidemark.pipeline_tests.chain import TESTED, Chain, TableInput
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.session import get_spark_session
from tidemark.spark.temporary_settings import list_column_mapping_settings, override_settings
from tidemark.streaming.flink_query import ANSWER, FlinkQuery, create_flink_query
from tidemark.streaming.flink_windows import create_window_settings
from tidemark.streaming.replay_source import number_rows, read_side_in_slices
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.exact import scale_tiebreak
from tidemark.watermarks.row_status import is_filtered, moves_watermark

_KEPT = "_kept_"
"""Prefix of columns that are not part of a join's output, while it is selected."""


@dataclass(frozen=True)
class FlinkReferenceResult:
    """Result of a Flink reference job."""

    table: str
    rows_read: int
    """Number of rows that Flink has read."""
    rows: int
    """Number of rows in the table."""
    seconds: float
    """Total run time, Flink's start included."""


def run_flink_reference(spark: SparkSession, pipeline: Pipeline, lake: str) -> FlinkReferenceResult:
    """Run a pipeline's join in Flink until its inputs end, and replace the output table.

    If the pipeline reads the output of others, their joins run in the same Flink job. The table contains the columns of
    `emissions` that an engine can provide. Rejected rows are left out, because they would fail Flink's job.

    Raises:
        PipelineFileError: Flink does not support the dialect, or cannot run the join this way.
        InputError: An input is missing or unusable.
        UserError: Flink is not installed.
        FaultError: Flink failed.
    """
    start = time.monotonic()
    table = f"{PipelineTables.from_config(pipeline, lake).live_query}/emissions"
    chain = Chain.from_pipeline(pipeline)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_job = choose_job(chain, folder)
        require_flink()
        grid = Grid.from_config(pipeline.slices)
        inputs = {join: open_inputs(spark, each, lake) for join, each in chain.joins.items()}
        for join, each in chain.joins.items():
            check_expressions(spark, each, grid, *(source.side.schema for source in inputs[join]))
        _number_rows(chain, inputs, grid).write.parquet(str(folder / "numbered"))
        rows = spark.read.parquet(str(folder / "numbered"))
        joined = _look_up_rows(run_job(rows), rows, chain, grid).drop(*NOT_COMPARED)
        with override_settings(spark, list_column_mapping_settings(joined.schema)):
            joined.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table)
        rows_read = rows.where(~F.col("is_filtered")).count()
    written = spark.read.format("delta").load(table).count()
    return FlinkReferenceResult(table, rows_read, written, round(time.monotonic() - start, 1))


def choose_job(chain: Chain, folder: Path) -> Callable[[DataFrame], DataFrame]:
    """Return the function that runs the job of a chain over its numbered rows.

    It returns a row for each row of the output: a column `number_INDEX` per input of the chain, null if absent, and
    `window_start` and `window_end` in ms, null without windows.

    Raises:
        PipelineFileError: Flink cannot run the join.
    """
    pipeline = chain.pipeline
    for each in chain.joins.values():
        if name := _find_unknown_column(each, is_last=each is pipeline):
            raise PipelineFileError(
                f"{each.name} selects {name}, which Flink does not provide. Leave it out of `select`."
            )
    if not pipeline.upstreams and pipeline.dialect == "flink-datastream" and pipeline.join.window:
        return partial(_run_windows, create_window_settings(pipeline), folder)
    if not pipeline.upstreams and pipeline.dialect == "flink-sql" and pipeline.clock == "event-time":
        query = create_flink_query(pipeline, str(folder / "rows"), str(folder / "answer"))
        return partial(_run_query, query, len(pipeline.join.keys), folder)
    return partial(FlinkStreams(chain).run, folder=folder)


def _find_unknown_column(pipeline: Pipeline, *, is_last: bool) -> str | None:
    """Return a name in a pipeline's `select` that only Tidemark provides, or that is known of the last join only."""
    selected = pipeline.select.values() if isinstance(pipeline.select, dict) else pipeline.select or ()
    unknown = {*NOT_COMPARED, *OUTPUT_STREAM_COLUMNS}
    upstream_bounds = {"_window_start", "_window_end"}
    names: list[str] = re.findall(r"\w+", " ".join(selected))
    for name in names:
        column = re.sub(r"^((left|right)_)*(?=_)", "", name)
        if column in unknown or (column in upstream_bounds and not (is_last and column == name)):
            return name
    return None


def _number_rows(chain: Chain, inputs: Mapping[str, tuple[StoredInput, StoredInput]], grid: Grid) -> DataFrame:
    """Read the rows of all tables that Flink reads, and number them in order.

    Returns:
        `input` (name), `side`, `number`, `clock`, `tiebreak`, `event_time`, `keys` (of `flink_keys.encode_keys`),
        `is_filtered` for rows that only move the watermark, and a column `row_INDEX` per input of the chain with the
        row.
    """
    frames, order_factor = [], ORDER_STEPS ** compute_depth(chain.pipeline)
    input_keys = list_input_keys(chain)
    for index, table in enumerate(chain.inputs):
        source = inputs[table.join][SIDES.index(table.side)]
        keys = input_keys[table.name]
        tiebreak, factor = F.col("tiebreak"), order_factor // source.side.order_factor
        if factor > 1:
            tiebreak = scale_tiebreak(tiebreak, factor)
        types = [inputs[key.join][SIDES.index(key.side)].side.keys[key.number][1] for key in keys]
        frames.append(
            read_side_in_slices(source, grid)
            .where(moves_watermark() & F.col("event_time").isNotNull())
            .select(
                F.lit(table.name).alias("input"),
                "side",
                "clock",
                tiebreak.alias("tiebreak"),
                "event_time",
                encode_keys(keys, types, table.side).alias("keys"),
                is_filtered().alias("is_filtered"),
                F.col(table.side).alias(f"row_{index}"),
            )
        )
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    return number_rows(rows, "number")


def _run_query(query: FlinkQuery, key_count: int, folder: Path, rows: DataFrame) -> DataFrame:
    """Run Flink SQL over rows in files."""
    keys = (F.col("keys")[number].alias(key_name(number)) for number in range(key_count))
    event_ms = F.col("event_time").alias("event_ms")
    # In this order, no row depends on a watermark.
    joined = rows.where(~F.col("is_filtered"))
    result = joined.select("side", "number", event_ms, *keys).orderBy("number").coalesce(1)
    # One file, compressed: Flink does not split such a file, and reads it in the order in which it was written.
    result.write.option("compression", "gzip").json(str(folder / "rows"))
    (folder / "query.json").write_text(json.dumps(asdict(query)), encoding="utf-8")
    run_process(FLINK, Path(__file__).with_name("flink_process.py"), folder / "query.json")
    return _read_answer(rows.sparkSession, folder)


def _run_windows(settings: dict[str, int], folder: Path, rows: DataFrame) -> DataFrame:
    """Run a job of the DataStream API. Write a line per row, and a line `instant` before the rows of each instant."""
    number = F.when(F.col("is_filtered"), -1).otherwise(F.col("number"))
    ordered = rows.orderBy("number")
    columns = ordered.select("side", number, "event_time", F.concat_ws(":", "keys"), "clock", "tiebreak")
    instant = None
    with (folder / "rows").open("w", encoding="utf-8") as lines:
        for *values, clock, tiebreak in columns.toLocalIterator():
            if (clock, tiebreak) != instant:
                lines.write("instant,0,0,\n")
                instant = clock, tiebreak
            lines.write(",".join(map(str, values)) + "\n")
    file = folder / "settings"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    (folder / "answer").mkdir()
    run_java("FlinkWindows", folder, file, folder / "rows", folder / "answer/pairs")
    return _read_answer(rows.sparkSession, folder)


def _read_answer(spark: SparkSession, folder: Path) -> DataFrame:
    answer = spark.read.schema(ANSWER).json(str(folder / "answer"))
    bounds = (F.unix_millis(F.to_timestamp(name)).alias(name) for name in ("window_start", "window_end"))
    numbers = (F.col(f"{side}_number").alias(f"number_{index}") for index, side in enumerate(SIDES))
    return answer.select(*numbers, *bounds)


def _look_up_rows(answer: DataFrame, rows: DataFrame, chain: Chain, grid: Grid) -> DataFrame:
    """Return the emissions of the last join of a chain for the row numbers that Flink has written."""
    for index, table in enumerate(chain.inputs):
        of_input = rows.where(F.col("input") == table.name)
        of_input = of_input.select(F.col("number").alias(f"number_{index}"), f"row_{index}")
        answer = answer.join(of_input, f"number_{index}", "left").drop(f"number_{index}")
    for join in chain.upstream_names:
        answer = _add_output(answer, chain, join, grid)
    return select_emissions(_to_replay(answer, chain, TESTED), chain.pipeline, grid)


def _add_output(answer: DataFrame, chain: Chain, join: str, grid: Grid) -> DataFrame:
    """Add the column `join_NAME` with the output row of a join before the last one.

    It is null if no row of this join is part of the last join's row.
    """
    pipeline, replay = chain.joins[join], _to_replay(answer, chain, join)
    kept = {f"{_KEPT}{name}": F.col(name) for name in answer.columns}
    is_present = F.col("left").isNotNull() | F.col("right").isNotNull()
    flat = flatten_emissions(replay, pipeline, grid, {**kept, f"{_KEPT}is_present": is_present})
    output = select_output(flat, pipeline)
    unknown = {*list_provenance_columns(pipeline)} - {"_emission"}
    names = [name for name in output.columns if not name.startswith(_KEPT) and name not in unknown]
    row = F.struct(*map(quote_identifier, names))
    before = (F.col(name).alias(name.removeprefix(_KEPT)) for name in kept)
    return output.select(*before, F.when(F.col(f"{_KEPT}is_present"), row).alias(f"join_{join}"))


def _to_replay(answer: DataFrame, chain: Chain, join: str) -> DataFrame:
    """Return the rows in the form of a replay of one join; columns that no engine provides are null."""
    pipeline = chain.joins[join]
    rows = {
        side: f"join_{pipeline.upstreams[side].pipeline}"
        if side in pipeline.upstreams
        else f"row_{chain.inputs.index(TableInput(join, pipeline, side))}"
        for side in SIDES
    }
    is_alone = {side: F.col(rows[other]).isNull() for side, other in OTHER.items()}
    emission = F.when(is_alone["left"], "padded_left").when(is_alone["right"], "padded_right").otherwise("matched")
    if pipeline.join.type in SEMI_ANTI_TYPES:
        emission = F.lit(pipeline.join.type)
    nulls = dict.fromkeys(("slice", "pane", "result_time"), F.lit(None).cast("long"))
    return answer.withColumns({**{side: F.col(name) for side, name in rows.items()}, **nulls, "emission": emission})


def main() -> None:
    """Run a Flink reference job, and print the command that compares with it."""
    parser = argparse.ArgumentParser(prog="python -m jobs.flink_reference", description=__doc__)
    parser.add_argument("pipeline", help="a pipeline file, or the name of a pipeline")
    parser.add_argument("--lake", help="lake root (default: $TIDEMARK_LAKE, or ./lake)")
    arguments = parser.parse_args()
    try:
        pipeline, lake = load_pipeline(arguments.pipeline), resolve_lake_root(arguments.lake)
        result = run_flink_reference(get_spark_session("flink reference"), pipeline, lake)
    except TidemarkError as error:
        print(f"flink-reference: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"{pipeline.name}: Flink read {result.rows_read:,} rows and wrote {result.rows:,} in {result.seconds:,.1f} s")
    print(f"Table:   {result.table}")
    selected = shlex.quote(arguments.pipeline) + (f" --lake {shlex.quote(arguments.lake)}" if arguments.lake else "")
    print(f"Compare: tidemark run {selected} --drain")
    print(f"         tidemark compare run {selected} --with {shlex.quote(result.table)}")


if __name__ == "__main__":
    main()
