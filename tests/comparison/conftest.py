"""Fixtures: a pipeline run over random rows, and a stream's table of the same join."""

import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidemark.comparison import ComparisonRequest, compare
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

ROW = "id int, k string, happened timestamp, arrived timestamp, v double"
START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
LEFT_JOIN = {"type": "left", "keys": ["k"], "interval": {"lower": "-30 minutes", "upper": "30 minutes"}}


def generate_rows(seed, first, count=120):
    """Generate rows over six hours of event time, some of which arrive hours late."""
    generator = random.Random(seed)
    for number in range(first, first + count):
        happened = START + timedelta(seconds=generator.randrange(6 * 3600))
        delay = timedelta(seconds=generator.randrange(3 * 3600 if generator.random() < 0.2 else 300))
        yield number, generator.choice("abc"), happened, happened + delay, float(number)


@pytest.fixture(scope="module")
def template(spark, tmp_path_factory):
    """Write a lake with both inputs, from which tests copy; return it and the outputs of pipelines that have run."""
    lake = tmp_path_factory.mktemp("template")
    left = [*generate_rows(1, 0), (900, "a", START + HOUR, None, 0.0)]
    for side, rows in (("left", left), ("right", generate_rows(2, 500))):
        spark.createDataFrame(list(rows), ROW).coalesce(1).write.format("delta").save(str(lake / side))
    return lake, {}


@pytest.fixture
def inputs(lake, template):
    for side in ("left", "right"):
        shutil.copytree(template[0] / side, lake / side)


@pytest.fixture
def run_pipeline(spark, lake, template):
    """Run a pipeline up to a time or to the end of its input, or run some of its slices again.

    A new pipeline over unchanged inputs runs once for all tests of the module.
    """
    shared, templates = template

    def execute_in(root, settings, request):
        with tuned_for_tiny_queries(spark):
            list(execute(spark, create_plan(spark, settings, str(root), request), lambda *_: None))

    def run(settings, end=None, **request):
        output = Path(lake, settings.output or settings.name)
        if request or output.exists() or list_versions(lake) != list_versions(shared):
            execute_in(lake, settings, Request(end=end, drain=end is None, **request))
            return settings
        key = settings.model_dump_json(exclude={"name", "output", "compare"}), end
        if key not in templates:
            templates[key] = settings.model_copy(update={"output": f"run_{len(templates)}"})
            execute_in(shared, templates[key], Request(end=end, drain=end is None))
        shutil.copytree(shared / templates[key].output, output)
        return settings

    return run


def list_versions(lake):
    """List the log files of both inputs."""
    return [sorted(path.name for path in (lake / side / "_delta_log").iterdir()) for side in ("left", "right")]


@pytest.fixture
def compare_with(spark, lake):
    """Compare a pipeline with a stream's rows, or with a table by its name."""

    def run(settings, rows, reference=None, **options):
        if not isinstance(rows, str):
            rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(lake / "stream"))
            rows = "stream"
        with tuned_for_tiny_queries(spark):
            return compare(spark, settings, str(lake), ComparisonRequest(rows, **options), reference)

    return run


@pytest.fixture
def read_emissions(spark, lake):
    """Read a pipeline's emissions in the form in which a stream would have written them."""

    def read(settings):
        plan = create_plan(spark, settings, str(lake), Request())
        rows = spark.read.format("delta").load(plan.tables.emissions)
        return rows.drop("_slice", "_pane", "_result_time")

    return read
