"""A live Structured Streaming query and its replay emit the same rows in the same slices."""

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F

import tidemark_conformance as conformance
from tidemark.spark.temporary_settings import FILTER_INFERENCE_SETTINGS, override_settings, tuned_for_tiny_queries

SCHEMA = "side string, id long, key string, ts timestamp"
MINUTE = 60_000
START = 1_700_000_000_000 // MINUTE * MINUTE


def create_row(number, minutes, key="a"):
    return {"id": number, "key": key, "ts": None if minutes is None else START + round(minutes * MINUTE)}


LATE_ROWS = [
    {"left": [create_row(1, 0), create_row(2, 10, "b")], "right": [create_row(3, 2), create_row(4, 9, None)]},
    {"left": [create_row(5, 31)], "right": [create_row(6, 30)]},
    {
        "left": [create_row(7, 12), create_row(8, 20), create_row(9, 26, None), create_row(18, 33)],
        "right": [create_row(10, 20), create_row(11, 33)],
    },
    {"left": [], "right": [create_row(12, 90)]},
    {"left": [create_row(13, 91), create_row(14, None), create_row(19, 33)], "right": []},
    {"left": [create_row(15, 30), create_row(16, 150)], "right": [create_row(17, 149)]},
]
ROWS_OF_OTHER_KEYS = [
    {"left": [create_row(1, 60)], "right": [create_row(2, 2), create_row(3, 60, "b")]},
    {"left": [create_row(4, 31)], "right": [create_row(5, 61, "b")]},
    {"left": [create_row(6, 30)], "right": [create_row(7, 30), create_row(8, 120)]},
    {"left": [create_row(9, 121)], "right": [create_row(10, 62, "b"), create_row(11, 29)]},
    {"left": [create_row(12, 40)], "right": [create_row(13, 200)]},
]
FIVE_MINUTES = {"lower_ms": -5 * MINUTE, "upper_ms": 5 * MINUTE, "lower_inclusive": True, "upper_inclusive": True}


def create_vector(name, **changes):
    base = {"name": name, "engine": "spark-4.1.3", "mode": "idle", "policy": "min", "late_watermark": "previous_batch"}
    shape = {"bounds": None, "window": None, "event_time_equality": False, "batches": LATE_ROWS}
    return {**base, **shape, "delay_left_ms": 5 * MINUTE, "delay_right_ms": 0, **changes}


CASES = [
    create_vector("left outer, range", join_type="left", bounds=FIVE_MINUTES),
    create_vector(
        "full outer, sliding windows", join_type="full", window={"size_ms": 10 * MINUTE, "slide_ms": 5 * MINUTE}
    ),
    create_vector(
        "inner, key in the condition",
        join_type="inner",
        bounds=FIVE_MINUTES,
        left_key="a",
        batches=ROWS_OF_OTHER_KEYS,
    ),
    create_vector(
        "left outer, key in the condition",
        join_type="left",
        bounds=FIVE_MINUTES,
        left_key="a",
        batches=ROWS_OF_OTHER_KEYS,
    ),
    create_vector(
        "left semi, equal times, one watermark", join_type="leftsemi", event_time_equality=True, delay_left_ms=None
    ),
]


SLOW = ("left", "leftsemi")


def create_query(spark, vector, folder):
    """Create the query of a vector over a folder of files with the rows of both inputs."""
    events = spark.readStream.schema(SCHEMA).json(str(folder))
    sides, window = {}, vector["window"]
    for side in ("left", "right"):
        rows = events.where(F.col("side") == side).drop("side")
        if (delay := vector[f"delay_{side}_ms"]) is not None:
            rows = rows.withWatermark("ts", f"{delay} milliseconds")
        if window:
            spans = F.window("ts", f"{window['size_ms']} milliseconds", f"{window['slide_ms']} milliseconds")
            rows = rows.withColumn("window", spans).drop("ts")
        sides[side] = rows.withColumnsRenamed({name: f"{side}_{name}" for name in rows.columns})
    same = F.col("left_key") == F.col("right_key")
    if window:
        same = same & (F.col("left_window") == F.col("right_window"))
    if vector["event_time_equality"]:
        same = same & (F.col("left_ts") == F.col("right_ts"))
    if bounds := vector["bounds"]:
        ends = (F.expr(f"left_ts + interval {bounds[f'{name}_ms']} milliseconds") for name in ("lower", "upper"))
        low, high = ends
        same = same & (F.col("right_ts") >= low) & (F.col("right_ts") <= high)
    if key := vector.get("left_key"):
        same = same & (F.col("left_key") == key)
    joined = sides["left"].join(sides["right"], same, vector["join_type"])
    ids = [F.col(name) if name in joined.columns else F.lit(None).alias(name) for name in ("left_id", "right_id")]
    starts = [F.unix_millis(f"{side}_window.start") for side in sides if f"{side}_window" in joined.columns]
    start = F.coalesce(*starts) if starts else F.lit(None)
    return joined.select(*ids, start.alias("window_start_ms"))


def record(spark, vector, folder):
    """Run the query of a vector, and return the vector with the engine's results."""
    folder.mkdir()
    name = "recorded_" + "".join(c for c in vector["name"] if c.isalpha())
    with override_settings(spark, FILTER_INFERENCE_SETTINGS):
        query = create_query(spark, vector, folder).writeStream.format("memory").queryName(name).start()
    executed, expected = [], []
    try:
        for step, batch in enumerate(vector["batches"]):
            rows = [{**r, "side": side} for side in batch for r in batch[side]]
            lines = [{**r, "ts": None if r["ts"] is None else format_time(r["ts"])} for r in rows]
            hidden = folder / f"_{step}"
            hidden.write_text("\n".join(map(json.dumps, lines)))
            hidden.rename(folder / f"{step}.json")
            query.processAllAvailable()
            ran = [p for p in query.recentProgress if p["batchId"] >= len(executed)]
            for number, progress in enumerate(p for p in ran if p["durationMs"].get("addBatch") is not None):
                [state] = progress["stateOperators"]
                executed.append(
                    {
                        "batch": progress["batchId"],
                        "input_index": None if number else step,
                        "rows_dropped_by_watermark": state["numRowsDroppedByWatermark"],
                    }
                )
            first = next(e["batch"] for e in executed if e["input_index"] == step)
            output = [r.asDict() for r in spark.table(name).collect()]
            expected += [{"batch": first, **r} for r in find_new_rows(output, expected)]
    finally:
        query.stop()
    return {**vector, "executed": executed, "expected": expected}


def find_new_rows(output, before):
    """Yield the rows that were not in the output before, as multisets."""
    left = [{k: v for k, v in r.items() if k != "batch"} for r in before]
    for r in output:
        if r in left:
            left.remove(r)
        else:
            yield r


def format_time(millis):
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat()


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(vector, id=vector["name"], marks=pytest.mark.slow if vector["join_type"] in SLOW else [])
        for vector in CASES
    ],
)
def test_replay_structured_streaming_query_emits_same_rows(spark, tmp_path, vector):
    recorded = record(spark, vector, tmp_path / "events")
    assert recorded["expected"]
    assert sum(batch["rows_dropped_by_watermark"] for batch in recorded["executed"])
    cuts = conformance.parse_cuts("1,3,each", recorded)
    with tuned_for_tiny_queries(spark):
        for result in conformance.check_cases(spark, [conformance.Case(recorded, cut) for cut in cuts]):
            assert result.passed, result
