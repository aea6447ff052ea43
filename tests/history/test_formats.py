"""What earlier versions have written goes on, to the answer of a run that was never interrupted."""

import tarfile
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from tests.history.write_format import END, PIPELINES
from tests.tiers import cases
from tidemark.clock.slices import Grid
from tidemark.commits.ledger import FORMAT, Ledger, committed
from tidemark.delta.lake import PipelineTables
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.settings import load_pipeline
from tidemark.state.saved import SavedState
from tidemark.state.verify import verify

FORMATS = sorted(Path(__file__).parent.glob("format_*"))


@pytest.fixture
def unpacked(lake):
    def unpack(folder):
        with tarfile.open(folder / "lake.tar.gz") as archive:
            archive.extractall(lake, filter="data")

    return unpack


def answer(spark, lake, output):
    tables = PipelineTables(f"{lake}/{output}")
    rows = (committed(spark, tables, path).drop("_run") for path in (tables.emissions, tables.late))
    return [Counter(part.toJSON().collect()) for part in rows]


def test_the_present_format_is_among_them():
    assert f"format_{FORMAT}" in {folder.name for folder in FORMATS}


@pytest.mark.parametrize("name", cases(PIPELINES, fast=["sql"]))
@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_it_goes_on_where_it_was(spark, lake, unpacked, folder, name):
    unpacked(folder)
    pipeline = load_pipeline(lake / f"{name}.yaml")
    state = SavedState.at(spark, pipeline, str(lake))
    assert min(state.entry.carried) > 0
    assert verify(state).same
    for one in (pipeline, pipeline.model_copy(update={"output": "whole"})):
        list(execute(spark, make_plan(spark, one, str(lake), Request(end=END)), lambda *_: None))
    assert answer(spark, lake, name) == answer(spark, lake, "whole")


def test_an_unknown_format_is_refused(spark, lake, unpacked):
    unpacked(FORMATS[-1])
    tables = PipelineTables(f"{lake}/datastream")
    later = spark.read.format("delta").load(tables.ledger).withColumn("format", F.lit(FORMAT + 1))
    later.limit(1).write.format("delta").mode("append").save(tables.ledger)
    told = f"has format {FORMAT + 1} and this version reads up to {FORMAT}; upgrade Tidemark"
    with pytest.raises(UserError, match=told):
        Ledger.read(spark, tables, Grid.of(load_pipeline(lake / "datastream.yaml").slices))
