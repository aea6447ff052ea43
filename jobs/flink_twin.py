"""The streaming twin of a Flink pipeline: its join run by a real Flink, into a Delta table for `compare`.

Flink runs beside Spark, in a virtual environment of its own: SQL for dialect flink-sql, and for windows of dialect
flink-datastream a job of the DataStream API, which is Java, because Flink's Python has neither coGroups nor evictors.
It is given the number, event time and keys of each row, in order, and answers with the numbers of the rows that it has
joined; their columns are looked up.
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

from tidemark.comparison.compare import NOT_COMPARED
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.sides import SIDES
from tidemark.delta.paths import lake_root
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import FaultError, TidemarkError, UserError
from tidemark.joins.keys import key_columns
from tidemark.joins.output_schema import check_expressions, emissions
from tidemark.joins.window_output import HALVES
from tidemark.sources.stored_input import stored_inputs
from tidemark.spark.session import spark_session
from tidemark.streaming.flink_query import ANSWER, FlinkQuery, flink_query
from tidemark.streaming.flink_windows import flink_windows
from tidemark.streaming.replay_source import numbered, rows_in_slices
from tidemark.timegrid.slices import Grid

PROJECT = Path(__file__).resolve().parents[1]
FLINK = PROJECT / ".venv-flink" / "bin" / "python"
"""The interpreter that has Flink."""
_WINDOWS = PROJECT / "jobs" / "FlinkWindows.java"
_OPENED = ("java.base/java.util=ALL-UNNAMED", "java.base/java.lang=ALL-UNNAMED")
"""What Flink's serializers look into."""


@dataclass(frozen=True)
class TwinResult:
    """What a twin has done."""

    table: str
    given: int
    """Rows that Flink has read."""
    rows: int
    """That the table holds."""
    seconds: float
    """How long it took in all, Flink's start included."""


def twin(spark: SparkSession, pipeline: Pipeline, lake: str) -> TwinResult:
    """Run a pipeline's join in Flink until its inputs end; the table it wrote before is replaced.

    The table has the columns of `emissions` that an engine can tell. Rows that are rejected take no part: they would
    end Flink's job.

    Raises:
        PipelineFileError: of a dialect without a Flink, or a join that Flink cannot run this way.
        InputError: an input does not serve.
        UserError: there is no Flink here.
        FaultError: Flink failed.
    """
    began = time.monotonic()
    table = f"{PipelineTables.of(pipeline, lake).twin}/emissions"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = flink_windows(pipeline) if pipeline.dialect == "flink-datastream" else None
        query = None if asked else flink_query(pipeline, str(folder / "rows"), str(folder / "answer"))
        if not FLINK.exists():
            raise UserError(f"there is no Flink in {FLINK.parents[1].name}; run make flink-twin, which installs it")
        grid, inputs = Grid.of(pipeline.slices), stored_inputs(spark, pipeline, lake)
        check_expressions(spark, pipeline, grid, *(source.side.schema for source in inputs))
        numbered(rows_in_slices(inputs, grid).where("rejected IS NULL"), "number").write.parquet(
            str(folder / "numbered")
        )
        rows = spark.read.parquet(str(folder / "numbered"))
        (folder / "answer").mkdir()
        if asked:
            _run_windows(asked, rows, folder)
        elif query:
            _run_query(query, rows, folder)
        answer = spark.read.schema(ANSWER).json(str(folder / "answer"))
        joined = emissions(_looked_up(answer, rows, pipeline), pipeline, grid).drop(*NOT_COMPARED)
        joined.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table)
        given = rows.count()
    return TwinResult(table, given, spark.read.format("delta").load(table).count(), round(time.monotonic() - began, 1))


def _run_query(query: FlinkQuery, rows: DataFrame, folder: Path) -> None:
    """Flink SQL, over rows in files."""
    keys = (F.col(name).cast("string").alias(name) for name in key_columns(rows))
    event_ms = F.col("event_time").alias("event_ms")
    result = rows.select("side", "number", event_ms, *keys).orderBy("number").coalesce(1)
    # One file, compressed: Flink splits no such file, and reads it in the order in which it was written.
    result.write.option("compression", "gzip").json(str(folder / "rows"))
    (folder / "query.json").write_text(json.dumps(asdict(query)), encoding="utf-8")
    _flink(FLINK, PROJECT / "jobs" / "flink_process.py", folder / "query.json")


def _run_windows(asked: dict[str, int], rows: DataFrame, folder: Path) -> None:
    """The DataStream API, over lines: of each row, and before those of each instant."""
    if not (compiler := shutil.which("javac")):
        raise UserError("there is no javac, which compiles Flink's windows; install a JDK 17 and not its runtime alone")
    jars = f"{next(FLINK.parents[1].glob('lib/python*/site-packages/pyflink/lib'))}/*"
    _flink(compiler, "-nowarn", "-d", folder, "-cp", jars, _WINDOWS)
    keys = (F.coalesce(F.base64(F.col(name).cast("string").cast("binary")), F.lit("-")) for name in key_columns(rows))
    chosen = rows.select("side", "number", "event_time", F.concat_ws(":", *keys), "clock", "tiebreak")
    before = None
    with (folder / "rows").open("w", encoding="utf-8") as lines:
        for *told, clock, tiebreak in chosen.orderBy("number").collect():
            if (clock, tiebreak) != before:
                lines.write("instant,0,0,\n")
                before = clock, tiebreak
            lines.write(",".join(map(str, told)) + "\n")
    settings = folder / "settings"
    settings.write_text("".join(f"{name}={value}\n" for name, value in asked.items()), encoding="utf-8")
    opened = [option for package in _OPENED for option in ("--add-opens", package)]
    java = Path(compiler).with_name("java")
    _flink(java, *opened, "-cp", f"{folder}:{jars}", _WINDOWS.stem, settings, folder / "rows", folder / "answer/pairs")


def _flink(*process: Path | str) -> None:
    if (ended := subprocess.run(process, check=False).returncode) != 0:  # noqa: S603 - all of it is ours
        raise FaultError(f"Flink did not come to an end (exit code {ended}); above is what it said")


def _looked_up(answer: DataFrame, rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Flink's answer as a replay would have it (`joins.base.EMISSION`); what no engine tells is null."""
    alone = {side: F.col(f"{other}_number").isNull() for side, other in (SIDES, reversed(SIDES))}
    emission = F.when(alone["left"], "padded_left").when(alone["right"], "padded_right").otherwise("matched")
    if pipeline.join.type in HALVES:
        emission = F.lit(pipeline.join.type)
    bounds = {name: F.unix_millis(F.to_timestamp(name)) for name in ("window_start", "window_end")}
    none = dict.fromkeys(("slice", "pane", "result_time"), F.lit(None).cast("long"))
    for side in SIDES:
        mine = rows.where(F.col("side") == side).select(F.col("number").alias(f"{side}_number"), side)
        answer = answer.join(mine, f"{side}_number", "left")
    return answer.withColumns({**bounds, **none, "emission": emission})


def main() -> None:
    """Run a twin, and say what to compare it with."""
    parser = argparse.ArgumentParser(prog="python -m jobs.flink_twin", description=__doc__)
    parser.add_argument("pipeline", help="a pipeline file, or the name of one")
    parser.add_argument("--lake", help="lake root (default: $TIDEMARK_LAKE, or ./lake)")
    asked = parser.parse_args()
    try:
        pipeline, lake = load_pipeline(asked.pipeline), lake_root(asked.lake)
        result = twin(spark_session("flink twin"), pipeline, lake)
    except TidemarkError as error:
        print(f"flink-twin: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"{pipeline.name}: Flink read {result.given:,} rows and wrote {result.rows:,} in {result.seconds:,.1f} s")
    print(f"Table:   {result.table}")
    print(f"Compare: tidemark run {asked.pipeline} --drain")
    print(f"         tidemark compare {asked.pipeline} --with {result.table}")


if __name__ == "__main__":
    main()
