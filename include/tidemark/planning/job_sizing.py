"""Size Spark jobs by memory if the user does not size them: docs/performance-notes.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from rich import filesize

from tidemark.config import Pipeline
from tidemark.config.types import to_micros
from tidemark.planning.scan_estimate import InputFiles
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.resources import SessionResources
from tidemark.timegrid.slices import Grid

MAX_SLICES = 10_000
"""Largest number of slices of a job: each slice still has three buckets (`watermarks.buckets.TARGET_BUCKETS`)."""
ANNOTATION_BYTES = 100
"""Bytes that Tidemark adds to each input row: times, slice, watermarks, keys."""
COPIES = 4
"""Copies of a row that a job holds at a time: as read, in the bins that it joins, and while it is sorted."""


@dataclass(frozen=True)
class JobCapacity:
    """Number of rows that a Spark job can hold without spilling to disk."""

    rows: int
    reason: str

    @classmethod
    def from_session(cls, spark: SparkSession, inputs: tuple[StoredInput, StoredInput], carried: int) -> JobCapacity:
        """Compute the capacity of a session from its memory and the row width of the inputs.

        A job's rows are shuffled. The partitions that are processed at the same time, one per core, have to fit.

        Args:
            spark: The session.
            inputs: Both inputs.
            carried: Rows that are carried into the job.
        """
        machine = SessionResources.from_session(spark)
        partitions, memory = machine.shuffle_partitions, machine.memory_bytes / machine.cores
        width = ANNOTATION_BYTES + max(estimate_row_width(source.table.schema) for source in inputs)
        rows = int(memory * partitions / (COPIES * width))
        reason = (
            f"{rows:,} rows fill {filesize.decimal(int(memory))} of memory a core in {partitions} partitions, "
            f"at {COPIES} times {width} bytes a row"
        )
        return cls(max(1, rows - carried), reason + (f", {carried:,} of them carried in" if carried else ""))

    def cut_jobs(self, slices: range, rows: npt.NDArray[np.float64]) -> Iterator[range]:
        """Cut slices into jobs that fit. A slice is never cut.

        Args:
            slices: The slices.
            rows: Rows of each slice.
        """
        start, job_rows = slices.start, 0.0
        for number, count in zip(slices, rows, strict=True):
            if number > start and (job_rows + count > self.rows or number - start == MAX_SLICES):
                yield range(start, number)
                start, job_rows = number, 0.0
            job_rows += count
        if slices:
            yield range(start, slices.stop)


def list_slices_run_alone(pipeline: Pipeline, grid: Grid) -> list[int]:
    """List the slices that need a job of their own: those in which Flink SQL's job restarted, simulated row by row."""
    restarts = pipeline.restarts if pipeline.dialect == "flink-sql" else ()
    return sorted({grid.number_at(to_micros(restart)) for restart in restarts})


def cut_into_jobs(
    slices: range,
    files: Sequence[InputFiles],
    size: JobCapacity | int,
    run_alone: Sequence[int],
    late_arriving_rows: float = 0,
) -> Iterator[tuple[range, float]]:
    """Cut consecutive slices into jobs.

    Args:
        slices: The slices.
        files: The files of both inputs.
        size: Slices per job, or a capacity in rows.
        run_alone: Numbers of slices, in order, that get a job of their own.
        late_arriving_rows: Rows of earlier slices, which the first slice reads too.

    Yields:
        The slices of a job, and the approximate number of rows that it reads.
    """
    rows = np.sum([input_files.rows_per_slice(slices) for input_files in files], axis=0)
    rows[0] += late_arriving_rows
    rows_before = np.append(0.0, rows.cumsum())
    cuts = [cut for number in run_alone for cut in (number, number + 1) if cut in slices]
    for start, stop in pairwise([slices.start, *cuts, slices.stop]):
        part = range(start, stop)
        if isinstance(size, JobCapacity):
            jobs = size.cut_jobs(part, rows[start - slices.start : stop - slices.start])
        else:
            jobs = (part[first : first + size] for first in range(0, len(part), size))
        for job in jobs:
            yield job, float(rows_before[job.stop - slices.start] - rows_before[job.start - slices.start])


def estimate_row_width(dtype: T.DataType) -> int:
    """Return the bytes of a value as Spark's planner estimates them by type."""
    match dtype:
        case T.StructType():
            return sum(estimate_row_width(field.dataType) for field in dtype)
        case T.ArrayType():
            return estimate_row_width(dtype.elementType)
        case T.MapType():
            return estimate_row_width(dtype.keyType) + estimate_row_width(dtype.valueType)
        case T.DecimalType():
            return 8 if dtype.precision <= _LONG_DIGITS else 16
    return next((width for width, dtypes in _WIDTHS.items() if isinstance(dtype, dtypes)), 20)


_LONG_DIGITS = 18
_WIDTHS: dict[int, tuple[type[T.DataType], ...]] = {
    1: (T.BooleanType, T.ByteType),
    2: (T.ShortType,),
    4: (T.IntegerType, T.FloatType, T.DateType),
    8: (T.LongType, T.DoubleType, T.TimestampType, T.TimestampNTZType),
    100: (T.BinaryType,),
    2048: (T.VariantType,),
}
