"""How many slices one Spark job takes when the user leaves it to Tidemark: docs/decisions/0016-groups-of-slices.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from rich import filesize

from tidemark.sources.stored_input import StoredInput
from tidemark.spark.resources import Machine

MOST_SLICES = 10_000
"""The most slices of one job: each still has three buckets of the clock (`watermarks.TARGET_BUCKETS`)."""
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
        machine = Machine.of(spark)
        partitions, memory = machine.partitions, machine.memory / machine.cores
        width = LABELS + max(row_width(source.table.schema) for source in inputs)
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


def row_width(kind: T.DataType) -> int:
    """Bytes of a value, as Spark's planner reckons by its type."""
    match kind:
        case T.StructType():
            return sum(row_width(field.dataType) for field in kind)
        case T.ArrayType():
            return row_width(kind.elementType)
        case T.MapType():
            return row_width(kind.keyType) + row_width(kind.valueType)
        case T.DecimalType():
            return 8 if kind.precision <= _LONG_DIGITS else 16
    return next((width for width, kinds in _WIDTHS.items() if isinstance(kind, kinds)), 20)


_LONG_DIGITS = 18
_WIDTHS: dict[int, tuple[type[T.DataType], ...]] = {
    1: (T.BooleanType, T.ByteType, T.NullType),
    2: (T.ShortType,),
    4: (T.IntegerType, T.FloatType, T.DateType),
    8: (T.LongType, T.DoubleType, T.TimestampType, T.TimestampNTZType),
    100: (T.BinaryType,),
    2048: (T.VariantType,),
}
