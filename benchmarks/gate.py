"""Measure the quality gate's share of a job's time, with and without expectations.

The jobs have 24 and 8,760 hourly slices over the rows of `benchmarks.year`, and eight expectations of different kinds.
With --profile the functions in which the larger job's gate spends its time follow.

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

from benchmarks.year import HOURS, PIPELINE, START, generate_rows
from tidemark.config import load_pipeline
from tidemark.config.types import parse_instant
from tidemark.execution import quality_gate
from tidemark.execution.job import JobResult
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.session import get_spark_session

EXPECTATIONS = [
    {"type": "expect_column_values_to_not_be_null", "column": "left_id"},
    {"type": "expect_column_values_to_be_between", "column": "left_key", "min_value": 0, "max_value": 499},
    {"type": "expect_table_row_count_to_be_between", "max_value": 1_000_000},
    {"type": "expect_column_mean_to_be_between", "column": "left_key", "min_value": 0, "max_value": 500},
    {"type": "expect_column_median_to_be_between", "column": "left_key", "max_value": 500, "severity": "warning"},
    {"type": "expect_compound_columns_to_be_unique", "column_list": ["left_id", "right_id"]},
    {"type": "expect_column_pair_values_to_be_equal", "column_A": "left_key", "column_B": "right_key"},
    {"type": "expect_column_values_to_be_between", "column": "lateness_ms", "min_value": 0, "on": "late"},
]
SIZES = (24, HOURS)


def run_slices(spark: SparkSession, lake: Path, name: str, slices: int, quality: list[dict[str, Any]]) -> JobResult:
    """Run a number of slices in one job."""
    path = lake / f"{name}.yaml"
    content = {"name": name, **PIPELINE, "slices": {"every": "1 hour", "start": START}, "quality": quality}
    path.write_text(yaml.safe_dump(content))
    end = parse_instant(START) + timedelta(hours=slices)
    plan = create_plan(spark, load_pipeline(path), str(lake), Request(end=end, slices_per_job=slices))
    [result] = execute(spark, plan, lambda *_: None)
    return result


def measure_gate(spark: SparkSession, lake: Path, rows: int, profile: cProfile.Profile | None) -> None:
    """Measure each size without and with expectations."""
    for seed, side in enumerate(("left", "right")):
        generate_rows(spark, rows, HOURS, 10 * seed).write.format("delta").save(f"{lake}/{side}")
    run_slices(spark, lake, "warm_up", SIZES[0], EXPECTATIONS)
    for slices in SIZES:
        for kind, quality in (("none", []), ("eight", EXPECTATIONS)):
            if profile and slices == SIZES[-1] and quality:
                profile_validation(profile)
            result = run_slices(spark, lake, f"{kind}_{slices}", slices, quality)
            gate_seconds = result.validation_result.seconds
            print(
                f"{slices:5,} slices, {kind:5} expectations: job {result.seconds:6.1f} s, gate {gate_seconds:5.2f} s, "
                f"{gate_seconds / result.seconds:6.1%}; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


def profile_validation(profile: cProfile.Profile) -> None:
    """Profile the gate's next validation."""
    validate_output = quality_gate.validate_output

    def profiled(*args: Any) -> Any:
        quality_gate.validate_output = validate_output
        return profile.runcall(validate_output, *args)

    quality_gate.validate_output = profiled


def main() -> None:
    """Measure in a temporary lake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows per input, over the year")
    parser.add_argument("--profile", action="store_true", help="print the functions in which the gate spends its time")
    options = parser.parse_args()
    profile = cProfile.Profile() if options.profile else None
    with tempfile.TemporaryDirectory() as lake:
        measure_gate(get_spark_session("quality gate"), Path(lake), options.rows, profile)
    if profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
