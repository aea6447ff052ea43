"""Start a Spark session for commands that read a pipeline's inputs and write nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.errors import InputError
from tidemark.planning.plan import MAX_BRIEF_ROWS
from tidemark.sources.resolution import open_inputs
from tidemark.spark.lazy_session import create_lazy_session, resolve_session, start_in_background
from tidemark.spark.session import get_spark_session
from tidemark.spark.temporary_settings import tuned_for_tiny_queries


@contextmanager
def read_only_session(lake: str, name: str, *pipelines: Pipeline) -> Iterator[SparkSession]:
    """Provide a session, tuned for fast start and planning if the inputs have few rows.

    Args:
        lake: The lake root.
        name: Name of the Spark application.
        pipelines: The pipelines to read. The first one's cluster settings apply.
    """
    spark = create_lazy_session(partial(get_spark_session, name, cluster=pipelines[0].cluster))
    is_small = all(_is_small(spark, pipeline, lake) for pipeline in pipelines)
    start_in_background(spark, brief=is_small)
    with tuned_for_tiny_queries(resolve_session(spark)) if is_small else nullcontext():
        yield resolve_session(spark)


def _is_small(spark: SparkSession, pipeline: Pipeline, lake: str) -> bool:
    try:
        logs = [source.table.table for source in open_inputs(spark, pipeline, lake)]
    except InputError:  # the command reports it
        return False
    # NaN if a file has no row count.
    return all(log is not None and log.files["rows"].sum(skipna=False) <= MAX_BRIEF_ROWS for log in logs)
