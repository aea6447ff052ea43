"""Random streams for the tests of watermarks, and their rows as lanes of one job."""

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


def draw_examples(strategy, examples):
    """Draw this many examples of a strategy."""
    drawn = []

    @settings(max_examples=examples, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(example):
        drawn.append(example)

    draw()
    return drawn


def create_rows(spark, streams, buckets, column=None):
    """Create the rows of streams that arrive in the slices of a job, with their buckets.

    Args:
        spark: Session.
        streams: Streams, one for each lane.
        buckets: Buckets of the job.
        column: Name and type of a further column of the streams' rows.
    """
    rows = [
        {**_LABELS, **row, "lane": lane}
        for lane, stream in enumerate(streams)
        for row in stream["rows"]
        if buckets.contains(row["clock"])
    ]
    slice_number = F.call_function("div", F.col("clock"), F.lit(EVERY))
    frame = spark.createDataFrame(rows, f"{column}, {_COLUMNS}" if column else _COLUMNS)
    frame = frame.withColumns(dict.fromkeys(SIDES, F.lit(None).cast("string")))
    return frame.withColumn("bucket", buckets.bucket_column(F.col("lane"), slice_number, F.col("clock")))


def get_watermarks(row):
    """Return the left, right and combined watermark at a row's arrival."""
    return row["left_watermark"], row["right_watermark"], row["watermark"]


def summarize_watermarks(watermarks):
    """Return what the side output shows: the combined watermark, and which inputs hold it back."""
    left, right, combined = watermarks
    return combined, left == combined, right == combined
