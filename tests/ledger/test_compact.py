"""Small files merged by `tidemark compact`: the same rows to everyone, whatever happens meanwhile or afterwards."""

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
from tests.ledger.reader_assertions import every_version_is_whole, readers_agree, there
from tidemark.delta.table import DeltaLog
from tidemark.errors import FaultError, UserError
from tidemark.execution import run as running
from tidemark.integrity.check import check
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance import compaction as compacting
from tidemark.maintenance.compaction import MERGED, merge_files, plan_compaction
from tidemark.maintenance.unused_files import vacuum_tables
from tidemark.quality.quarantine import release
from tidemark.tables.run_files import merged_at, run_of

HOURS = 5
SETTING = {"after": "1 hour", "into": "2 hours"}
"""Of five hours the first four are settled: two periods."""
MERGES = ["emissions", "emissions", "late", "quality", "quality"]
"""The first hour has no late row."""
APART = [{"expect_column_values_to_not_be_in_set": {
    "column": "left_v", "value_set": [20, 21], "on_failure": "quarantine",
}}]  # fmt: skip
"""Which two rows of the fourth hour break."""


class KilledError(BaseException):
    pass


class Lake(OrdersLake):
    """A copy of a lake for a test to itself."""

    def runs_of(self, name="emissions"):
        return Counter(map(run_of, self.log(name).files["path"]))

    def land(self, *rows):
        for side, more in (("left", 0), ("right", 100)):
            frame = self.spark.createDataFrame([(k, happened, came, v + more) for k, happened, came, v in rows], ROW)
            frame.coalesce(1).write.format("delta").mode("append").save(str(self.root / side))

    def compact(self, only=MERGED):
        planned = plan_compaction(self.settings, str(self.root))
        return [merge_files(self.spark, planned, one) for one in planned.merges if one.table in only]

    def changes(self, since):
        """What the change feed has behind a version: how often, by kind, slice and value."""
        if self.log().version == since:
            return Counter()
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", since + 1)
        rows = feed.load(self.tables.emissions).select("_change_type", "_slice", "left_v", "right_v").collect()
        return Counter((row[0], self.grid.number_at(int(row[1].timestamp() * 1e6)), *row[2:]) for row in rows)

    def rows(self):
        """What a plain read of each table gives, without the names of runs, by delta-rs."""
        logs = {name: self.log(name) for name in there(self.tables)}
        stored = {name: log.read({*log.schema.names} - {"run", "_run"}) for name, log in logs.items()}
        return {name: Counter(map(str, rows.to_pylist())) for name, rows in stored.items()}

    def is_right(self):
        assert check(self.settings, str(self.root), content=True).findings == ()
        assert every_version_is_whole(self.tables, self.grid)


@pytest.fixture(scope="module")
def small(spark, tmp_path_factory):
    """Five hours, a file each, with late rows; of the fourth some rows are in quarantine."""
    root = tmp_path_factory.mktemp("small")
    settings = write_pipeline(root / "pipeline.yaml", late_landing="reprocess", compact=SETTING, quality=APART)
    lake = Lake(spark, root / "lake", root / "pipeline.yaml", settings)
    lake.land(*(("ab"[n % 2], at(0, 10 * n), at(0, 10 * n + (45 if n % 4 == 3 else 2)), n) for n in range(30)))
    lake.go(end=at(HOURS))
    return lake


@pytest.fixture(scope="module")
def merged(spark, small, tmp_path_factory):
    """The same, compacted, with a stream of its emissions that has read all of it before."""
    root = tmp_path_factory.mktemp("merged")
    shutil.copytree(small.root, root / "lake")
    lake = Lake(spark, root / "lake", small.file, small.settings)
    assert streamed(lake) > 0
    assert lake.compact() == [True] * len(MERGES)
    return lake


@pytest.fixture
def copied(spark, tmp_path):
    """A function that gives a copy of a lake."""

    def copy(lake, **changes):
        shutil.copytree(lake.root, tmp_path / "lake")
        settings = write_pipeline(tmp_path / "pipeline.yaml", **{
            "late_landing": "reprocess", "compact": SETTING, "quality": APART, **changes
        })  # fmt: skip
        return Lake(spark, tmp_path / "lake", tmp_path / "pipeline.yaml", settings)

    return copy


def streamed(lake):
    """How many rows a Structured Streaming query of the emissions reads that it has not read before."""
    beside = lake.root.parent
    sink = beside / "sink"
    before = lake.spark.read.parquet(str(sink)).count() if sink.exists() else 0
    rows = lake.spark.readStream.format("delta").load(lake.tables.emissions)
    query = rows.writeStream.option("checkpointLocation", str(beside / "stream")).trigger(availableNow=True)
    query.start(str(sink), format="parquet").awaitTermination()
    return lake.spark.read.parquet(str(sink)).count() - before


def test_the_rows_are_those_of_before_in_fewer_files_and_in_order(spark, small, merged):
    assert merged.rows() == small.rows()
    assert all(merged.rows().values())
    for name in MERGED:
        of_merged = sum(merged_at(run) is not None for run in merged.runs_of(name).elements())
        assert of_merged == MERGES.count(name)
        assert small.runs_of(name).total() == merged.runs_of(name).total() + of_merged == 3 + of_merged
    keys = ["_slice", "left_k", "right_k"]
    for path in filter(is_merged, merged.log().files["path"]):
        rows = pq.read_table(f"{merged.tables.emissions}/{path}", columns=keys, partitioning=None).to_pylist()
        assert rows == sorted(rows, key=lambda row: [row[name] for name in keys])
    assert readers_agree(spark, merged.tables, merged.grid)
    merged.is_right()


def test_streams_and_change_feeds_see_nothing_and_there_is_nothing_more_to_do(small, merged, capsys):
    assert merged.changes(small.log().version) == Counter()
    assert streamed(merged) == 0
    assert merged.log().written_at == small.log().written_at, "a pipeline behind it waits for rows, not for upkeep"
    version = merged.log().version
    assert merged.command("compact") == 0
    assert capsys.readouterr().out == "orders: nothing to merge\n"
    assert merged.log().version == version


def test_a_dry_run_tells_and_writes_nothing(small, capsys):
    before = sorted(small.root.rglob("*"))
    assert small.command("compact", "--dry-run") == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(MERGES)
    assert told[0].startswith("orders: would merge emissions 2024-01-01T00:00Z to 2024-01-01T02:00Z: 2 files (")
    assert small.command("compact", "--dry-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    planned = [(one["table"], one["files"], one["into"]) for one in told["planned"]]
    assert planned == [(name, 2, 1) for name in MERGES]
    assert (told["merged"], told["left"]) == ([], [])
    assert sorted(small.root.rglob("*")) == before


def test_without_the_setting_the_command_says_how_to_set_it(copied, small, capsys):
    lake = copied(small, compact=None)
    assert lake.command("compact") == 2
    assert "write `compact: {after: 2 days, into: 1 day}` in its file" in capsys.readouterr().err


def test_what_is_not_settled_or_not_whole_is_left(small, copied):
    def periods(**changes):
        settings = write_pipeline(small.file.with_name("other.yaml"), compact=SETTING | changes, quality=APART)
        planned = plan_compaction(settings, str(small.root))
        return {(one.slices.start, one.slices.stop) for one in planned.merges}

    assert periods() == {(0, 2), (2, 4)}
    assert periods(after="3 hours") == {(0, 2)}
    assert periods(after="3 hours 1 ms") == set()
    assert periods(after="0 seconds", into="3 hours") == {(0, 3)}
    assert periods(after="0 seconds", into="5 hours") == {(0, 3)}, "periods of five hours do not begin with 2024"
    lake = copied(small)
    log = lake.log()
    rows = log.read(log.schema.names).slice(0, 2)
    log.append(rows)
    planned = plan_compaction(lake.settings, str(lake.root))
    assert sum(len(one.files) for one in planned.merges if one.table == "emissions") == 4, "rows of nobody's are left"


def test_a_period_of_many_bytes_becomes_several_files(small, copied, monkeypatch):
    lake = copied(small, compact={"after": "1 hour", "into": "4 hours"})
    [planned] = [one for one in plan_compaction(lake.settings, str(lake.root)).merges if one.table == "emissions"]
    assert (len(planned.files), planned.into) == (4, 1)
    monkeypatch.setattr(compacting, "LARGEST", planned.bytes // 2 + 1)
    assert lake.compact(["emissions"]) == [True]
    assert sum(map(is_merged, lake.log().files["path"])) == 2
    assert lake.rows() == small.rows()
    lake.is_right()
    monkeypatch.setattr(compacting, "LARGEST", 1)
    assert lake.compact(["emissions"]) == []


def test_a_slice_in_a_merged_file_runs_again_and_the_feed_tells_what_changed(merged, copied):
    lake = copied(merged)
    lake.land(("a", at(1, 30), at(1, 30), 777))
    version, stood = lake.log().version, emitted(lake)
    lake.go(reprocess=True, start=at(1), end=at(2))
    lake.is_right()
    entries = Ledger.of(lake.settings, str(lake.root)).entries
    again = {number for number, entry in entries.items() if entry.attempt > 1}
    changes, now = lake.changes(version), emitted(lake)
    assert {number for _, number, *_ in changes} == again < set(range(HOURS))
    assert Counter({key[1:]: n for key, n in changes.items() if key[0] == "insert"}) == of_slices(now, again)
    assert Counter({key[1:]: n for key, n in changes.items() if key[0] == "delete"}) == of_slices(stood, again)
    assert any(777 in row for row in now)
    assert now - of_slices(now, again) == stood - of_slices(stood, again)

    version, rows = lake.log().version, lake.rows()
    assert set(lake.compact(["emissions"])) == {True}
    assert lake.runs_of().total() == 3
    assert lake.changes(version) == Counter()
    assert lake.rows() == rows
    lake.is_right()


def is_merged(path):
    return merged_at(run_of(path)) is not None


def emitted(lake):
    rows = lake.log().read(["_slice", "left_v", "right_v"]).to_pylist()
    numbers = (lake.grid.number_at(int(row["_slice"].timestamp() * 1e6)) for row in rows)
    return Counter((number, row["left_v"], row["right_v"]) for number, row in zip(numbers, rows, strict=True))


def of_slices(rows, numbers):
    return Counter({row: n for row, n in rows.items() if row[0] in numbers})


def test_vacuum_and_time_travel_and_a_merged_file_that_is_gone(merged, copied, small, capsys):
    lake = copied(merged)
    assert not any(map(is_merged, vacuum_tables(lake.settings, str(lake.root), timedelta(0)).garbage.files))
    lake.is_right()
    first, *_ = filter(is_merged, lake.log().files["path"])
    Path(lake.tables.emissions, first).unlink()
    assert lake.command("verify", "--json") == 1
    [found] = json.loads(capsys.readouterr().out)["findings"]
    assert (found["damage"], found["table"], found["file"]) == ("file gone", "emissions", first)
    assert found["slices"] in ([[f"2024-01-01T0{hour}:00Z", f"2024-01-01T0{hour + 2}:00Z"]] for hour in (0, 2))
    assert lake.command("verify", "--repair") == 0
    assert "2 references to committed files come back, 1 reference go" in capsys.readouterr().err
    assert emitted(lake) == emitted(small), "by the small files, which are still there"


def test_a_merged_side_output_that_is_gone_comes_back_without_a_slice_run_again(merged, copied, capsys):
    lake = copied(merged)
    rows = lake.rows()
    for path in filter(is_merged, lake.log("late").files["path"]):
        Path(lake.tables.late, path).unlink()
    assert lake.command("verify", "--repair") == 0
    assert "run again" not in capsys.readouterr().err
    assert lake.rows() == rows


def test_other_commands_go_on_as_before(merged, copied, spark, small):
    lake = copied(merged)
    for name in ("status", "state show", "plan", "quarantine list"):
        assert lake.command(name) == 0
    ledger = Ledger.of(lake.settings, str(lake.root))
    held = next(row["number"] for row in ledger.rows.to_dict("records") if row["quarantined"] is not None)
    version = lake.log().version
    released = release(spark, lake.settings, str(lake.root), lake.grid.datetime_of(held), None, "ada")
    assert {kind for kind, *_ in lake.changes(version)} == {"insert"}
    assert lake.changes(version).total() == released.rows > 0
    lake.is_right()
    assert lake.compact() == [True]
    lake.is_right()
    assert emitted(lake).total() == emitted(small).total() + released.rows


def test_killed_before_or_after_a_commit_nothing_is_lost_and_the_rest_is_done_again(small, copied, monkeypatch):
    lake = copied(small)
    before = small.rows()

    def killed(*_):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(compacting, "_commit", killed)
        with pytest.raises(KilledError):
            lake.compact()
    assert lake.log().version == small.log().version
    assert lake.rows() == before
    assert any(map(is_merged, vacuum_tables(lake.settings, str(lake.root), timedelta(0)).garbage.files))
    commit = DeltaLog.commit

    def killed_after(*what, **options):
        commit(*what, **options)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "commit", killed_after)
        with pytest.raises(KilledError):
            lake.compact()
    assert lake.runs_of().total() == HOURS - 1
    assert lake.rows() == before
    lake.is_right()
    planned = plan_compaction(lake.settings, str(lake.root))
    assert len(planned.merges) == len(MERGES) - 1, "one is done"


def test_rows_that_differ_are_not_committed(small, copied, monkeypatch):
    lake = copied(small)
    written = compacting._written
    with monkeypatch.context() as patch:
        patch.setattr(compacting, "_written", lambda rows, *what: written(rows.limit(2), *what))
        with pytest.raises(FaultError, match="has not the rows of those that it was written from"):
            lake.compact()
    assert lake.log().version == small.log().version


def test_a_slice_that_is_committed_meanwhile_is_never_in_the_way(small, copied, monkeypatch):
    """One that is new does not concern the files; one that runs again makes the compaction leave them."""
    lake = copied(small)
    prove, turns = compacting.prove, []

    def meanwhile(*what):
        prove(*what)
        if not turns:
            turns.append(lake.go(end=at(HOURS + 1)))
        elif len(turns) == 1:
            turns.append(lake.go(reprocess=True, start=at(2), end=at(3)))

    with monkeypatch.context() as patch:
        patch.setattr(compacting, "prove", meanwhile)
        assert lake.compact(["emissions"]) == [True, False]
    lake.is_right()


def test_a_compaction_between_a_slices_files_and_its_commit_is_undone_by_the_slice(small, copied, monkeypatch):
    """The files that the slice supersedes were apart when its commit was made ready, and are merged when it follows."""
    lake = copied(small)
    prepare, turns = running.prepare, []

    def late(*what, **options):
        ready = prepare(*what, **options)
        if not turns:
            turns.append(lake.compact(["emissions"]))
        return ready

    version = lake.log().version
    with monkeypatch.context() as patch:
        patch.setattr(running, "prepare", late)
        lake.go(reprocess=True, start=at(1), end=at(2))
    assert turns == [[True] * 2]
    assert {number for _, number, *_ in lake.changes(version)} == {1}
    assert emitted(lake) == emitted(small)
    assert not any(map(is_merged, lake.log().files["path"]))
    lake.is_right()


def test_a_table_that_something_else_has_written_to_is_refused(small, copied, monkeypatch):
    lake = copied(small)
    monkeypatch.setattr(DeltaLog, "is_bare", False)
    with pytest.raises(UserError, match="something else than Tidemark has written to it"):
        plan_compaction(lake.settings, str(lake.root))
    assert there(lake.tables)
