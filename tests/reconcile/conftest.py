"""A pipeline that has run over random rows, and a stream's table of the same join to compare it with."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from tidemark.commits.ledger import committed
from tidemark.comparison import Asked, compare
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.tuning import tuned_for_tiny_queries

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


@pytest.fixture
def inputs(write):
    write("left", [*rows_of(1, 0), (900, "a", START + HOUR, None, 0.0)], ROW)
    write("right", list(rows_of(2, 500)), ROW)


@pytest.fixture
def ran(spark, lake):
    """Run a pipeline to the end of its input, or to a time; or some of it again."""

    def run(settings, end=None, **request):
        plan = make_plan(spark, settings, str(lake), Request(end=end, drain=end is None, **request))
        with tuned_for_tiny_queries(spark):
            list(execute(spark, plan, lambda *_: None))
        return settings

    return run


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
        rows = committed(spark, plan.tables, plan.tables.emissions)
        return rows.drop("_run", "_slice", "_pane", "_result_time")

    return read
