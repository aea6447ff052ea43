"""Compute fingerprints of join state, independent of row order and of how slices were grouped into jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import accumulate
from zlib import crc32

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.formatting import quote_identifier
from tidemark.joins.base import Join
from tidemark.timegrid.time_columns import as_json
from tidemark.watermarks.values import Watermarks

ROW_HASH = "row_hash"
_WRAP = 1 << 64
_HALF = 1 << 32


def row_hash(rows: DataFrame, names: Iterable[str]) -> Column:
    """Hash columns of a row to a long. Nulls do not change the hash, so a column or a field may be added later."""
    dtypes = {field.name: field.dataType for field in rows.schema}
    parts = (part for name in names for part in _hash_values(F.col(quote_identifier(name)), dtypes[name], name))
    return F.xxhash64(*parts)


def carried_hash(carried: DataFrame, join: Join) -> Column:
    """Hash a buffered row (`ReplayResult.carried`) without columns that change after the slice of its arrival.

    The watermark is hashed for late rows, or if the join needs exact ones in all jobs. For a row on time it depends on
    how time was cut into slices.
    """
    unhashed = {"lane", "carried_from", "evicted_in", *join.slice_valued_columns}
    names = [name for name in carried.columns if name not in unhashed]
    hashed = row_hash(carried, (name for name in names if name != "watermark"))
    if "watermark" not in names:
        return hashed
    always_exact = join.needs_exact_watermarks and not join.selects_exact_rows
    exact = F.lit(always_exact) | (F.col("event_time") <= F.col("watermark"))
    return F.xxhash64(hashed, F.when(exact, F.col("watermark")))


def state_parts(checkpoint: DataFrame, join: Join) -> DataFrame:
    """Aggregate a checkpoint's rows by `side` and the slices in which they are buffered.

    A value that a row gets after its arrival (`Join.slice_valued_columns`) is a part of its own, from that slice on.

    Returns:
        Columns `side`, `since` and `until` (slice numbers, since <= n < until), `rows` (number of rows that begin),
        `high` and `low` (sums of the halves of their hashes).
    """
    since, until = F.col("carried_from").alias("since"), F.col("carried_until").alias("until")
    parts = checkpoint.select("side", since, until, F.col(ROW_HASH).alias("hash"), F.lit(1).alias("rows"))
    dtypes = dict(checkpoint.dtypes)
    if names := [name for name in join.slice_valued_columns if name in dtypes]:
        # A query of its own, because few rows have such a value, and Spark skips row groups without any.
        with_value = checkpoint.where(reduce(Column.__or__, (F.col(name).isNotNull() for name in names)))
        later_parts = F.explode(F.concat(*(_later_parts(name, dtypes[name]) for name in names)))
        later = with_value.select("side", until, later_parts.alias("part"))
        parts = parts.unionByName(later.select("side", "part.since", "until", "part.hash", F.lit(0).alias("rows")))
    return parts.groupBy("side", "since", "until").agg(
        F.sum("rows").alias("rows"),
        F.sum(F.shiftrightunsigned("hash", 32)).alias("high"),
        F.sum(F.col("hash").bitwiseAND(F.lit(_HALF - 1))).alias("low"),
    )


def compute_fingerprints(
    parts: pd.DataFrame, ends: Mapping[int, Watermarks], erased_counts: Mapping[int, int] | None = None
) -> dict[int, str]:
    """Compute the fingerprint of the state after each slice of a job.

    Args:
        parts: Collected `state_parts`.
        ends: Watermarks at the end of each slice.
        erased_counts: Number of rows erased from the state after a slice. Later slices have read these rows, so the
            state differs from one that never had them.
    """
    lost = erased_counts or {}
    sums = [int(high) * _HALF + int(low) for high, low in zip(parts["high"], parts["low"], strict=True)]
    changes = dict.fromkeys(ends, 0)
    for since, until, total in zip(parts["since"], parts["until"], sums, strict=True):
        if until <= since:
            continue
        changes[int(since)] += total
        if int(until) in changes:
            changes[int(until)] -= total
    totals = accumulate(changes.values())
    return {
        number: hashlib.sha256(
            f"{total % _WRAP} {_as_text(watermarks)}{f' erased={lost[number]}' if lost.get(number) else ''}".encode()
        ).hexdigest()[:32]
        for (number, watermarks), total in zip(ends.items(), totals, strict=True)
    }


def _later_parts(name: str, dtype: str) -> Column:
    """Return the parts for the values that a row got in a column, as an array of structs of `since` and `hash`."""
    column, label = F.col(name), F.lit(name)
    is_map = dtype.startswith("map<")
    slices, keys = (F.map_values(column), F.map_keys(column)) if is_map else (F.array(column), F.array(label))

    def part(since: Column, key: Column) -> Column:
        later = F.greatest(since, F.col("carried_from")).alias("since")
        return F.struct(later, F.xxhash64(F.col(ROW_HASH), label, key, since).alias("hash"))

    parts = F.zip_with(slices, keys, part)
    return F.when(column.isNotNull(), parts).otherwise(F.slice(parts, 1, 0))


def _hash_values(column: Column, dtype: T.DataType, path: str) -> Iterator[Column]:
    """Yield a hash of a value and its path, of a struct one for each field; null for null.

    Without the path, a value in another column would have the same hash, because Spark skips nulls.
    """
    if isinstance(dtype, T.StructType):
        for field in dtype:
            yield from _hash_values(column[field.name], field.dataType, f"{path}.{field.name}")
        return
    value = column
    # Spark cannot hash maps and variants. In arrays it skips nulls, and does not hash where an inner one ends.
    if isinstance(dtype, T.MapType | T.ArrayType | T.VariantType):
        wrapped = T.StructType([T.StructField("value", dtype)])
        value = as_json(F.struct(column.alias("value")), wrapped, has_null_fields=False)
    yield F.when(column.isNotNull(), F.xxhash64(F.lit(crc32(path.encode())), value))


def _as_text(watermarks: Watermarks) -> str:
    """Serialize watermarks for the fingerprint. The field names are fixed, or stored fingerprints would change."""
    sources = ", ".join(
        f"Source(side={source.side!r}, partition={source.partition!r}, watermark={source.watermark}, "
        f"last_clock={source.last_clock})"
        for source in watermarks.sources
    )
    return (
        f"Watermarks(left={watermarks.left}, right={watermarks.right}, batch={watermarks.batch}, "
        f"left_last_cleanup={watermarks.left_last_cleanup}, right_last_cleanup={watermarks.right_last_cleanup}, "
        f"sources_combined={watermarks.sources_combined}, "
        f"sources=({sources}{',' if len(watermarks.sources) == 1 else ''}))"
    )
