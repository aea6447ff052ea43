"""What windows tell without making a list of them, beside the list, whose answers the recorded vectors hold."""

import random

from pyspark.sql import functions as F

from tidemark.joins.window import Windows
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

EXAMPLES = 2000
_SHAPE = "size long, slide long, offset long, cumulating boolean"


def shapes():
    """Windows of all kinds and two times, before 1970 too: sliding ones with gaps, and those that tumble."""
    chance = random.Random("windows")
    for _ in range(EXAMPLES):
        slide, kind = chance.randint(1, 20), chance.choice(["tumbling", "sliding", "cumulating"])
        size = {"tumbling": slide, "sliding": chance.randint(1, 60), "cumulating": slide * chance.randint(1, 5)}[kind]
        times = (chance.randint(-100, 100) for _ in range(2))
        yield kind, size, slide, chance.randrange(slide), kind == "cumulating", *times


def test_they_are_what_the_list_says(spark):
    rows = spark.createDataFrame(shapes(), f"kind string, {_SHAPE}, time long, other long")
    shape = [F.col(name) for name in ("size", "slide", "offset", "cumulating")]
    listed, tumbling = Windows(*shape), Windows(*shape, tumbling=True)
    time, other = F.col("time"), F.col("other")
    told = rows.select(
        "kind",
        F.array_max(listed.of(time))["end"].eqNullSafe(listed.last_end(time)).alias("last"),
        (listed.of(time) == tumbling.of(time)).alias("list"),
        (listed.share(time, other) == tumbling.share(time, other)).alias("shared"),
        listed.share(time, other).alias("share"),
        (F.size(listed.of(time)) == 0).alias("gap"),
    )
    with tuned_for_tiny_queries(spark):
        found = told.collect()
    assert all(row["last"] for row in found)
    assert all(row["list"] and row["shared"] for row in found if row["kind"] == "tumbling")
    assert {row["share"] for row in found} == {row["gap"] for row in found} == {True, False}
