"""The quality gate's share of a job's time: 24 and 8,760 hourly slices in one job each, with and without expectations.

The rows are those of `benchmarks.year`; eight expectations, of which each takes another way. With --profile the
functions in which the larger job's gate spends its time follow.

Usage: python -m benchmarks.gate [--rows 1000000] [--profile]
"""

import argparse
import cProfile
import os
import pstats
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession

from benchmarks.year import HOURS, PIPELINE, START, generate
from tidemark.config import load_pipeline
from tidemark.config.types import parse_instant
from tidemark.execution.job import JobResult
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.quality import gate
from tidemark.spark.session import spark_session

EXPECTED = [
    {"type": "expect_column_values_to_not_be_null", "column": "left_id"},
    {"type": "expect_column_values_to_be_between", "column": "left_key", "min_value": 0, "max_value": 499},
    {"type": "expect_table_row_count_to_be_between", "max_value": 1_000_000},
    {"type": "expect_column_mean_to_be_between", "column": "left_key", "min_value": 0, "max_value": 500},
    {"type": "expect_column_median_to_be_between", "column": "left_key", "max_value": 500, "severity": "warning"},
    {"type": "expect_compound_columns_to_be_unique", "column_list": ["left_id", "right_id"]},
    {"type": "expect_column_pair_values_to_be_equal", "column_A": "left_key", "column_B": "right_key"},
    {"type": "expect_column_values_to_be_between", "column": "behind_ms", "min_value": 0, "on": "late"},
]
SIZES = (24, HOURS)


def run(spark: SparkSession, lake: Path, name: str, slices: int, quality: list[dict[str, Any]]) -> JobResult:
    """So many slices in one job, of a pipeline of this name."""
    path = lake / f"{name}.yaml"
    content = {"name": name, **PIPELINE, "slices": {"every": "1 hour", "start": START}, "quality": quality}
    path.write_text(yaml.safe_dump(content))
    end = parse_instant(START) + timedelta(hours=slices)
    plan = make_plan(spark, load_pipeline(path), str(lake), Request(end=end, slices_per_job=slices))
    [result] = execute(spark, plan, lambda *_: None)
    return result


def measure(spark: SparkSession, lake: Path, rows: int, profile: cProfile.Profile | None) -> None:
    """Each size without expectations and with them."""
    for seed, side in enumerate(("left", "right")):
        generate(spark, rows, HOURS, 10 * seed).write.format("delta").save(f"{lake}/{side}")
    run(spark, lake, "warm_up", SIZES[0], EXPECTED)
    for slices in SIZES:
        for kind, quality in (("none", []), ("eight", EXPECTED)):
            if profile and slices == SIZES[-1] and quality:
                profile_judge(profile)
            result = run(spark, lake, f"{kind}_{slices}", slices, quality)
            judged = result.verdict.seconds
            print(
                f"{slices:5,} slices, {kind:5} expectations: job {result.seconds:6.1f} s, gate {judged:5.2f} s, "
                f"{judged / result.seconds:6.1%}; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


def profile_judge(profile: cProfile.Profile) -> None:
    """Let the gate's next verdict be profiled."""
    judge = gate.judge

    def profiled(*args: Any) -> Any:
        gate.judge = judge
        return profile.runcall(judge, *args)

    gate.judge = profiled


def main() -> None:
    """Measure in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of each input, over the year")
    parser.add_argument("--profile", action="store_true", help="where the gate spends its time")
    options = parser.parse_args()
    profile = cProfile.Profile() if options.profile else None
    with tempfile.TemporaryDirectory() as lake:
        measure(spark_session("the gate's share"), Path(lake), options.rows, profile)
    if profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
