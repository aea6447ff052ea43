"""Run a pipeline whose inputs fall idle."""

from datetime import UTC, datetime, timedelta

from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, id string, happened timestamp, arrived timestamp"


def test_run_with_both_inputs_idle_raises_watermark_to_the_greater(spark, lake, pipeline, write):
    """A real job of Flink 2.3 drops R2, which arrives after both inputs were idle."""
    write("left", [create_row("L1", 30, 61)], ROW)
    write("right", [create_row("R1", 10, 62), create_row("R2", 20, 80)], ROW)
    changes = {f"{side}__{name}": value for side in ("left", "right") for name, value in IDLE_INPUT.items()}
    changes["slices__start"] = "2024-01-01T01:00:00Z"
    settings = pipeline(join__interval={"lower": "-10 minutes", "upper": "10 minutes"}, **changes)
    plan = create_plan(spark, settings, str(lake), Request())

    list(execute(spark, plan, lambda *_: None))

    assert spark.read.format("delta").load(plan.tables.emissions).count() == 0
    [late] = spark.read.format("delta").load(plan.tables.late).collect()
    assert (late["right"]["id"], late["watermark"].isoformat()) == ("R2", "2024-01-01T00:29:59.999000")


IDLE_INPUT = {"watermark_delay": "0 seconds", "idle_timeout": "5 minutes"}


def create_row(row_id, happened, arrived):
    return "a", row_id, START + timedelta(minutes=happened), START + timedelta(minutes=arrived)
