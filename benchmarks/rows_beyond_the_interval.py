"""Flink SQL's interval join where rows come later than the interval, beside the same join with all rows in time.

Such rows may meet what outlives its time in the buffers, which is where the closed form needs more than a join
(docs/decisions/0010-sql-interval.md). Both are measured in one run and in turns: 24 hourly slices in one Spark job.

Usage: python benchmarks/rows_beyond_the_interval.py [--rows 500000] [--rounds 2] [--type left]
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

from interval_join import PIPELINE, generate, peak_memory, tidemark, timed

from tidemark.execution import quality
from tidemark.spark.session import spark_session

SHARES = {"in_time": 0.0, "late": 0.05}


def main() -> None:
    """Generate, warm up, measure in turns, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="rows a side")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--type", default="left", choices=["inner", "left", "right", "full"])
    arguments = parser.parse_args()
    spark = spark_session("tidemark bench")
    quality.import_early()
    flink_sql = {"dialect": "flink-sql", "join": {**PIPELINE["join"], "type": arguments.type}}
    with tempfile.TemporaryDirectory() as folder:
        lakes = {name: Path(folder, name) for name in SHARES}
        for name, share in SHARES.items():
            lakes[name].mkdir()
            for seed, side in enumerate(("left", "right")):
                rows = generate(spark, arguments.rows, 10 * seed, share)
                rows.write.format("delta").save(f"{lakes[name]}/{side}")
            status = tidemark(spark, lakes[name], "warm_up", **flink_sql)
            print(f"{name}: {status.emissions:,} emissions, warmed up", flush=True)
        rounds = []
        for n in range(arguments.rounds):
            output = f"round_{n}"
            runs = {name: partial(tidemark, spark, lakes[name], output, **flink_sql) for name in SHARES}
            rounds.append({name: timed(name, run) for name, run in runs.items()})
    ratios = ", ".join(f"{seconds['late'] / seconds['in_time']:.2f}" for seconds in rounds)
    print(f"ratio of late to in_time, per round: {ratios}")
    print(f"peak memory of Spark {peak_memory()}")


if __name__ == "__main__":
    main()
