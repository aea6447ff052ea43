"""A pipeline that has run over random rows, and a stream's table of the same join to compare it with."""

import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidemark.comparison import Asked, compare
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

ROW = "id int, k string, happened timestamp, arrived timestamp, v double"
START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
LEFT_JOIN = {"type": "left", "keys": ["k"], "interval": {"lower": "-30 minutes", "upper": "30 minutes"}}


def rows_of(seed, first, count=120):
    """Rows over six hours of event time, some of which arrive hours late."""
    chance = random.Random(seed)
    for number in range(first, first + count):
        happened = START + timedelta(seconds=chance.randrange(6 * 3600))
        late = timedelta(seconds=chance.randrange(3 * 3600 if chance.random() < 0.2 else 300))
        yield number, chance.choice("abc"), happened, happened + late, float(number)


@pytest.fixture(scope="module")
def template(spark, tmp_path_factory):
    """A lake with the inputs and, by settings, what a pipeline has made of them: tests take copies."""
    lake = tmp_path_factory.mktemp("template")
    for side, rows in (("left", [*rows_of(1, 0), (900, "a", START + HOUR, None, 0.0)]), ("right", rows_of(2, 500))):
        spark.createDataFrame(list(rows), ROW).coalesce(1).write.format("delta").save(str(lake / side))
    return lake, {}


@pytest.fixture
def inputs(lake, template):
    for side in ("left", "right"):
        shutil.copytree(template[0] / side, lake / side)


@pytest.fixture
def ran(spark, lake, template):
    """Run a pipeline to the end of its input, or to a time; or some of it again.

    A new pipeline over the inputs as they were at first is run once for all tests of the file.
    """
    shared, made = template

    def execute_in(place, settings, request):
        with tuned_for_tiny_queries(spark):
            list(execute(spark, make_plan(spark, settings, str(place), request), lambda *_: None))

    def run(settings, end=None, **request):
        output = Path(lake, settings.output or settings.name)
        if request or output.exists() or versions(lake) != versions(shared):
            execute_in(lake, settings, Request(end=end, drain=end is None, **request))
            return settings
        key = settings.model_dump_json(exclude={"name", "output", "compare"}), end
        if key not in made:
            made[key] = settings.model_copy(update={"output": f"run_{len(made)}"})
            execute_in(shared, made[key], Request(end=end, drain=end is None))
        shutil.copytree(shared / made[key].output, output)
        return settings

    return run


def versions(lake):
    """The versions of both inputs."""
    return [sorted(path.name for path in (lake / side / "_delta_log").iterdir()) for side in ("left", "right")]


@pytest.fixture
def compared(spark, lake):
    def run(settings, rows, story=None, **asked):
        if not isinstance(rows, str):
            rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(lake / "stream"))
            rows = "stream"
        with tuned_for_tiny_queries(spark):
            return compare(spark, settings, str(lake), Asked(rows, **asked), story)

    return run


@pytest.fixture
def emitted(spark, lake):
    """The emissions of a pipeline as a stream would have written them."""

    def read(settings):
        plan = make_plan(spark, settings, str(lake), Request())
        rows = spark.read.format("delta").load(plan.tables.emissions)
        return rows.drop("_slice", "_pane", "_result_time")

    return read
