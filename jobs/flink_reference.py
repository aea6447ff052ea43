"""Run a Flink pipeline's join in a real Flink, into a Delta table for `compare`.

Flink runs in a virtual environment of its own: SQL for dialect flink-sql, and for windows of dialect flink-datastream a
job of the DataStream API. That is Java, because Flink's Python has neither coGroups nor evictors. Flink reads the
number, event time and keys of each row, in order, and writes the numbers of the rows that it has joined; their columns
are looked up.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.comparison.compared_columns import NOT_COMPARED
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.sides import SIDES
from tidemark.delta.paths import resolve_lake_root
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import FaultError, TidemarkError, UserError
from tidemark.joins.keys import key_columns
from tidemark.joins.output_schema import check_expressions, select_emissions
from tidemark.joins.window_output import SEMI_ANTI_TYPES
from tidemark.sources.resolution import open_inputs
from tidemark.spark.session import get_spark_session
from tidemark.streaming.flink_query import ANSWER, FlinkQuery, create_flink_query
from tidemark.streaming.flink_windows import create_window_settings
from tidemark.streaming.replay_source import number_rows, read_rows_in_slices
from tidemark.timegrid.slices import Grid

PROJECT = Path(__file__).resolve().parents[1]
FLINK = PROJECT / ".venv-flink" / "bin" / "python"
"""The interpreter with Flink."""
_WINDOWS = PROJECT / "jobs" / "FlinkWindows.java"
_OPENED_PACKAGES = ("java.base/java.util=ALL-UNNAMED", "java.base/java.lang=ALL-UNNAMED")
"""Packages that Flink's serializers access."""


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

    The table contains the columns of `emissions` that an engine can provide. Rejected rows are left out, because they
    would fail Flink's job.

    Raises:
        PipelineFileError: Flink does not support the dialect, or cannot run the join this way.
        InputError: an input is missing or unusable.
        UserError: Flink is not installed.
        FaultError: Flink failed.
    """
    began = time.monotonic()
    table = f"{PipelineTables.from_config(pipeline, lake).live_query}/emissions"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        window_settings = create_window_settings(pipeline) if pipeline.dialect == "flink-datastream" else None
        query = None
        if window_settings is None:
            query = create_flink_query(pipeline, str(folder / "rows"), str(folder / "answer"))
        if not FLINK.exists():
            raise UserError(f"Flink is not installed in {FLINK.parents[1].name}. Run make flink-reference.")
        grid, inputs = Grid.from_config(pipeline.slices), open_inputs(spark, pipeline, lake)
        check_expressions(spark, pipeline, grid, *(source.side.schema for source in inputs))
        valid = read_rows_in_slices(inputs, grid).where("rejected IS NULL")
        number_rows(valid, "number").write.parquet(str(folder / "numbered"))
        rows = spark.read.parquet(str(folder / "numbered"))
        (folder / "answer").mkdir()
        if window_settings:
            _run_windows(window_settings, rows, folder)
        elif query:
            _run_query(query, rows, folder)
        answer = spark.read.schema(ANSWER).json(str(folder / "answer"))
        joined = select_emissions(_look_up_rows(answer, rows, pipeline), pipeline, grid).drop(*NOT_COMPARED)
        joined.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table)
        rows_read = rows.count()
    written = spark.read.format("delta").load(table).count()
    return FlinkReferenceResult(table, rows_read, written, round(time.monotonic() - began, 1))


def _run_query(query: FlinkQuery, rows: DataFrame, folder: Path) -> None:
    """Run Flink SQL over rows in files."""
    keys = (F.col(name).cast("string").alias(name) for name in key_columns(rows))
    event_ms = F.col("event_time").alias("event_ms")
    result = rows.select("side", "number", event_ms, *keys).orderBy("number").coalesce(1)
    # One file, compressed: Flink does not split such a file, and reads it in the order in which it was written.
    result.write.option("compression", "gzip").json(str(folder / "rows"))
    (folder / "query.json").write_text(json.dumps(asdict(query)), encoding="utf-8")
    _run_process(FLINK, PROJECT / "jobs" / "flink_process.py", folder / "query.json")


def _run_windows(settings: dict[str, int], rows: DataFrame, folder: Path) -> None:
    """Run a job of the DataStream API over a file with a line per row, and one before those of each instant."""
    if not (compiler := shutil.which("javac")):
        raise UserError("javac, which compiles Flink's windows, is not installed. Install a JDK 17, not a JRE.")
    jars = f"{next(FLINK.parents[1].glob('lib/python*/site-packages/pyflink/lib'))}/*"
    _run_process(compiler, "-nowarn", "-d", folder, "-cp", jars, _WINDOWS)
    keys = (F.coalesce(F.base64(F.col(name).cast("string").cast("binary")), F.lit("-")) for name in key_columns(rows))
    columns = rows.select("side", "number", "event_time", F.concat_ws(":", *keys), "clock", "tiebreak")
    instant = None
    with (folder / "rows").open("w", encoding="utf-8") as lines:
        for *values, clock, tiebreak in columns.orderBy("number").collect():
            if (clock, tiebreak) != instant:
                lines.write("instant,0,0,\n")
                instant = clock, tiebreak
            lines.write(",".join(map(str, values)) + "\n")
    file = folder / "settings"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    opened = [option for package in _OPENED_PACKAGES for option in ("--add-opens", package)]
    java = Path(compiler).with_name("java")
    output = folder / "answer/pairs"
    _run_process(java, *opened, "-cp", f"{folder}:{jars}", _WINDOWS.stem, file, folder / "rows", output)


def _run_process(*command: Path | str) -> None:
    if (code := subprocess.run(command, check=False).returncode) != 0:  # noqa: S603 - all of it is ours
        raise FaultError(f"Flink failed with exit code {code}. Its output is above.")


def _look_up_rows(answer: DataFrame, rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Return Flink's output in the form of a replay; columns that no engine provides are null."""
    is_alone = {side: F.col(f"{other}_number").isNull() for side, other in (SIDES, reversed(SIDES))}
    emission = F.when(is_alone["left"], "padded_left").when(is_alone["right"], "padded_right").otherwise("matched")
    if pipeline.join.type in SEMI_ANTI_TYPES:
        emission = F.lit(pipeline.join.type)
    bounds = {name: F.unix_millis(F.to_timestamp(name)) for name in ("window_start", "window_end")}
    nulls = dict.fromkeys(("slice", "pane", "result_time"), F.lit(None).cast("long"))
    for side in SIDES:
        in_side = rows.where(F.col("side") == side).select(F.col("number").alias(f"{side}_number"), side)
        answer = answer.join(in_side, f"{side}_number", "left")
    return answer.withColumns({**bounds, **nulls, "emission": emission})


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
    print(f"Compare: tidemark run {arguments.pipeline} --drain")
    print(f"         tidemark compare run {arguments.pipeline} --with {result.table}")


if __name__ == "__main__":
    main()
