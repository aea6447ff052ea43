"""What earlier versions have written goes on, to the answer of a run that was never interrupted."""

import shutil
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from tests.ledger.write_format import CUT, END, PIPELINES
from tests.tiers import cases
from tidemark.checkpoints.checkpoint_ref import SavedState
from tidemark.checkpoints.verification import verify
from tidemark.config import load_pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import FORMAT, WITH_FORGOTTEN, Ledger
from tidemark.ledger.upgrade import is_of_older_format, upgrade
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.jvm import DeltaSnapshot
from tidemark.timegrid.slices import Grid

FORMATS = sorted(Path(__file__).parent.glob("format_*"))


@pytest.fixture
def unpacked(lake):
    def unpack(folder):
        with tarfile.open(folder / "lake.tar.gz") as archive:
            archive.extractall(lake, filter="data")

    return unpack


@pytest.fixture
def format_1(spark, lake, unpacked):
    """What the second format has added, taken away."""
    later = ("commit", "digest", "carried_in_digest", "landing", "landed", "landed_from", "waiting")
    unpacked(Path(__file__).parent / "format_2")
    for table, gone in (("ledger", later), ("checkpoint", ["row_hash"])):
        path = f"{lake}/sql/{table}"
        rows = spark.read.format("delta").load(path).drop(*gone).localCheckpoint()
        if table == "ledger":
            rows = rows.withColumn("format", F.lit(1))
        shutil.rmtree(path)
        (rows.write if table == "ledger" else rows.write.partitionBy("_run")).format("delta").save(path)
    return load_pipeline(lake / "sql.yaml")


def answer(spark, lake, output):
    rows = (spark.read.format("delta").load(f"{lake}/{output}/{name}") for name in ("emissions", "late"))
    return [Counter(part.toJSON().collect()) for part in rows]


def run(spark, lake, pipeline):
    list(execute(spark, make_plan(spark, pipeline, str(lake), Request(end=END)), lambda *_: None))


def test_the_present_format_is_among_them():
    assert f"format_{FORMAT}" in {folder.name for folder in FORMATS}


@pytest.mark.parametrize("name", cases(PIPELINES, fast=["sql"]))
@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_it_goes_on_where_it_was(spark, lake, unpacked, folder, name):
    unpacked(folder)
    pipeline = load_pipeline(lake / f"{name}.yaml")
    if is_of_older_format(pipeline, str(lake)):
        with pytest.raises(UserError, match="the next tidemark run takes them over, or tidemark upgrade"):
            Ledger.of(pipeline, str(lake))
        upgrade(spark, pipeline, str(lake))
    assert not is_of_older_format(pipeline, str(lake))
    state = SavedState.at(spark, pipeline, str(lake))
    assert min(state.entry.carried) > 0
    assert verify(state).same
    for one in (pipeline, pipeline.model_copy(update={"output": "whole"})):
        run(spark, lake, one)
    assert answer(spark, lake, name) == answer(spark, lake, "whole")


def test_a_lake_of_format_1_is_taken_over_and_goes_on(spark, lake, format_1):
    upgrade(spark, format_1, str(lake))
    ledger = Ledger.of(format_1, str(lake))
    assert (ledger.number, ledger.last.landing, ledger.entries[0].landed) == (0, "append", 0)
    whole = format_1.model_copy(update={"output": "whole"})
    for one in (format_1, whole):
        run(spark, lake, one)
    list(execute(spark, make_plan(spark, format_1, str(lake), Request(reprocess=True, start=CUT)), lambda *_: None))
    assert answer(spark, lake, "sql") == answer(spark, lake, "whole")


def test_taking_over_goes_on_where_it_was_killed(spark, lake, unpacked, monkeypatch):
    unpacked(Path(__file__).parent / "format_2")
    pipeline = load_pipeline(lake / "sql.yaml")
    tables = PipelineTables(f"{lake}/sql")
    before = {name: committed_in_format_2(spark, tables, name) for name in ("emissions", "late")}
    replace, left = DeltaSnapshot.replace, [1]

    def killed_at_the_second(snapshot, actions):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        replace(snapshot, actions)

    monkeypatch.setattr(DeltaSnapshot, "replace", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        upgrade(spark, pipeline, str(lake))
    assert is_of_older_format(pipeline, str(lake))
    with pytest.raises(UserError, match="the next tidemark run takes them over, or tidemark upgrade"):
        Ledger.of(pipeline, str(lake))
    monkeypatch.undo()
    upgrade(spark, pipeline, str(lake))
    assert not is_of_older_format(pipeline, str(lake))
    assert dict(zip(before, answer(spark, lake, "sql"), strict=True)) == before


def committed_in_format_2(spark, tables, name):
    """What readers of the second format saw: rows of the runs that the ledger has for their slice."""
    newest = (
        spark.read.format("delta").load(tables.ledger).groupBy("slice").agg(F.max_by("run", "attempt").alias("_run"))
    )
    rows = spark.read.format("delta").load(getattr(tables, name))
    seen = rows.join(newest.withColumnRenamed("slice", "_slice"), ["_slice", "_run"], "semi")
    return Counter(seen.select([name for name in rows.columns if name != "_run"]).toJSON().collect())


def test_an_unknown_format_is_refused(spark, lake, unpacked):
    unpacked(FORMATS[-1])
    tables = PipelineTables(f"{lake}/datastream")
    later = spark.read.format("delta").load(tables.ledger).withColumn("format", F.lit(WITH_FORGOTTEN + 1))
    later.limit(1).write.format("delta").mode("append").save(tables.ledger)
    told = f"has format {WITH_FORGOTTEN + 1} and this version reads up to {WITH_FORGOTTEN}; upgrade Tidemark"
    with pytest.raises(UserError, match=told):
        Ledger.read(tables, Grid.of(load_pipeline(lake / "datastream.yaml").slices))
