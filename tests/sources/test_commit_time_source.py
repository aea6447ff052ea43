"""Rows that arrive with their commit give the results of a column with commit times."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark import SparkContext

from tidemark.config import with_overrides
from tidemark.config.types import to_micros
from tidemark.delta.commit_history import list_commits
from tidemark.errors import InputError, PipelineFileError
from tidemark.execution.run import execute
from tidemark.ledger.staleness import ConsumedVersions
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.sources.completeness import measure_completeness
from tidemark.sources.resolution import open_inputs
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN
from tidemark.spark.lazy_session import create_lazy_session
from tidemark.timegrid.slices import Grid

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
BY_COMMIT = {"left__arrival": "commit", "right__arrival": {"commit": True}}
BY_COLUMN = {"name": "by_column", "left__arrival": "arrived", "right__arrival": "arrived"}
SCHEMA = pa.schema(
    [("k", pa.string()), *((name, pa.timestamp("us", "UTC")) for name in ("happened", "arrived")), ("v", pa.int32())]
)


def at(minutes):
    return START + timedelta(minutes=minutes)


def set_last_commit_time(path, minutes):
    """Set the time of a table's last commit."""
    log = max((path / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for info in (line["commitInfo"] for line in lines if "commitInfo" in line):
        name = "inCommitTimestamp" if "inCommitTimestamp" in info else "timestamp"
        info[name] = int(at(minutes).timestamp() * 1000)
    log.write_text("\n".join(map(json.dumps, lines)))
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def append_rows(lake):
    """Append rows (key, minute of event time) by a commit at a minute, without Spark."""

    def write_rows(table, minutes, *rows, **options):
        records = [(key, at(happened), at(minutes), number) for number, (key, happened) in enumerate(rows)]
        write_deltalake(
            lake / table,
            pa.Table.from_pylist([dict(zip(SCHEMA.names, record, strict=True)) for record in records], SCHEMA),
            mode="append",
            **options,
        )
        set_last_commit_time(lake / table, minutes)

    return write_rows


@pytest.fixture
def inputs(append_rows):
    """Write two inputs of three hours; some left rows are late."""
    for minutes, *rows in ((5, ("a", 1), ("b", 4)), (40, ("a", 38)), (50, ("b", 2), ("a", 45)), (100, ("a", 99))):
        append_rows("left", minutes, *rows)
    for minutes, *rows in ((10, ("a", 0), ("b", 9)), (55, ("a", 50), ("b", 30)), (110, ("a", 95), ("b", 1))):
        append_rows("right", minutes, *rows)


@pytest.fixture
def run_until(spark, lake, pipeline):
    """Run a pipeline up to each hour and return its emissions and late rows, without names of runs."""

    def execute_plans(settings, *hours):
        for hour in hours:
            plan = create_plan(spark, settings, str(lake), Request(end=at(60 * hour)))
            list(execute(spark, plan, lambda *_: None))
        return read_results(plan)

    return execute_plans


def read_results(plan):
    emissions = pl.scan_delta(plan.tables.emissions)
    names = [name for name in emissions.collect_schema().names() if not name.startswith("_") or name == "_slice"]
    late = pl.scan_delta(plan.tables.late).select("reason", "side", "left", "right", "arrived_at", "watermark")
    return [sorted(map(str, rows.collect().rows())) for rows in (emissions.select(names), late)]


def plan_without_spark(settings, lake, **request):
    """Plan, and fail if Spark is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkContext, "_active_spark_context", None)
        return create_plan(
            create_lazy_session(lambda **_: pytest.fail("Spark was used")), settings, str(lake), Request(**request)
        )


def test_commit_arrival_equals_column_of_commit_times(spark, lake, pipeline, inputs, run_until):
    """Also after OPTIMIZE moved the rows to other files, and for reprocessed slices."""
    by_column = run_until(pipeline(**BY_COLUMN), 2)

    assert all(by_column)

    plan = plan_without_spark(pipeline(**BY_COMMIT), lake, end=at(120))
    assert (plan.slice_count, plan.spark_queries, plan.notes) == (2, (), ())
    assert [scan.rows for scan in plan.scan_estimates] == [6, 6]
    assert run_until(pipeline(**BY_COMMIT), 1) != by_column

    for side in ("left", "right"):
        DeltaTable(lake / side).optimize.compact()
        set_last_commit_time(lake / side, 150)
    assert run_until(pipeline(**BY_COMMIT), 2) == by_column

    reprocess = create_plan(spark, pipeline(**BY_COMMIT), str(lake), Request(start=at(0), reprocess=True))
    list(execute(spark, reprocess, lambda *_: None))

    assert reprocess.slice_count == 2
    assert read_results(reprocess) == by_column


def find_wrong_arrivals(spark, lake, settings, version=None):
    """Return left rows whose arrival differs from column `arrived`, and the number of all rows."""
    left, _ = open_inputs(spark, settings, str(lake))
    rows = left.table.read(version).select("k", "arrived", ARRIVAL_COLUMN).collect()
    return [row for row in rows if row["arrived"] != row[ARRIVAL_COLUMN]], len(rows)


def test_commit_arrival_with_table_features_has_exact_times(spark, tmp_path, pipeline):
    lake = tmp_path / "100%25 of é (ü) + 'x'"
    table = f"delta.`{lake}/left`"
    spark.sql(
        f"CREATE TABLE {table} ({ROW}) USING delta PARTITIONED BY (k) TBLPROPERTIES "
        "('delta.enableDeletionVectors' = 'true', 'delta.enableInCommitTimestamps' = 'true')"
    )
    set_last_commit_time(lake / "left", 1)
    for minutes in (10, 20):
        rows = [(key, at(0), at(minutes), number) for number in range(4) for key in ("a b", "50%:+")]
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").mode("append").save(str(lake / "left"))
        set_last_commit_time(lake / "left", minutes)
    for minutes, change in ((30, "DELETE FROM {} WHERE v = 0"), (40, "UPDATE {} SET arrived = {} WHERE v = 1")):
        spark.sql(change.format(table, f"timestamp'{at(minutes):%Y-%m-%d %H:%M}'"))
        set_last_commit_time(lake / "left", minutes)
    shutil.copytree(lake / "left", lake / "right")
    settings = pipeline(**BY_COMMIT)

    assert find_wrong_arrivals(spark, lake, settings, version=2) == ([], 16)

    spark.sql(f"OPTIMIZE {table}")
    set_last_commit_time(lake / "left", 50)

    assert find_wrong_arrivals(spark, lake, settings) == ([], 12)

    left, _ = open_inputs(spark, settings, str(lake))
    late_arriving = left.changes.read_late_arriving_rows(
        Grid.from_config(settings.slices), 5, ConsumedVersions(((None, 1),), None)
    )
    minutes = sorted(row[ARRIVAL_COLUMN].minute for rows in late_arriving for row in rows.collect())

    assert minutes == [20] * 4 + [40] * 4


def test_row_tracking_preserves_arrival_through_update_merge_and_optimize(spark, lake, pipeline):
    table = f"delta.`{lake}/left`"
    spark.sql(
        f"CREATE TABLE {table} ({ROW}) USING delta TBLPROPERTIES "
        "('delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'false')"
    )
    set_last_commit_time(lake / "left", 1)
    for minutes in (10, 20):
        rows = [(key, at(0), at(minutes), number) for number, key in enumerate("abc")]
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").mode("append").save(str(lake / "left"))
        set_last_commit_time(lake / "left", minutes)
    changes = (
        (30, "OPTIMIZE {}"),
        (40, "UPDATE {} SET arrived = {} WHERE k = 'a'"),
        (50, "MERGE INTO {} t USING (SELECT 'b' AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET arrived = {}"),
    )
    for minutes, change in changes:
        spark.sql(change.format(table, f"timestamp'{at(minutes):%Y-%m-%d %H:%M}'"))
        set_last_commit_time(lake / "left", minutes)
    shutil.copytree(lake / "left", lake / "right")
    settings = pipeline(**BY_COMMIT)
    plan = plan_without_spark(settings, lake)

    assert (plan.slice_count, plan.notes) == (1, ())
    assert len(plan.inputs[0].statistics.files) == 1
    assert find_wrong_arrivals(spark, lake, settings) == ([], 6)


def test_update_without_row_tracking_rejects_slices_before_its_commit(lake, pipeline, inputs, append_rows):
    DeltaTable(lake / "left").update({"v": "9"}, predicate="k = 'b' AND v = 1")
    set_last_commit_time(lake / "left", 130)
    append_rows("left", 190, ("a", 185))
    settings = pipeline(**BY_COMMIT)

    with pytest.raises(
        InputError, match=r"exact only from 2024-01-01T02:10:00.001Z on, because version 4 \(UPDATE\)"
    ) as raised:
        plan_without_spark(settings, lake)
    assert "turn on delta.enableRowTracking before the next" in str(raised.value)
    assert "Let slices begin with 2024-01-01T03:00Z or later, or name an arrival column" in str(raised.value)

    plan = plan_without_spark(settings, lake, start=at(180), from_empty_state=True)
    assert plan.slice_count == 1
    assert any(note.startswith("arrivals of left are known from 2024-01-01T02:10:00.001Z on") for note in plan.notes)


def test_deleted_file_is_rejected_or_ignored_by_on_input_delete(lake, pipeline, inputs, append_rows, run_until):
    settings = pipeline(**BY_COMMIT)
    read = run_until(settings, 2)
    DeltaTable(lake / "left").delete("happened = '2024-01-01T01:39:00Z'")
    set_last_commit_time(lake / "left", 130)
    append_rows("right", 130, ("z", 129))

    with pytest.raises(InputError, match="left: version 4 .* slices from 2024-01-01T01:00Z on have"):
        run_until(settings, 3)
    assert run_until(pipeline(**BY_COMMIT, on_input_delete="ignore"), 3) == read


def test_vacuum_after_optimize_rejects_slices_of_moved_rows(lake, pipeline, inputs):
    table = DeltaTable(lake / "left")
    table.optimize.compact()
    set_last_commit_time(lake / "left", 150)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(
        InputError, match=r"exact only from .* because version 4 \(OPTIMIZE\) put rows of several commits"
    ):
        plan_without_spark(pipeline(**BY_COMMIT), lake)


def test_truncated_log_rejects_slices_before_exact_arrivals(lake, pipeline, inputs, append_rows):
    for side in ("left", "right"):
        DeltaTable(lake / side).create_checkpoint()
        for log in sorted((lake / side / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()
        append_rows(side, 190, ("a", 185))
    settings = pipeline(**BY_COMMIT)

    with pytest.raises(InputError, match="exact only from 2024-01-01T01:40Z on, because its log begins with version 3"):
        plan_without_spark(settings, lake)

    plan = plan_without_spark(settings, lake, start=at(120), from_empty_state=True)
    assert (plan.slice_count, plan.spark_queries) == (2, ())

    notes = [note.partition(" (keep")[0] for note in plan.notes if note.startswith("arrivals")]
    assert notes == [
        f"arrivals of {side} are known from 2024-01-01T01:{minute}Z on: its log begins with version {version}"
        for side, minute, version in (("left", 40, 3), ("right", 50, 2))
    ]

    for log in (lake / "left" / "_delta_log").glob("*.json"):
        log.unlink()
    with pytest.raises(InputError, match="the log of input left no longer has version"):
        plan_without_spark(settings, lake)


def test_list_commits_with_clock_going_back_stays_ordered(lake, append_rows):
    for minutes in (10, 5, 20):
        append_rows("left", minutes, ("a", 0))
    times = [record.committed_us for record in list_commits(str(lake / "left"), 2)]
    assert times == [to_micros(at(10)), to_micros(at(10)) + 1000, to_micros(at(20))]
    (lake / "left" / "_delta_log" / f"{1:020d}.json").write_text(json.dumps({"add": {"path": "x", "dataChange": True}}))
    with pytest.raises(InputError, match="version 1 of the table has no commit time"):
        list_commits(str(lake / "left"), 2)


def test_column_named_commit_makes_short_form_ambiguous(lake, pipeline):
    rows = pa.table({"k": ["a"], "commit": pa.array([at(5)], pa.timestamp("us", "UTC"))})
    for side in ("left", "right"):
        write_deltalake(lake / side, rows.append_column("happened", rows["commit"]))
        set_last_commit_time(lake / side, 70)

    with pytest.raises(
        InputError, match=r"input left has a column commit, so .* arrival: \{column: commit\}, or arrival"
    ):
        plan_without_spark(pipeline(**BY_COMMIT), lake)
    assert (
        plan_without_spark(pipeline(left__arrival={"commit": True}, right__arrival={"commit": True}), lake).slice_count
        == 2
    )

    by_column = {"column": "commit"}
    assert plan_without_spark(pipeline(left__arrival=by_column, right__arrival=by_column), lake).slice_count == 1

    write_deltalake(lake / "left", rows.rename_columns(["k", "_Arrival"]), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(InputError, match="input left has a column _Arrival, a name that Tidemark uses for arrivals"):
        plan_without_spark(
            pipeline(left__arrival={"commit": True}, left__event_time="_Arrival", right__arrival=by_column), lake
        )


def test_completeness_by_row_is_last_commit_time(lake, pipeline, inputs):
    (completeness,) = measure_completeness(pipeline(**BY_COMMIT, left__complete="row"), str(lake))
    assert (completeness.until, completeness.reason) == (at(100), "its last clock is 2024-01-01T01:40Z")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left__arrival": {"commit": False}}, "left.arrival.commit: should be True, not False"),
        ({"left__arrival": {"commit": True, "unit": "ms"}}, "left.arrival.unit: unknown field"),
        ({"left__arrival": "commit", "right__arrival": None}, "left has an arrival column and right has none"),
        (
            {"dialect": "spark", "left__arrival": "commit", "right__arrival": {"streaming_checkpoint": "checkpoint"}},
            "arrival: a streaming checkpoint describes both inputs",
        ),
        (
            {
                "dialect": "flink-sql",
                "left": {"table": "left", "event_time": "happened", "arrival": "commit"},
                "right": {"table": "right", "event_time": "arrived", "arrival": "arrived"},
                "join__time": "processing",
            },
            "left.arrival: must be a column on processing time, which event_time can name too",
        ),
    ],
)
def test_invalid_combinations_of_arrival_settings_are_rejected(pipeline, changes, message):
    with pytest.raises(PipelineFileError, match=re.escape(message)):
        pipeline(**changes)


def test_short_and_long_form_of_commit_arrival_are_equal(pipeline):
    short_form, long_form = pipeline(left__arrival="commit", right__arrival="commit"), pipeline(**BY_COMMIT)
    assert short_form.output_affecting_settings() == long_form.output_affecting_settings()
    assert short_form.output_affecting_settings()["left"]["arrival"] == {"commit": True}
    assert (
        with_overrides(short_form, {"on_late_arriving_rows": "reprocess"}).output_affecting_settings()
        == short_form.output_affecting_settings()
    )
    assert (short_form.clock, short_form.get_clock_source(short_form.left)) == ("arrival", "commit")
