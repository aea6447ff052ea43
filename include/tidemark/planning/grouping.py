"""How many slices one Spark job takes when the user leaves it to Tidemark: docs/decisions/0016-groups-of-slices.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession
from rich import filesize

from tidemark.inputs.stored import StoredInput
from tidemark.spark.jvm import execution_memory, row_width

MOST_SLICES = 10_000
"""The most slices of one job: each still has six buckets of the clock (`watermarks.TARGET_BUCKETS`)."""
LABELS = 100
"""Bytes of what Tidemark sets beside each row of an input: times, slice, watermarks, keys."""
COPIES = 4
"""How often a job holds a row at a time: as it was read, in the bins that it reaches, and while it is sorted."""


@dataclass(frozen=True)
class Room:
    """What one Spark job can hold without spilling to disk."""

    rows: int
    because: str

    @classmethod
    def of(cls, spark: SparkSession, inputs: tuple[StoredInput, StoredInput], carried: int) -> Room:
        """The room of this session, for rows as wide as Spark takes these inputs'; `carried` rows are there already.

        A job's rows are shuffled; the partitions that are worked on at once, one a core, have to fit into memory.
        """
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
        memory = execution_memory(spark) / spark.sparkContext.defaultParallelism
        width = LABELS + max(row_width(source.table.read()) for source in inputs)
        rows = int(memory * partitions / (COPIES * width))
        because = (
            f"{rows:,} rows fill {filesize.decimal(int(memory))} of memory a core in {partitions} partitions, "
            f"at {COPIES} times {width} bytes a row"
        )
        return cls(max(1, rows - carried), because + (f", {carried:,} of them carried in" if carried else ""))

    def jobs(self, slices: range, rows: npt.NDArray[np.float64]) -> Iterator[range]:
        """Cut slices into jobs that fit; `rows` is how many each slice has. A slice is never cut."""
        start, held = slices.start, 0.0
        for number, count in zip(slices, rows, strict=True):
            if number > start and (held + count > self.rows or number - start == MOST_SLICES):
                yield range(start, number)
                start, held = number, 0.0
            held += count
        if slices:
            yield range(start, slices.stop)
