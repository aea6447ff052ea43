"""A slice is a micro-batch: `run`, a job for two slices, gives what the oracle gives for the same batches."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.semantics.spark_stream_stream import compute_expected
from tidemark.errors import PipelineFileError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, create_plan

START = datetime(2024, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SCHEMA = "id int, k string, happened timestamp, arrived timestamp, v int"


def rows_of(chance, count, first):
    """Rows over seven hours, none in the fourth, some hours late, some without key, time or v."""
    for number in range(first, first + count):
        arrived = START + chance.choice([0, 1, 2, 4, 5, 6]) * HOUR + timedelta(minutes=chance.randrange(60))
        happened = arrived - timedelta(microseconds=chance.randrange(4 * 3_600_000_000))
        when = None if chance.random() < 0.05 else happened
        yield number, chance.choice(["a", "b", None]), when, arrived, chance.choice([None, 1, 2, 3, 4])


def vector_of(sides, **more):
    """The hours with rows as batches."""
    batches = []
    for hour in range(7):
        step = {
            side: [
                {"id": number, "key": k, "ts": t and (t - EPOCH) // timedelta(microseconds=1), "v": v}
                for number, k, t, arrived, v in rows
                if (arrived - START) // HOUR == hour
            ]
            for side, rows in sides.items()
        }
        batches += [step] if step["left"] or step["right"] else []
    fixed = {"ts_unit": "us", "window": None, "policy": "min", "delay_left_ms": 3_600_000, "delay_right_ms": 0}
    return {**fixed, "batches": batches, **more}


BOUNDS = {"lower_ms": -1_800_000, "upper_ms": 3_600_000, "lower_inclusive": True, "upper_inclusive": False}
INTERVAL = {"lower": "-30 minutes", "upper": "1 hour", "upper_inclusive": False}


@pytest.mark.parametrize(
    ("kind", "batches"), [("full", "idle"), pytest.param("left", "back_to_back", marks=pytest.mark.slow)]
)
def test_run_equals_the_oracle(spark, lake, pipeline, write, kind, batches):
    chance = random.Random(kind + batches)
    sides = {"left": list(rows_of(chance, 120, 0)), "right": list(rows_of(chance, 120, 200))}
    for side, rows in sides.items():
        write(side, rows, SCHEMA)
    late_watermark = "current_batch" if kind == "left" else "previous_batch"
    told = compute_expected(
        vector_of(
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
    assert all(result.verdict.outcome == "passed" for result in results)

    found = spark.read.format("delta").load(f"{lake}/orders/emissions").collect()
    hours = [0, 1, 2, 4, 5, 6]
    steps, step = {}, 0
    for batch in told["executed"]:
        step = step if batch["input_index"] is None else batch["input_index"]
        steps[batch["batch"]] = START + hours[step] * HOUR
    expected = Counter((steps[row["batch"]], row["left_id"], row["right_id"]) for row in told["expected"])
    assert Counter((row["_slice"].astimezone(UTC), row["left_id"], row["right_id"]) for row in found) == expected
    late = spark.read.format("delta").load(f"{lake}/orders/late").where("reason = 'late'").count()
    assert late == sum(batch["rows_dropped_by_watermark"] for batch in told["executed"]) > 0


def test_a_condition_on_event_time_is_refused(spark, lake, pipeline, write):
    for side in ("left", "right"):
        write(side, [(1, "a", START, START, 1)], SCHEMA)
    condition = "left_happened < right_happened"
    settings = pipeline(dialect="spark", join={"keys": ["k"], "interval": INTERVAL, "condition": condition})
    with pytest.raises(PipelineFileError, match="join.condition: left_happened is the event time"):
        create_plan(spark, settings, str(lake), Request())
