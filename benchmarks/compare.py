"""`tidemark compare` of some 5 million rows with as many, beside a plain full outer join of the two tables.

The stream's table is what the pipeline has emitted, with one row in ten thousand lost and one doubled. Both are
measured in one run and in turns.

Usage: python benchmarks/compare.py [--rows 6000000] [--rounds 3]
"""

import argparse
import tempfile
from pathlib import Path

from interval_join import generate, peak_memory, tidemark, timed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.comparison import Asked, Comparison, compare
from tidemark.comparison.compare import NOT_COMPARED
from tidemark.execution import quality
from tidemark.settings import load_pipeline
from tidemark.spark.session import spark_session

ONE_IN = 10_000


def damaged(emissions: DataFrame) -> DataFrame:
    """A stream's table of these emissions: some rows missing, others twice."""
    rows = emissions.drop(*NOT_COMPARED)
    chosen = F.pmod(F.xxhash64(*rows.columns), F.lit(ONE_IN))
    return rows.where(chosen != 0).unionByName(rows.where(chosen == 1))


def full_outer_join(spark: SparkSession, ours: str, theirs: str) -> int:
    """How many rows one table has and the other has not, by all columns."""
    left, right = (spark.read.format("delta").load(path).drop(*NOT_COMPARED) for path in (ours, theirs))
    names = left.columns
    joined = left.withColumn("_ours", F.lit(1)).join(right.withColumn("_theirs", F.lit(1)), names, "full")
    return joined.where("_ours IS NULL OR _theirs IS NULL").count()


def main() -> None:
    """Run the pipeline once, damage its output, measure in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000_000, help="rows an input")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = spark_session("tidemark bench")
    quality.import_early()
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder)
        for seed, side in enumerate(("left", "right")):
            generate(spark, arguments.rows, 10 * seed).write.format("delta").save(f"{lake}/{side}")
        tidemark(spark, lake, "bench")
        ours, theirs = f"{lake}/bench/emissions", f"{lake}/stream"
        damaged(spark.read.format("delta").load(ours)).write.format("delta").save(theirs)
        pipeline = load_pipeline(lake / "bench.yaml")
        asked = Asked("stream", try_settings=False)
        rounds = []
        for _ in range(arguments.rounds + 1):
            plain = timed("full join", lambda: print(f"  {full_outer_join(spark, ours, theirs):,} rows differ"))
            own = timed("compare", lambda: print(f"  {_told(compare(spark, pipeline, str(lake), asked, None))}"))
            rounds.append(own / plain)
    ratios = sorted(rounds[1:])  # the first warms up
    print(f"ratio of compare to a full outer join, per round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    print(f"median {ratios[len(ratios) // 2]:.2f}; peak memory of Spark {peak_memory()}")


def _told(comparison: Comparison) -> str:
    causes = ", ".join(f"{one.rows:,} {one.cause}" for one in comparison.causes)
    return f"{comparison.same:,} same; {causes}"


if __name__ == "__main__":
    main()
