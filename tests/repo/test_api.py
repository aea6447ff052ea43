"""Tests of the names that package `tidemark` exports, and of their lazy import."""

import inspect
import subprocess
import sys
from datetime import UTC, datetime

import pytest

import tidemark
from tidemark.errors import SliceOrderError

ROW = "id int, k string, happened timestamp, arrived timestamp"
TIME = datetime(2024, 1, 1, 1, tzinfo=UTC)


def test_exported_names_exist_and_are_documented():
    from tidemark import api

    assert tidemark.__all__ == api.__all__ == sorted(tidemark.__all__)
    assert all(inspect.getdoc(getattr(tidemark, name)) for name in tidemark.__all__)
    assert set(tidemark.__all__) <= set(dir(tidemark))
    with pytest.raises(AttributeError, match="has no attribute 'plann'"):
        tidemark.plann  # noqa: B018


def test_config_imports_no_spark():
    """Check the import that Airflow repeats every few seconds."""
    script = (
        "import sys, tidemark.config, tidemark.errors; assert not {'pyspark', 'pandas', 'delta'} & set(sys.modules)"
    )

    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stderr


def test_api_plans_runs_reads_explains_and_compares(spark, lake, write, pipeline, tmp_path):
    for number, side in enumerate(("left", "right")):
        write(side, [(number, "a", TIME, TIME)], ROW)
    pipeline()
    orders = tidemark.load_pipeline(tmp_path / "pipeline.yaml")

    with pytest.raises(SliceOrderError, match="orders has no committed slice to read. Run tidemark run .*yaml first"):
        tidemark.read_committed(spark, orders, lake)

    steps = []
    (job,) = tidemark.run(spark, tidemark.plan(spark, orders, lake, drain=True), lambda _, step: steps.append(step))
    assert (list(job.slices), steps[-1]) == ([0, 1], "committing")

    emissions = tidemark.read_committed(spark, orders, lake)
    assert [(row["left_id"], row["right_id"]) for row in emissions.collect()] == [(0, 1)]
    assert tidemark.read_committed(spark, orders, lake, "late").count() == 0

    (history,) = tidemark.explain(spark, orders, lake, "left", {"id": "0"})
    assert "matched in slice 2024-01-01T01:00Z" in " ".join(history.steps)

    streamed = emissions.drop("_slice", "_pane", "_result_time")
    streamed.write.format("delta").save(str(lake / "streamed"))
    comparison = tidemark.compare(spark, orders, lake, "streamed")
    assert (comparison.same, comparison.differences) == (1, 0)
