"""Random streams, and how the tests of watermarks put their rows into buckets, lanes side by side."""

from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.timegrid.slices import Grid

SLICES, EVERY = 4, 40_000
GRID = Grid(0, EVERY)
_LABELS = {"bucket": None, "rejected": None, "floored": False, "slice": 0, "owning_slice": 0}
_COLUMNS = """
    lane long, side string, clock long, tiebreak long, event_time long, id long, bucket long,
    rejected string, floored boolean, slice long, owning_slice long
"""


def drawn_from(strategy, examples):
    """So many examples of a strategy, as Hypothesis draws them."""
    found = []

    @settings(max_examples=examples, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(example):
        found.append(example)

    draw()
    return found


def placed(spark, streams, buckets, column=None):
    """The rows of streams that come in the slices of a job, with another column of their own, by name and type.

    Their inputs' columns are null.
    """
    rows = [
        {**_LABELS, **row, "lane": lane}
        for lane, stream in enumerate(streams)
        for row in stream["rows"]
        if buckets.holds(row["clock"])
    ]
    slice_number = F.call_function("div", F.col("clock"), F.lit(EVERY))
    found = spark.createDataFrame(rows, f"{column}, {_COLUMNS}" if column else _COLUMNS)
    found = found.withColumns(dict.fromkeys(SIDES, F.lit(None).cast("string")))
    return found.withColumn("bucket", buckets.number(F.col("lane"), slice_number, F.col("clock")))


def marks_of(row):
    """The watermarks that a row met: of the left input, of the right one, and the combined one."""
    return row["left_watermark"], row["right_watermark"], row["watermark"]


def told_of(marks):
    """What the side output tells of them: the combined watermark, and which inputs hold it."""
    left, right, combined = marks
    return combined, left == combined, right == combined
