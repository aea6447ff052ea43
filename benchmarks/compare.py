"""Measure `tidemark compare` of 7 million rows against a plain full outer join of the two tables.

The stream's table contains the pipeline's emissions, with one row in ten thousand lost and one doubled. Both are
measured in turns.

Usage: python -m benchmarks.compare [--rows 9000000] [--rounds 3]
"""

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.cases import create_cases
from benchmarks.data import write_inputs
from benchmarks.measure import measure
from benchmarks.peers.own import Tidemark, create_pipeline
from benchmarks.peers.peer import Work
from tidemark.comparison import Comparison, ComparisonRequest, compare
from tidemark.comparison.compared_columns import NOT_COMPARED
from tidemark.quality.gx.project import import_gx_in_background
from tidemark.spark.session import get_spark_session

ONE_IN = 10_000


def damage(emissions: DataFrame) -> DataFrame:
    """Return emissions as a stream's table, with some rows missing and others twice."""
    rows = emissions.drop(*NOT_COMPARED)
    chosen = F.pmod(F.xxhash64(*rows.columns), F.lit(ONE_IN))
    return rows.where(chosen != 0).unionByName(rows.where(chosen == 1))


def count_differences_by_join(spark: SparkSession, ours: str, theirs: str) -> int:
    """Count the rows in one table only, by all columns."""
    left, right = (spark.read.format("delta").load(path).drop(*NOT_COMPARED) for path in (ours, theirs))
    names = left.columns
    joined = left.withColumn("_ours", F.lit(1)).join(right.withColumn("_theirs", F.lit(1)), names, "full")
    return joined.where("_ours IS NULL OR _theirs IS NULL").count()


def main() -> None:
    """Run the pipeline once, damage its output, measure in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=9_000_000, help="rows per input")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = get_spark_session("tidemark bench")
    import_gx_in_background()
    with tempfile.TemporaryDirectory() as folder:
        work = Work(create_cases(arguments.rows)["base"], Path(folder), "bench")
        write_inputs(spark, work.case.shape, work.lake)
        Tidemark().run(work)
        emissions, theirs = f"{work.output_path}/emissions", f"{folder}/stream"
        damage(spark.read.format("delta").load(emissions)).write.format("delta").save(theirs)
        request = ComparisonRequest("stream", try_settings=False)
        rounds = []
        for _ in range(arguments.rounds + 1):
            plain = measure(lambda: print(f"  {count_differences_by_join(spark, emissions, theirs):,} rows differ"))
            own = measure(
                lambda: print(f"  {_format_summary(compare(spark, create_pipeline(work), folder, request, None))}")
            )
            print(f"full join {plain['seconds']:.1f} s, compare {own['seconds']:.1f} s", flush=True)
            rounds.append(own["seconds"] / plain["seconds"])
    ratios = sorted(rounds[1:])  # the first warms up
    print(f"ratio of compare to a full outer join, per round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    print(f"median {ratios[len(ratios) // 2]:.2f}; peak memory {own['memory'] / 1e9:.1f} GB")


def _format_summary(comparison: Comparison) -> str:
    causes = ", ".join(f"{cause.rows:,} {cause.cause}" for cause in comparison.causes)
    return f"{comparison.same:,} same; {causes}"


if __name__ == "__main__":
    main()
