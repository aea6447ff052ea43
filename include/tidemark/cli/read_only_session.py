"""The session of commands that read all of a pipeline's inputs, and write nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.errors import InputError
from tidemark.planning.plan import BRIEF_ROWS
from tidemark.sources.stored_input import stored_inputs
from tidemark.spark.lazy_session import awake, begin, deferred
from tidemark.spark.session import spark_session
from tidemark.spark.temporary_settings import tuned_for_tiny_queries


@contextmanager
def session_over(lake: str, name: str, *pipelines: Pipeline) -> Iterator[SparkSession]:
    """A session that starts and plans sooner where the pipelines' inputs have few rows, as their logs say."""
    spark = deferred(partial(spark_session, name, cluster=pipelines[0].cluster))
    brief = all(_is_small(spark, one, lake) for one in pipelines)
    begin(spark, brief=brief)
    with tuned_for_tiny_queries(awake(spark)) if brief else nullcontext():
        yield awake(spark)


def _is_small(spark: SparkSession, pipeline: Pipeline, lake: str) -> bool:
    try:
        logs = [source.table.log for source in stored_inputs(spark, pipeline, lake)]
    except InputError:  # the command itself tells of it
        return False
    # Not a number where a file does not say.
    return all(log is not None and log.files["rows"].sum(skipna=False) <= BRIEF_ROWS for log in logs)
