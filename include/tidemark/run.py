"""Executing a plan: its jobs in order, each continuing the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from pyspark.sql import SparkSession

from tidemark import quality
from tidemark.job import JobResult, run_job
from tidemark.plan import Plan


def execute(spark: SparkSession, plan: Plan, progress: Callable[[int, str], None]) -> Iterator[JobResult]:
    """Run a plan's jobs one after another, yielding each as it is committed.

    `progress` is told the number of the job (from 0) and the step that begins. What was committed before an error
    stays committed.

    Raises:
        TidemarkError: as `job.run_job`; the job that failed published nothing.
    """
    quality.check_names(plan.pipeline)
    carry_in = plan.carry_in
    for number, slices in enumerate(plan.jobs):
        result = run_job(spark, plan, slices, carry_in, partial(progress, number))
        carry_in = result.last
        yield result
