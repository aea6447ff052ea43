"""Compact small files: all readers see the same rows, also with concurrent commits and after crashes."""

import json
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import write_pipeline
from tests.ledger.conftest import ROW, at
from tests.ledger.lakes import OrdersLake
from tests.ledger.reader_assertions import check_every_version, check_readers_agree, list_existing_tables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import FaultError, UserError
from tidemark.integrity.check import check_integrity
from tidemark.ledger import transaction
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance import compaction
from tidemark.maintenance.compaction import COMPACTED_TABLES, merge_files, plan_compaction
from tidemark.maintenance.vacuum import vacuum
from tidemark.quality.quarantine import release
from tidemark.tables.run_files import parse_merge_commit, parse_run

HOURS = 5
COMPACT_SETTING = {"settled_after": "1 hour", "period": "2 hours"}
"""Settings by which the first four of five hours are settled: two periods."""
MERGES = ["emissions", "emissions", "late", "quality", "quality"]
"""Table of each merge; the first period has no merge of `late`, as the first hour has no late row."""
QUALITY = [{"expect_column_values_to_not_be_in_set": {
    "column": "left_v", "value_set": [20, 21], "on_failure": "quarantine",
}}]  # fmt: skip
"""Expectation that fails for two rows of the fourth hour."""


class KilledError(BaseException):
    pass


class Lake(OrdersLake):
    """A lake that a test may change."""

    def count_runs(self, name="emissions"):
        return Counter(map(parse_run, self.log(name).files["path"]))

    def append_rows(self, *rows):
        for side, offset in (("left", 0), ("right", 100)):
            side_rows = [(*row[:3], row[3] + offset) for row in rows]
            frame = self.spark.createDataFrame(side_rows, ROW)
            frame.coalesce(1).write.format("delta").mode("append").save(str(self.root / side))

    def compact(self, only=COMPACTED_TABLES):
        plan = plan_compaction(self.settings, str(self.root))
        return [merge_files(self.spark, plan, merge) for merge in plan.merges if merge.table in only]

    def count_changes(self, since):
        """Count the rows of the change feed after a version, by change type, slice and values."""
        if self.log().version == since:
            return Counter()
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", since + 1)
        rows = feed.load(self.tables.emissions).select("_change_type", "_slice", "left_v", "right_v").collect()
        return Counter((row[0], self.grid.number_at(int(row[1].timestamp() * 1e6)), *row[2:]) for row in rows)

    def count_rows(self):
        """Count the rows of each table by delta-rs, without names of runs."""
        tables_by_name = {name: self.log(name) for name in list_existing_tables(self.tables)}
        stored = {name: log.read({*log.schema.names} - {"run", "_run"}) for name, log in tables_by_name.items()}
        return {name: Counter(map(str, rows.to_pylist())) for name, rows in stored.items()}

    def assert_consistent(self):
        assert check_integrity(self.settings, str(self.root), deep=True).issues == ()
        assert check_every_version(self.tables, self.grid)


@pytest.fixture(scope="module")
def uncompacted_lake(spark, tmp_path_factory):
    """Run five hours, one file each, with late rows, and quarantined rows in the fourth."""
    root = tmp_path_factory.mktemp("small")
    settings = write_pipeline(
        root / "pipeline.yaml", on_late_arriving_rows="reprocess", compact=COMPACT_SETTING, quality=QUALITY
    )
    lake = Lake(spark, root / "lake", root / "pipeline.yaml", settings)
    lake.append_rows(*(("ab"[n % 2], at(0, 10 * n), at(0, 10 * n + (45 if n % 4 == 3 else 2)), n) for n in range(30)))
    lake.run(end=at(HOURS))
    return lake


@pytest.fixture(scope="module")
def compacted_lake(spark, uncompacted_lake, tmp_path_factory):
    """Copy and compact the lake after a stream has read its emissions."""
    root = tmp_path_factory.mktemp("merged")
    shutil.copytree(uncompacted_lake.root, root / "lake")
    lake = Lake(spark, root / "lake", uncompacted_lake.file, uncompacted_lake.settings)
    assert count_new_streamed_rows(lake) > 0
    assert lake.compact() == [True] * len(MERGES)
    return lake


@pytest.fixture
def copy_lake(spark, tmp_path):
    """Return a function that copies a lake."""

    def copy(lake, **changes):
        shutil.copytree(lake.root, tmp_path / "lake")
        settings = write_pipeline(tmp_path / "pipeline.yaml", **{
            "on_late_arriving_rows": "reprocess", "compact": COMPACT_SETTING, "quality": QUALITY, **changes
        })  # fmt: skip
        return Lake(spark, tmp_path / "lake", tmp_path / "pipeline.yaml", settings)

    return copy


def count_new_streamed_rows(lake):
    """Count the new rows that a Structured Streaming query reads from the emissions."""
    folder = lake.root.parent
    sink = folder / "sink"
    before = lake.spark.read.parquet(str(sink)).count() if sink.exists() else 0
    rows = lake.spark.readStream.format("delta").load(lake.tables.emissions)
    query = rows.writeStream.option("checkpointLocation", str(folder / "stream")).trigger(availableNow=True)
    query.start(str(sink), format="parquet").awaitTermination()
    return lake.spark.read.parquet(str(sink)).count() - before


def test_compact_keeps_rows_in_fewer_sorted_files(spark, uncompacted_lake, compacted_lake):
    assert compacted_lake.count_rows() == uncompacted_lake.count_rows()
    assert all(compacted_lake.count_rows().values())

    for name in dict.fromkeys(MERGES):
        merged_files = sum(parse_merge_commit(run) is not None for run in compacted_lake.count_runs(name).elements())
        assert merged_files == MERGES.count(name)
        assert (
            uncompacted_lake.count_runs(name).total()
            == compacted_lake.count_runs(name).total() + merged_files
            == 3 + merged_files
        )
    keys = ["_slice", "left_k", "right_k"]
    for path in filter(is_merged, compacted_lake.log().files["path"]):
        rows = pq.read_table(f"{compacted_lake.tables.emissions}/{path}", columns=keys, partitioning=None).to_pylist()
        assert rows == sorted(rows, key=lambda row: [row[name] for name in keys])

    assert check_readers_agree(spark, compacted_lake.tables, compacted_lake.grid)

    compacted_lake.assert_consistent()


def test_compact_is_invisible_to_streams_and_complete(uncompacted_lake, compacted_lake, capsys):
    assert compacted_lake.count_changes(uncompacted_lake.log().version) == Counter()
    assert count_new_streamed_rows(compacted_lake) == 0
    assert compacted_lake.log().last_insert_ms == uncompacted_lake.log().last_insert_ms, (
        "downstream pipelines wait for rows, not for maintenance"
    )

    version = compacted_lake.log().version

    assert compacted_lake.command("tables compact") == 0
    assert capsys.readouterr().out == "orders: nothing to merge\n"
    assert compacted_lake.log().version == version


def test_compact_dry_run_lists_merges_and_writes_nothing(uncompacted_lake, capsys):
    before = sorted(uncompacted_lake.root.rglob("*"))
    assert uncompacted_lake.command("tables compact", "--dry-run") == 0

    output = capsys.readouterr().out.splitlines()
    assert len(output) == len(MERGES)
    assert output[0].startswith("orders: would merge emissions 2024-01-01T00:00Z to 2024-01-01T02:00Z: 2 files (")
    assert uncompacted_lake.command("tables compact", "--dry-run", "--json") == 0

    output = json.loads(capsys.readouterr().out)
    plan = [(merge["table"], merge["files"], merge["target_files"]) for merge in output["planned"]]
    assert plan == [(name, 2, 1) for name in MERGES]
    assert (output["merged"], output["skipped"]) == ([], [])
    assert sorted(uncompacted_lake.root.rglob("*")) == before


def test_compact_without_setting_suggests_it(copy_lake, uncompacted_lake, capsys):
    lake = copy_lake(uncompacted_lake, compact=None)
    assert lake.command("tables compact") == 2
    assert "Add `compact: {settled_after: 2 days, period: 1 day}` to its file" in capsys.readouterr().err


def test_plan_compaction_skips_unsettled_and_incomplete_periods(uncompacted_lake, copy_lake):
    def periods(**changes):
        settings = write_pipeline(
            uncompacted_lake.file.with_name("other.yaml"), compact=COMPACT_SETTING | changes, quality=QUALITY
        )
        plan = plan_compaction(settings, str(uncompacted_lake.root))
        return {(merge.period.start, merge.period.stop) for merge in plan.merges}

    assert periods() == {(0, 2), (2, 4)}
    assert periods(settled_after="3 hours") == {(0, 2)}
    assert periods(settled_after="3 hours 1 ms") == set()
    assert periods(settled_after="0 seconds", period="3 hours") == {(0, 3)}
    assert periods(settled_after="0 seconds", period="5 hours") == {(0, 3)}, (
        "periods of five hours do not start with 2024"
    )

    lake = copy_lake(uncompacted_lake)
    log = lake.log()
    rows = log.read(log.schema.names).slice(0, 2)
    log.append(rows)
    plan = plan_compaction(lake.settings, str(lake.root))
    assert sum(len(merge.files) for merge in plan.merges if merge.table == "emissions") == 4, (
        "rows of no run are skipped"
    )


def test_compact_large_period_gives_several_files(uncompacted_lake, copy_lake, monkeypatch):
    lake = copy_lake(uncompacted_lake, compact={"settled_after": "1 hour", "period": "4 hours"})
    [plan] = [merge for merge in plan_compaction(lake.settings, str(lake.root)).merges if merge.table == "emissions"]
    assert (len(plan.files), plan.target_files) == (4, 1)

    monkeypatch.setattr(compaction, "MAX_FILE_BYTES", plan.bytes // 2 + 1)
    assert lake.compact(["emissions"]) == [True]
    assert sum(map(is_merged, lake.log().files["path"])) == 2
    assert lake.count_rows() == uncompacted_lake.count_rows()

    lake.assert_consistent()
    monkeypatch.setattr(compaction, "MAX_FILE_BYTES", 1)
    assert lake.compact(["emissions"]) == []


def test_reprocess_slice_in_merged_file_changes_only_recomputed_slices(compacted_lake, copy_lake):
    lake = copy_lake(compacted_lake)
    lake.append_rows(("a", at(1, 30), at(1, 30), 777))
    version, before = lake.log().version, count_emissions(lake)
    lake.run(reprocess=True, start=at(1), end=at(2))
    lake.assert_consistent()
    entries = Ledger.from_pipeline(lake.settings, str(lake.root)).entries
    recomputed = {number for number, entry in entries.items() if entry.attempt > 1}
    changes, after = lake.count_changes(version), count_emissions(lake)
    assert {number for _, number, *_ in changes} == recomputed < set(range(HOURS))
    assert Counter({key[1:]: n for key, n in changes.items() if key[0] == "insert"}) == select_slices(after, recomputed)
    assert Counter({key[1:]: n for key, n in changes.items() if key[0] == "delete"}) == select_slices(
        before, recomputed
    )
    assert any(777 in row for row in after)
    assert after - select_slices(after, recomputed) == before - select_slices(before, recomputed)

    version, rows = lake.log().version, lake.count_rows()
    assert set(lake.compact(["emissions"])) == {True}
    assert lake.count_runs().total() == 3
    assert lake.count_changes(version) == Counter()
    assert lake.count_rows() == rows

    lake.assert_consistent()


def is_merged(path):
    return parse_merge_commit(parse_run(path)) is not None


def count_emissions(lake):
    rows = lake.log().read(["_slice", "left_v", "right_v"]).to_pylist()
    numbers = (lake.grid.number_at(int(row["_slice"].timestamp() * 1e6)) for row in rows)
    return Counter((number, row["left_v"], row["right_v"]) for number, row in zip(numbers, rows, strict=True))


def select_slices(rows, numbers):
    return Counter({row: n for row, n in rows.items() if row[0] in numbers})


def test_repair_missing_merged_file_restores_small_files(compacted_lake, copy_lake, uncompacted_lake, capsys):
    lake = copy_lake(compacted_lake)
    assert not any(map(is_merged, vacuum(lake.settings, str(lake.root), timedelta(0)).uncommitted_files.files))

    lake.assert_consistent()
    path, *_ = filter(is_merged, lake.log().files["path"])
    Path(lake.tables.emissions, path).unlink()
    assert lake.command("tables verify", "--json") == 1

    [issue] = json.loads(capsys.readouterr().out)["issues"]
    assert (issue["damage"], issue["table"], issue["file"]) == ("missing file", "emissions", path)
    assert issue["slices"] in ([[f"2024-01-01T0{hour}:00Z", f"2024-01-01T0{hour + 2}:00Z"]] for hour in (0, 2))
    assert lake.command("tables repair", "--yes") == 0
    assert "2 references to committed files are restored, 1 reference removed" in capsys.readouterr().err
    assert count_emissions(lake) == count_emissions(uncompacted_lake), "from the small files, which still exist"


def test_repair_missing_merged_late_file_recomputes_no_slice(compacted_lake, copy_lake, capsys):
    lake = copy_lake(compacted_lake)
    rows = lake.count_rows()
    for path in filter(is_merged, lake.log("late").files["path"]):
        Path(lake.tables.late, path).unlink()
    assert lake.command("tables repair", "--yes") == 0
    assert "run again" not in capsys.readouterr().err
    assert lake.count_rows() == rows


def test_release_after_compaction_inserts_rows(compacted_lake, copy_lake, spark, uncompacted_lake):
    lake = copy_lake(compacted_lake)
    for name in ("status", "checkpoint show", "plan", "quarantine list"):
        assert lake.command(name) == 0

    ledger = Ledger.from_pipeline(lake.settings, str(lake.root))
    number = next(row["number"] for row in ledger.rows.to_dict("records") if row["quarantined"] is not None)
    version = lake.log().version
    released = release(spark, lake.settings, str(lake.root), lake.grid.datetime_of(number), None, "ada")
    assert {kind for kind, *_ in lake.count_changes(version)} == {"insert"}
    assert lake.count_changes(version).total() == released.rows > 0

    lake.assert_consistent()
    assert lake.compact() == [True]

    lake.assert_consistent()
    assert count_emissions(lake).total() == count_emissions(uncompacted_lake).total() + released.rows


def test_compact_killed_before_or_after_commit_is_resumable(uncompacted_lake, copy_lake, monkeypatch):
    lake = copy_lake(uncompacted_lake)
    before = uncompacted_lake.count_rows()

    def fail_before_commit(*_):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "_commit_merge", fail_before_commit)
        with pytest.raises(KilledError):
            lake.compact()
    assert lake.log().version == uncompacted_lake.log().version
    assert lake.count_rows() == before
    assert any(map(is_merged, vacuum(lake.settings, str(lake.root), timedelta(0)).uncommitted_files.files))

    commit = DeltaTableHandle.commit

    def fail_after_commit(*arguments, **options):
        commit(*arguments, **options)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTableHandle, "commit", fail_after_commit)
        with pytest.raises(KilledError):
            lake.compact()
    assert lake.count_runs().total() == HOURS - 1
    assert lake.count_rows() == before

    lake.assert_consistent()
    plan = plan_compaction(lake.settings, str(lake.root))
    assert len(plan.merges) == len(MERGES) - 1, "one merge was committed"


def test_compact_with_wrong_rows_is_not_committed(uncompacted_lake, copy_lake, monkeypatch):
    lake = copy_lake(uncompacted_lake)
    write_merged = compaction._write_merged
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "_write_merged", lambda rows, *arguments: write_merged(rows.limit(2), *arguments))
        with pytest.raises(FaultError, match="do not have the rows of their source"):
            lake.compact()
    assert lake.log().version == uncompacted_lake.log().version


def test_compact_with_concurrent_run_skips_only_recomputed_period(uncompacted_lake, copy_lake, monkeypatch):
    """Run a new slice, which the merge ignores, then recompute a slice, whose period it skips."""
    lake = copy_lake(uncompacted_lake)
    verify_same_rows, turns = compaction.verify_same_rows, []

    def verify_and_run(*arguments):
        verify_same_rows(*arguments)
        if not turns:
            turns.append(lake.run(end=at(HOURS + 1)))
        elif len(turns) == 1:
            turns.append(lake.run(reprocess=True, start=at(2), end=at(3)))

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "verify_same_rows", verify_and_run)
        assert lake.compact(["emissions"]) == [True, False]
    lake.assert_consistent()


def test_compact_before_commit_of_reprocess_is_undone(uncompacted_lake, copy_lake, monkeypatch):
    """Merge the replaced files after the commit was prepared and before it is applied to the table."""
    lake = copy_lake(uncompacted_lake)
    prepare, turns = transaction.prepare_commit, []

    def prepare_and_compact(*arguments, **options):
        prepared = prepare(*arguments, **options)
        if not turns:
            turns.append(lake.compact(["emissions"]))
        return prepared

    version = lake.log().version
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "prepare_commit", prepare_and_compact)
        lake.run(reprocess=True, start=at(1), end=at(2))

    assert turns == [[True] * 2]
    assert {number for _, number, *_ in lake.count_changes(version)} == {1}
    assert count_emissions(lake) == count_emissions(uncompacted_lake)
    assert not any(map(is_merged, lake.log().files["path"]))

    lake.assert_consistent()


def test_plan_compaction_with_foreign_writes_is_rejected(uncompacted_lake, copy_lake, monkeypatch):
    lake = copy_lake(uncompacted_lake)
    monkeypatch.setattr(DeltaTableHandle, "is_plain_parquet", False)
    with pytest.raises(UserError, match="another program has written to it"):
        plan_compaction(lake.settings, str(lake.root))
    assert list_existing_tables(lake.tables)
