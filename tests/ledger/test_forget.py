"""A person's rows forgotten by `tidemark forget`: gone from all that a pipeline has, all else as it was."""

import json
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from tests.conftest import write_pipeline
from tests.ledger.conftest import at
from tests.ledger.lakes import OrdersLake
from tests.ledger.reader_assertions import every_version_is_whole, readers_agree
from tidemark.checkpoints.checkpoint_ref import SavedState
from tidemark.checkpoints.verification import verify as verify_state
from tidemark.config.candidate_version import shadow_of
from tidemark.delta.table import DeltaLog
from tidemark.erasure import physical as erasing
from tidemark.integrity.check import check
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.prepare_commit import set_aside
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.versions.promotion import promote

HOURS, ROWS = 5, 36
ROW = "k string, happened timestamp, arrived timestamp, v int, id int, who string"
ADA = "ada.lovelace@example.org"
FORGET = ("--left", "id = 7", "--right", "id = 7")
SETTINGS = {
    "dialect": "flink-sql",
    "late_landing": "reprocess",
    "join__type": "full",
    "join__interval": {"lower": "-50 minutes", "upper": "0 seconds"},
    "compact": {"after": "2 hours", "into": "2 hours"},
    "quality": [
        {
            "expect_column_values_to_not_be_in_set": {
                "column": "left_v",
                "value_set": [12, 13],
                "on_failure": "quarantine",
            }
        }
    ],
}
"""Of which a row of Ada's breaks what is expected, and one of somebody else's."""
TABLES = ("emissions", "late", "checkpoint", "quarantined")


class Lake(OrdersLake):
    @property
    def ledger(self):
        return Ledger.of(self.settings, str(self.root))

    def rows(self):
        """The rows of each table, as data."""
        logs = {name: self.log(name) for name in TABLES}
        return {name: log.read(log.schema.names).to_pylist() for name, log in logs.items()}

    def files_of(self, name):
        return [Path(getattr(self.tables, name), path) for path in self.log(name).files["path"]]

    def holders(self):
        """Files below the pipeline's folder with Ada's address in them, Parquet read back."""
        return sorted(str(one.relative_to(self.root)) for one in (self.root / "orders").rglob("*") if holds(one))

    def is_right(self):
        """See that all is as committed, and that the inputs come to the digest of each slice and the last state."""
        assert check(self.settings, str(self.root), content=True).damages == ()
        found = verify_state(SavedState.at(self.spark, self.settings, str(self.root)))
        assert found.same, found


def holds(path):
    if not path.is_file():
        return False
    content = path.read_bytes()
    if path.suffix == ".parquet" and content.endswith(b"PAR1"):
        content += json.dumps(pq.read_table(path, partitioning=None).to_pylist(), default=str).encode()
    return ADA.encode() in content


def of_ada(row):
    return ADA in str(row)


def bare(rows):
    return Counter(map(str, rows))


def side(n, more):
    mine = n % 5 == 2 if not more else n % 7 == 3
    late = timedelta(minutes=45 if n % 4 == 3 else 2)
    who = ADA if mine else f"nobody{n}@example.org"
    return "ab"[n % 2], at(0, 10 * n), at(0, 10 * n) + late, n + more, 7 if mine else 100 + n, who


@pytest.fixture(scope="module")
def whole(spark, tmp_path_factory):
    """Five hours: merged, in part run again, with rows in quarantine, refused output, and a shadow that was served."""
    root = tmp_path_factory.mktemp("whole")
    settings = write_pipeline(root / "pipeline.yaml", **SETTINGS)
    lake = Lake(spark, root / "lake", root / "pipeline.yaml", settings)
    for name, more in (("left", 0), ("right", 100)):
        frame = spark.createDataFrame([side(n, more) for n in range(ROWS)], ROW).coalesce(1)
        frame.write.format("delta").save(str(lake.root / name))
    lake.go(end=at(3), slices_per_job=3)
    lake.go(end=at(HOURS), slices_per_job=2)
    planned = plan_compaction(settings, str(lake.root))
    assert all(merge_files(spark, planned, one) for one in planned.merges)
    lake.go(reprocess=True, start=at(0), end=at(1))
    rows = spark.read.format("delta").load(lake.tables.emissions).withColumn("_run", F.lit("old"))
    set_aside(rows, lake.tables.rejected_output, "old")
    lake.go(shadow_of(settings, "wide"), end=at(2), slices_per_job=2)
    for name in ("emissions", "checkpoint"):  # what killed runs leave behind
        left = Path(getattr(lake.tables, name), "run=00000099.20240101T000000Z.1.0a1b2c3d", "0")
        left.mkdir(parents=True)
        shutil.copy(next(one for one in lake.files_of(name) if holds(one)), left / "part-0.parquet")
        (left / "part-1.parquet").write_bytes(f"cut short {ADA}".encode())
    assert all(map(any, ([of_ada(row) for row in lake.rows()[name]] for name in TABLES)))
    return lake


@pytest.fixture(scope="module")
def forgotten(spark, whole, tmp_path_factory):
    """The same, once Ada is forgotten, but for the bytes; and the version of emissions before."""
    root = tmp_path_factory.mktemp("forgotten")
    shutil.copytree(whole.root, root / "lake")
    lake = Lake(spark, root / "lake", whole.file, whole.settings)
    assert lake.command("forget", *FORGET, "--by", "lena", "--leave-files") == 0
    return lake, whole.log().version


@pytest.fixture(scope="module")
def erased(spark, forgotten, tmp_path_factory):
    root = tmp_path_factory.mktemp("erased")
    shutil.copytree(forgotten[0].root, root / "lake")
    lake = Lake(spark, root / "lake", forgotten[0].file, forgotten[0].settings)
    assert lake.command("forget", *FORGET) == 0
    return lake


@pytest.fixture
def copied(spark, tmp_path):
    def copy(lake, **changes):
        shutil.copytree(lake.root, tmp_path / "lake")
        settings = write_pipeline(tmp_path / "pipeline.yaml", **SETTINGS | changes)
        return Lake(spark, tmp_path / "lake", tmp_path / "pipeline.yaml", settings)

    return copy


def test_a_dry_run_tells_and_changes_nothing(whole, capsys):
    before = {one: one.stat().st_mtime for one in whole.root.rglob("*")}
    assert whole.command("forget", *FORGET, "--dry-run", "--json") == 0
    served, shadow = json.loads(capsys.readouterr().out)
    rows = whole.rows()
    aside = sum(map(of_ada, rows["emissions"]))
    assert served["rows"] == {name: sum(map(of_ada, rows[name])) for name in TABLES} | {"rejected_output": aside}
    assert shadow["pipeline"] == "orders --shadow wide"
    assert shadow["rows"]["emissions"] > 0
    assert sum("00000099" in one for one in served["erased"]["files"]) == 4
    assert whole.command("forget", *FORGET, "--dry-run") == 0
    told = capsys.readouterr().out
    assert f"orders: would be forgotten: {aside} rows of emissions, " in told
    assert "in slices 2024-01-01T00:00Z to 2024-01-01T05:00Z" in told
    assert {one: one.stat().st_mtime for one in whole.root.rglob("*")} == before


def test_all_other_rows_are_as_before_and_the_lake_is_sound(spark, whole, forgotten):
    lake, _ = forgotten
    was, now = whole.rows(), lake.rows()
    for name in TABLES:
        assert bare(now[name]) == bare(row for row in was[name] if not of_ada(row)), name
    assert readers_agree(spark, lake.tables, lake.grid)
    assert every_version_is_whole(lake.tables, lake.grid)
    assert sum(row["carried_from"] < row["carried_until"] for row in now["checkpoint"]) == len(now["checkpoint"]) > 0
    lake.is_right()


def test_change_feeds_tell_of_the_rows_as_deletes_and_of_nothing_else(spark, whole, forgotten):
    lake, before = forgotten
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", before + 1)
    rows = [row.asDict() for row in feed.load(lake.tables.emissions).collect()]
    assert {row["_change_type"] for row in rows} == {"delete"}
    known = [row for row in whole.rows()["emissions"] if of_ada(row)]
    told = Counter((row["left_v"], row["right_v"]) for row in rows)
    assert told == Counter((row["left_v"], row["right_v"]) for row in known)


def test_the_ledger_tells_it(forgotten, capsys):
    lake, _ = forgotten
    assert lake.command("status") == 0
    assert "forgotten by lena at 2" in capsys.readouterr().out
    assert lake.command("status", "--json") == 0
    [told] = json.loads(capsys.readouterr().out)[0]["forgotten"]
    assert (told["where"], told["by"]) == ({"left": "id = 7", "right": "id = 7"}, "lena")
    assert told["all"].keys() == set(TABLES)
    stored = lake.log("ledger").read(["slice", "emissions", "left", "right", "format"]).to_pylist()
    assert max(row["format"] for row in stored) == 6
    for entry in lake.ledger.entries.values():
        for one in entry.counts:
            assert one.read + one.carried_in == one.late + one.rejected + one.evicted + one.carried_out
            assert min(vars(one).values()) >= 0


def test_no_byte_is_left_and_the_same_again_does_nothing(forgotten, erased, capsys):
    assert forgotten[0].holders(), "or this proves nothing"
    assert erased.holders() == []
    erased.is_right()
    version = erased.log().version
    assert erased.command("forget", *FORGET) == 0
    assert "orders: forgotten: no row" in capsys.readouterr().out
    assert erased.log().version == version


class KilledError(BaseException):
    pass


@pytest.mark.slow
def test_killed_among_its_files_or_before_the_ledger_it_goes_on(forgotten, copied, monkeypatch):
    lake = copied(forgotten[0])

    def killed_at(count, step):
        def call(*arguments):
            nonlocal count
            count -= 1
            if not count:
                raise KilledError
            return step(*arguments)

        return call

    for owner, name, count in ((erasing, "remove", 9), (DeltaLog, "overwrite", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, killed_at(count, getattr(owner, name)))
            with pytest.raises(KilledError):
                lake.command("forget", *FORGET)
        assert lake.holders()
        assert check(lake.settings, str(lake.root), content=True).damages == ()
    assert lake.command("forget", *FORGET) == 0
    assert lake.holders() == []
    assert check(lake.settings, str(lake.root), content=True).damages == ()


def test_the_next_slices_and_those_that_run_again_are_without_the_rows(whole, erased, copied):
    lake = copied(erased)
    lake.go(end=at(HOURS + 1))
    lake.is_right()
    assert not any(map(of_ada, lake.rows()["emissions"]))
    later = [row for row in lake.rows()["emissions"] if row["_slice"] >= at(HOURS)]
    whole_ = Lake(whole.spark, whole.root.parent / "next", whole.file, whole.settings)
    shutil.copytree(whole.root, whole_.root)
    whole_.go(end=at(HOURS + 1))
    wanted = [row for row in whole_.rows()["emissions"] if row["_slice"] >= at(HOURS) and not of_ada(row)]
    assert bare(later) == bare(wanted)
    assert any(row["left_v"] and row["right_v"] for row in later)

    lake.go(reprocess=True, start=at(1), end=at(2))
    lake.is_right()
    assert lake.holders() == []
    assert lake.ledger.entries[1].left_out == json.dumps({"left": ["id = 7"], "right": ["id = 7"]})


@pytest.mark.slow
def test_an_input_that_loses_the_rows_afterwards_goes_on(erased, copied):
    lake = copied(erased)
    lake.spark.sql(f"DELETE FROM delta.`{lake.root}/left` WHERE id = 7")
    assert [result.slices for result in lake.go(end=at(HOURS + 1))] == [range(HOURS, HOURS + 1)]
    lake.go(reprocess=True, start=at(4), end=at(5))
    lake.is_right()


@pytest.mark.slow
def test_a_shadow_forgets_too_and_one_that_is_filled_later_has_no_such_row(spark, erased, copied, capsys):
    lake = copied(erased)
    lake.go(shadow_of(lake.settings, "wide"), end=at(HOURS))
    promote(spark, lake.settings, str(lake.root), "wide", "lena")
    assert lake.holders() == []
    lake.is_right()
    assert lake.command("forget", "--left", "id = 101", "--leave-files") == 0
    assert lake.command("rollback", "wide") == 2
    assert "rows were forgotten since shadow wide was promoted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "say which rows"),
        (("--left", "idd = 7"), "idd is no column of it; did you mean id?"),
        (("--left", "id = "), "is no SQL expression"),
        (("--left", "v"), "--left: "),
        (("--left", "id = 7 AND rand() < 2"), "rand() gives something else"),
    ],
)
def test_what_is_no_predicate_is_refused_in_a_line(whole, capsys, options, why):
    assert whole.command("forget", *options) == 2
    assert why in " ".join(capsys.readouterr().err.split())


def test_tables_that_do_not_tell_and_rows_that_stay_are_refused(whole, copied, capsys):
    lake = copied(whole, output="narrow", select=["left_v", "right_v"])
    assert lake.command("forget", "--left", "id = 7") == 2
    assert "orders has committed no slice" in capsys.readouterr().err
    lake.go(end=at(1))
    assert lake.command("forget", "--left", "id = 7") == 2
    assert "narrow/emissions has not the column left_id" in capsys.readouterr().err
    assert lake.command("forget", "--left", "v = 2") == 0
    twin = Path(f"{lake.root}/narrow/twin/emissions/part-0.parquet")
    twin.parent.mkdir(parents=True)
    twin.write_bytes(b"rows")
    assert lake.command("forget", "--left", "v = 2") == 2
    assert "has a streaming twin" in capsys.readouterr().err
