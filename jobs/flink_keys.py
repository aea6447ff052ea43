"""Find the columns of tables that the joins of a chain compare, and encode their values for a Flink job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.errors import PipelineFileError
from tidemark.joins.keys import key_name
from tidemark.pipeline_tests.chain import Chain, TableInput


@dataclass(frozen=True)
class InputKey:
    """A key of a join, and the table that has its values."""

    input: TableInput
    join: str
    """Name of the join in the chain: that of the table, or a later one."""
    side: SideName
    number: int
    """Index in `join.keys`."""
    column: str | None
    """Column of the table; None for a key of the table's own join, which may be an expression."""


def list_input_keys(chain: Chain) -> dict[str, list[InputKey]]:
    """List the keys whose values each table has, by its name: those of its own join, then those of later joins.

    Raises:
        PipelineFileError: A key of a later join is not a column of a table.
    """
    keys = [
        find_input_key(chain, join, side, number)
        for join, pipeline in chain.joins.items()
        for side in SIDES
        for number in range(len(pipeline.join.keys))
    ]
    keys.sort(key=lambda key: key.column is not None)
    return {source.name: [key for key in keys if key.input == source] for source in chain.inputs}


def find_input_key(chain: Chain, join: str, side: SideName, number: int) -> InputKey:
    """Find the table that has the values of a key.

    Args:
        chain: The chain.
        join: Name of the join.
        side: Side of the key.
        number: Its index in `join.keys`.

    Raises:
        PipelineFileError: The key is not a column of a table.
    """
    pipeline = chain.joins[join]
    if side not in pipeline.upstreams:
        return InputKey(TableInput(join, pipeline, side), join, side, number, None)
    name = getattr(pipeline.join.keys[number], side)
    source, column = _find_source(chain, pipeline.upstreams[side].pipeline, name, pipeline)
    return InputKey(source, join, side, number, column)


def _find_source(chain: Chain, join: str, name: str, reader: Pipeline) -> tuple[TableInput, str]:
    """Find the table column that an output column of a join copies."""
    pipeline = chain.joins[join]
    if isinstance(pipeline.select, dict):
        name = pipeline.select.get(name, name)
    for side in SIDES:
        column = name.removeprefix(f"{side}_")
        if column != name and column.isidentifier():
            if side in pipeline.upstreams:
                return _find_source(chain, pipeline.upstreams[side].pipeline, column, reader)
            return TableInput(join, pipeline, side), column
    raise PipelineFileError(
        f"{reader.name} has the key {name}, and Flink gets only keys that are columns of a table, with a name of "
        "letters, digits and _. Use such a key."
    )


def encode_keys(keys: Sequence[InputKey], types: Sequence[T.DataType], row_column: str) -> Column:
    """Return an array of the keys of a table's rows as texts, which are equal where Tidemark's keys are; null as null.

    Args:
        keys: The keys whose values the table has.
        types: Common type of each key with that of the other side.
        row_column: Column with the struct of a table's row.
    """
    return F.array(*(_encode(key, dtype, row_column) for key, dtype in zip(keys, types, strict=True)))


def _encode(key: InputKey, dtype: T.DataType, row_column: str) -> Column:
    if key.column is None:
        value = F.col(key_name(key.number))
    else:
        value = F.col(row_column).getField(key.column).cast(dtype)
        if isinstance(dtype, T.FloatType | T.DoubleType):  # as the table's own keys, see `sources.normalization`
            value = value.cast("double")
    is_nested = isinstance(dtype, T.ArrayType | T.StructType)
    text = F.to_json(value) if is_nested else value.cast("string")
    # Text in base64 contains no separators. Without the prefix, an empty text would be read as null.
    return F.concat(F.lit("="), F.base64(text.cast("binary")))
