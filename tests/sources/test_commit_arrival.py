"""Rows that arrive when their version was committed: the answer is that of a column which holds just that instant."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark import SparkContext

from tidemark.config import changed
from tidemark.config.types import micros
from tidemark.delta.commit_history import commits_up_to
from tidemark.errors import InputError, PipelineFileError
from tidemark.execution.run import execute
from tidemark.ledger.staleness import ConsumedVersions
from tidemark.planning.plan import Request, make_plan
from tidemark.sources.completeness import reaches
from tidemark.sources.stored_input import stored_inputs
from tidemark.sources.streaming_checkpoint_source import ARRIVAL
from tidemark.spark.lazy_session import deferred
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


def stamp(path, minutes):
    """Let the newest commit of a table have been made then."""
    log = max((path / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for info in (line["commitInfo"] for line in lines if "commitInfo" in line):
        name = "inCommitTimestamp" if "inCommitTimestamp" in info else "timestamp"
        info[name] = int(at(minutes).timestamp() * 1000)
    log.write_text("\n".join(map(json.dumps, lines)))
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def land(lake):
    """Commit rows (key, minute at which it happened) at a minute; without a writer of the JVM."""

    def append(table, minutes, *rows, **options):
        named = [(key, at(happened), at(minutes), number) for number, (key, happened) in enumerate(rows)]
        write_deltalake(
            lake / table, pa.Table.from_pylist([dict(zip(SCHEMA.names, one, strict=True)) for one in named], SCHEMA),
            mode="append", **options,
        )  # fmt: skip
        stamp(lake / table, minutes)

    return append


@pytest.fixture
def both(land):
    """Two inputs of three hours; some rows of the left are late."""
    for minutes, *rows in ((5, ("a", 1), ("b", 4)), (40, ("a", 38)), (50, ("b", 2), ("a", 45)), (100, ("a", 99))):
        land("left", minutes, *rows)
    for minutes, *rows in ((10, ("a", 0), ("b", 9)), (55, ("a", 50), ("b", 30)), (110, ("a", 95), ("b", 1))):
        land("right", minutes, *rows)


@pytest.fixture
def answer(spark, lake, pipeline):
    """What a pipeline gives, run up to each of some hours: its emissions and late rows, without what names the run."""

    def run(settings, *hours):
        for hour in hours:
            plan = make_plan(spark, settings, str(lake), Request(end=at(60 * hour)))
            list(execute(spark, plan, lambda *_: None))
        return told(plan)

    return run


def told(plan):
    emissions = pl.scan_delta(plan.tables.emissions)
    names = [name for name in emissions.collect_schema().names() if not name.startswith("_") or name == "_slice"]
    late = pl.scan_delta(plan.tables.late).select("reason", "side", "left", "right", "arrived_at", "watermark")
    return [sorted(map(str, rows.collect().rows())) for rows in (emissions.select(names), late)]


def plain(settings, lake, **request):
    """A plan that Spark takes no part in."""
    with pytest.MonkeyPatch.context() as alone:
        alone.setattr(SparkContext, "_active_spark_context", None)
        return make_plan(deferred(lambda **_: pytest.fail("Spark was asked")), settings, str(lake), Request(**request))


def test_the_answer_is_that_of_a_column_with_each_commits_time(spark, lake, pipeline, both, answer):
    """Whatever files the rows are in since, though slices run again: rows that OPTIMIZE moved are read as they were."""
    by_column = answer(pipeline(**BY_COLUMN), 2)
    assert all(by_column)
    plan = plain(pipeline(**BY_COMMIT), lake, end=at(120))
    assert (plan.slices, plan.asked, plan.notes) == (2, (), ())
    assert [scan.rows for scan in plan.scans] == [6, 6]
    assert answer(pipeline(**BY_COMMIT), 1) != by_column
    for side in ("left", "right"):
        DeltaTable(lake / side).optimize.compact()
        stamp(lake / side, 150)
    assert answer(pipeline(**BY_COMMIT), 2) == by_column
    again = make_plan(spark, pipeline(**BY_COMMIT), str(lake), Request(start=at(0), reprocess=True))
    list(execute(spark, again, lambda *_: None))
    assert again.slices == 2
    assert told(again) == by_column


def arrivals(spark, lake, settings, version=None):
    """The rows of the left input whose arrival is not what their column says, and how many there are."""
    left, _ = stored_inputs(spark, settings, str(lake))
    rows = left.table.read(version).select("k", "arrived", ARRIVAL).collect()
    return [row for row in rows if row["arrived"] != row[ARRIVAL]], len(rows)


def test_in_commit_timestamps_partitions_deletion_vectors_and_odd_names(spark, tmp_path, pipeline):
    lake = tmp_path / "100%25 of é (ü) + 'x'"
    table = f"delta.`{lake}/left`"
    spark.sql(
        f"CREATE TABLE {table} ({ROW}) USING delta PARTITIONED BY (k) TBLPROPERTIES "
        "('delta.enableDeletionVectors' = 'true', 'delta.enableInCommitTimestamps' = 'true')"
    )
    stamp(lake / "left", 1)
    for minutes in (10, 20):
        rows = [(key, at(0), at(minutes), number) for number in range(4) for key in ("a b", "50%:+")]
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").mode("append").save(str(lake / "left"))
        stamp(lake / "left", minutes)
    for minutes, change in ((30, "DELETE FROM {} WHERE v = 0"), (40, "UPDATE {} SET arrived = {} WHERE v = 1")):
        spark.sql(change.format(table, f"timestamp'{at(minutes):%Y-%m-%d %H:%M}'"))
        stamp(lake / "left", minutes)
    shutil.copytree(lake / "left", lake / "right")
    settings = pipeline(**BY_COMMIT)
    assert arrivals(spark, lake, settings, version=2) == ([], 16)
    spark.sql(f"OPTIMIZE {table}")
    stamp(lake / "left", 50)
    assert arrivals(spark, lake, settings) == ([], 12)
    left, _ = stored_inputs(spark, settings, str(lake))
    landed = left.landed(Grid.of(settings.slices), 5, ConsumedVersions(((None, 1),), None))
    minutes = sorted(row[ARRIVAL].minute for rows in landed for row in rows.collect())
    assert minutes == [20] * 4 + [40] * 4


def test_tracked_rows_keep_their_arrival_through_update_merge_and_optimize(spark, lake, pipeline):
    table = f"delta.`{lake}/left`"
    spark.sql(
        f"CREATE TABLE {table} ({ROW}) USING delta TBLPROPERTIES "
        "('delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'false')"
    )
    stamp(lake / "left", 1)
    for minutes in (10, 20):
        rows = [(key, at(0), at(minutes), number) for number, key in enumerate("abc")]
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").mode("append").save(str(lake / "left"))
        stamp(lake / "left", minutes)
    changes = (
        (30, "OPTIMIZE {}"),
        (40, "UPDATE {} SET arrived = {} WHERE k = 'a'"),
        (50, "MERGE INTO {} t USING (SELECT 'b' AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET arrived = {}"),
    )
    for minutes, change in changes:
        spark.sql(change.format(table, f"timestamp'{at(minutes):%Y-%m-%d %H:%M}'"))
        stamp(lake / "left", minutes)
    shutil.copytree(lake / "left", lake / "right")
    settings = pipeline(**BY_COMMIT)
    plan = plain(settings, lake)
    assert (plan.slices, plan.notes) == (1, ())
    assert len(plan.inputs[0].files) == 1
    assert arrivals(spark, lake, settings) == ([], 6)


def test_a_change_that_copies_rows_is_refused_by_name_up_to_its_slice(lake, pipeline, both, land):
    DeltaTable(lake / "left").update({"v": "9"}, predicate="k = 'b' AND v = 1")
    stamp(lake / "left", 130)
    land("left", 190, ("a", 185))
    settings = pipeline(**BY_COMMIT)
    with pytest.raises(
        InputError, match=r"known from 2024-01-01T02:10:00.001Z on, because version 4 \(UPDATE\)"
    ) as told:
        plain(settings, lake)
    assert "turn on delta.enableRowTracking before the next" in str(told.value)
    assert "let slices begin with 2024-01-01T03:00Z or later, or name an arrival column" in str(told.value)
    plan = plain(settings, lake, start=at(180), from_empty_state=True)
    assert plan.slices == 1
    assert any(note.startswith("arrivals of left are known from 2024-01-01T02:10:00.001Z on") for note in plan.notes)


def test_a_deleted_file_is_told_by_the_slice_of_its_commit_or_passed_over(lake, pipeline, both, land, answer):
    settings = pipeline(**BY_COMMIT)
    read = answer(settings, 2)
    DeltaTable(lake / "left").delete("happened = '2024-01-01T01:39:00Z'")
    stamp(lake / "left", 130)
    land("right", 130, ("z", 129))
    with pytest.raises(InputError, match="left is not append-only: version 4 .* slices from 2024-01-01T01:00Z on have"):
        answer(settings, 3)
    assert answer(pipeline(**BY_COMMIT, input_deletes="ignore"), 3) == read


def test_where_vacuum_has_taken_what_was_moved_slices_up_to_the_last_of_it_are_refused(lake, pipeline, both):
    table = DeltaTable(lake / "left")
    table.optimize.compact()
    stamp(lake / "left", 150)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(InputError, match=r"known from .* because version 4 \(OPTIMIZE\) put rows of several commits"):
        plain(pipeline(**BY_COMMIT), lake)


def test_where_the_log_no_longer_reaches_back_the_plan_says_from_when_on_arrivals_are_known(lake, pipeline, both, land):
    for side in ("left", "right"):
        DeltaTable(lake / side).create_checkpoint()
        for log in sorted((lake / side / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()
        land(side, 190, ("a", 185))
    settings = pipeline(**BY_COMMIT)
    with pytest.raises(InputError, match="known from 2024-01-01T01:40Z on, because its log begins with version 3"):
        plain(settings, lake)
    plan = plain(settings, lake, start=at(120), from_empty_state=True)
    assert (plan.slices, plan.asked) == (2, ())
    known = [note.partition("; ")[0] for note in plan.notes if note.startswith("arrivals")]
    assert known == [
        f"arrivals of {side} are known from 2024-01-01T01:{minute}Z on: its log begins with version {version}"
        for side, minute, version in (("left", 40, 3), ("right", 50, 2))
    ]
    for log in (lake / "left" / "_delta_log").glob("*.json"):
        log.unlink()
    with pytest.raises(InputError, match="the log of input left no longer has version"):
        plain(settings, lake)


def test_commits_are_in_order_though_a_writers_clock_goes_back(lake, land):
    for minutes in (10, 5, 20):
        land("left", minutes, ("a", 0))
    told = [one.at for one in commits_up_to(str(lake / "left"), 2)]
    assert told == [micros(at(10)), micros(at(10)) + 1000, micros(at(20))]
    (lake / "left" / "_delta_log" / f"{1:020d}.json").write_text(json.dumps({"add": {"path": "x", "dataChange": True}}))
    with pytest.raises(InputError, match="version 1 of the table tells no time of its commit"):
        commits_up_to(str(lake / "left"), 2)


def test_a_column_called_commit_is_not_taken_for_the_word(lake, pipeline):
    rows = pa.table({"k": ["a"], "commit": pa.array([at(5)], pa.timestamp("us", "UTC"))})
    for side in ("left", "right"):
        write_deltalake(lake / side, rows.append_column("happened", rows["commit"]))
        stamp(lake / side, 70)
    with pytest.raises(InputError, match=r"input left has a column commit: .* arrival: \{column: commit\}, or arrival"):
        plain(pipeline(**BY_COMMIT), lake)
    assert plain(pipeline(left__arrival={"commit": True}, right__arrival={"commit": True}), lake).slices == 2
    named = {"column": "commit"}
    assert plain(pipeline(left__arrival=named, right__arrival=named), lake).slices == 1
    write_deltalake(lake / "left", rows.rename_columns(["k", "_Arrival"]), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(InputError, match="input left has a column _Arrival, which is what Tidemark calls"):
        plain(pipeline(left__arrival={"commit": True}, left__event_time="_Arrival", right__arrival=named), lake)


def test_an_input_is_complete_up_to_its_last_commit(lake, pipeline, both):
    (reach,) = reaches(pipeline(**BY_COMMIT, left__complete="row"), str(lake))
    assert (reach.until, reach.because) == (at(100), "its last clock is 2024-01-01T01:40Z")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"left__arrival": {"commit": False}}, "left.arrival.commit: should be True, not False"),
        ({"left__arrival": {"commit": True, "unit": "ms"}}, "left.arrival.unit: unknown field"),
        ({"left__arrival": "commit", "right__arrival": None}, "left names an arrival column and right does not"),
        (
            {"dialect": "spark", "left__arrival": "commit", "right__arrival": {"trace": "checkpoint"}},
            "a trace tells of both inputs",
        ),
        (
            {
                "dialect": "flink-sql",
                "left": {"table": "left", "event_time": "happened", "arrival": "commit"},
                "right": {"table": "right", "event_time": "arrived", "arrival": "arrived"},
                "join__time": "processing",
            },
            "left.arrival: on processing time event_time names the arrival too, so that it needs a column",
        ),
    ],
)
def test_what_does_not_go_together_is_told_where_the_file_is_read(pipeline, changes, told):
    with pytest.raises(PipelineFileError, match=re.escape(told)):
        pipeline(**changes)


def test_the_word_and_its_long_form_are_one_setting(pipeline):
    word, long = pipeline(left__arrival="commit", right__arrival="commit"), pipeline(**BY_COMMIT)
    assert word.semantic_settings() == long.semantic_settings()
    assert word.semantic_settings()["left"]["arrival"] == {"commit": True}
    assert changed(word, {"late_landing": "reprocess"}).semantic_settings() == word.semantic_settings()
    assert (word.clock, word.clock_of(word.left)) == ("arrival", "commit")
