"""A slice is a micro-batch: a run with two slices per job emits the oracle's rows for the same batches."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.semantics.spark_stream_stream import compute_expected
from tidemark.errors import PipelineFileError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request

START = datetime(2024, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SCHEMA = "id int, k string, happened timestamp, arrived timestamp, v int"


def create_rows(rng, count, first):
    """Yield rows over seven hours, none in the fourth, some hours late, some without key, event time or v."""
    for number in range(first, first + count):
        arrived = START + rng.choice([0, 1, 2, 4, 5, 6]) * HOUR + timedelta(minutes=rng.randrange(60))
        happened = arrived - timedelta(microseconds=rng.randrange(4 * 3_600_000_000))
        event_time = None if rng.random() < 0.05 else happened
        yield number, rng.choice(["a", "b", None]), event_time, arrived, rng.choice([None, 1, 2, 3, 4])


def create_vector(sides, **changes):
    """Create a vector whose batches are the hours that have rows."""
    batches = []
    for hour in range(7):
        batch = {
            side: [
                {"id": number, "key": k, "ts": t and (t - EPOCH) // timedelta(microseconds=1), "v": v}
                for number, k, t, arrived, v in rows
                if (arrived - START) // HOUR == hour
            ]
            for side, rows in sides.items()
        }
        batches += [batch] if batch["left"] or batch["right"] else []
    common = {"ts_unit": "us", "window": None, "policy": "min", "delay_left_ms": 3_600_000, "delay_right_ms": 0}
    return {**common, "batches": batches, **changes}


BOUNDS = {"lower_ms": -1_800_000, "upper_ms": 3_600_000, "lower_inclusive": True, "upper_inclusive": False}
INTERVAL = {"lower": "-30 minutes", "upper": "1 hour", "upper_inclusive": False}


@pytest.mark.parametrize(
    ("kind", "batches"), [("full", "idle"), pytest.param("left", "back_to_back", marks=pytest.mark.slow)]
)
def test_run_spark_dialect_equals_oracle(spark, lake, pipeline, write, kind, batches):
    rng = random.Random(kind + batches)
    sides = {"left": list(create_rows(rng, 120, 0)), "right": list(create_rows(rng, 120, 200))}
    for side, rows in sides.items():
        write(side, rows, SCHEMA)
    late_watermark = "current_batch" if kind == "left" else "previous_batch"
    oracle_result = compute_expected(
        create_vector(
            sides,
            join_type=kind,
            mode="idle" if batches == "idle" else "busy",
            late_watermark=late_watermark,
            bounds=BOUNDS,
            left_max_v=3,
            v_differs=True,
        )
    )
    settings = pipeline(
        dialect="spark",
        left__watermark_delay="1 hour",
        join={"keys": ["k"], "type": kind, "interval": INTERVAL, "condition": "left_v <= 3 AND left_v <> right_v"},
        spark={"micro_batches": batches, "late_watermark": late_watermark},
    )
    plan = create_plan(spark, settings, str(lake), Request(slices_per_job=2, drain=True))
    results = list(execute(spark, plan, lambda *_: None))
    assert all(result.validation_result.outcome == "passed" for result in results)

    emissions = spark.read.format("delta").load(f"{lake}/orders/emissions").collect()
    hours = [0, 1, 2, 4, 5, 6]
    steps, step = {}, 0
    for batch in oracle_result["executed"]:
        step = step if batch["input_index"] is None else batch["input_index"]
        steps[batch["batch"]] = START + hours[step] * HOUR
    expected = Counter((steps[row["batch"]], row["left_id"], row["right_id"]) for row in oracle_result["expected"])
    assert Counter((row["_slice"].astimezone(UTC), row["left_id"], row["right_id"]) for row in emissions) == expected

    late = spark.read.format("delta").load(f"{lake}/orders/late").where("reason = 'late'").count()
    assert late == sum(batch["rows_dropped_by_watermark"] for batch in oracle_result["executed"]) > 0


def test_condition_on_event_time_is_rejected(spark, lake, pipeline, write):
    for side in ("left", "right"):
        write(side, [(1, "a", START, START, 1)], SCHEMA)
    condition = "left_happened < right_happened"
    settings = pipeline(dialect="spark", join={"keys": ["k"], "interval": INTERVAL, "condition": condition})
    with pytest.raises(PipelineFileError, match="join.condition: left_happened is the event time"):
        create_plan(spark, settings, str(lake), Request())
