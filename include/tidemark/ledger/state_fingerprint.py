"""Digests that tell whether two states are the same, whatever the order of rows and however slices were grouped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from itertools import accumulate

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.formatting import quote_identifier
from tidemark.joins.base import Join
from tidemark.timegrid.time_columns import as_json
from tidemark.watermarks.watermarks import Watermarks

ROW_HASH = "row_hash"
_WRAP = 1 << 64
_HALF = 1 << 32
_UNHASHED = ("map<", "variant")


def row_hash(rows: DataFrame, names: Iterable[str]) -> Column:
    """A long that tells rows apart by these columns; a null, such as a column added later, does not change it."""
    kinds = {one.name: one.dataType for one in rows.schema}
    return F.xxhash64(*(_hashable(name, kinds[name]) for name in names))


def content_hash(rows: DataFrame, names: Iterable[str]) -> Column:
    """The same as `row_hash`, but for nulls: a value in one column is not the same value in another."""
    names = list(names)
    return F.xxhash64(row_hash(rows, names), *(F.col(quote_identifier(name)).isNull() for name in names))


def carried_hash(carried: DataFrame, join: Join) -> Column:
    """`row_hash` of a buffered row (`Replay.carried`), without what it met after the slice of its arrival.

    The watermark beside a row that came on time depends on how the clock was cut; that it was on time does not.
    """
    beside = {"lane", "carried_from", "evicted_in", *join.slice_valued_columns}
    names = [name for name in carried.columns if name not in beside]
    hashed = row_hash(carried, (name for name in names if name != "watermark"))
    if "watermark" not in names:
        return hashed
    exact = F.lit(join.needs_exact_watermarks) | (F.col("event_time") <= F.col("watermark"))
    return F.xxhash64(hashed, F.when(exact, F.col("watermark")))


def state_parts(checkpoint: DataFrame, join: Join) -> DataFrame:
    """What a checkpoint's rows hold, by `side` and the slices `since` <= n < `until`.

    `rows` is how many rows begin, `high` and `low` sum the halves of their hashes. What a row has met later than it
    came (`Join.slice_valued_columns`) is a part of its own, from that slice on. Slices are numbers.
    """
    since = F.col("carried_from")
    parts = F.array(F.struct(since.alias("since"), F.col(ROW_HASH).alias("hash"), F.lit(1).alias("rows")))
    nothing, kinds = F.slice(parts, 1, 0), dict(checkpoint.dtypes)
    met = []
    for name in (name for name in join.slice_valued_columns if name in kinds):
        label = F.lit(name)
        if kinds[name].startswith("map<"):
            entries = _met(F.map_values(name), label, F.map_keys(name))
        else:
            entries = F.when(F.col(name).isNotNull(), _met(F.array(name), label, F.array(label)))
        met.append(F.coalesce(entries, nothing))
    exploded = checkpoint.select(
        "side", F.col("carried_until").alias("until"), F.explode(F.concat(parts, *met)).alias("part")
    )
    part = F.col("part")
    return exploded.groupBy("side", part["since"].alias("since"), "until").agg(
        F.sum(part["rows"]).alias("rows"),
        F.sum(F.shiftrightunsigned(part["hash"], 32)).alias("high"),
        F.sum(part["hash"].bitwiseAND(F.lit(_HALF - 1))).alias("low"),
    )


def digests(
    parts: pd.DataFrame, ends: Mapping[int, Watermarks], forgotten: Mapping[int, int] | None = None
) -> dict[int, str]:
    """The digest of the state after each slice of a job: of `state_parts`, collected, and its watermarks.

    A state that some rows were `forgotten` of, so many after a slice, is not the same as one that never had them: the
    slices behind it have met them.
    """
    lost = forgotten or {}
    sums = [int(high) * _HALF + int(low) for high, low in zip(parts["high"], parts["low"], strict=True)]
    changes = dict.fromkeys(ends, 0)
    for since, until, total in zip(parts["since"], parts["until"], sums, strict=True):
        if until <= since:
            continue
        changes[int(since)] += total
        if int(until) in changes:
            changes[int(until)] -= total
    held = accumulate(changes.values())
    return {
        number: hashlib.sha256(
            f"{total % _WRAP} {_as_text(marks)}{f' forgotten={lost[number]}' if lost.get(number) else ''}".encode()
        ).hexdigest()[:32]
        for (number, marks), total in zip(ends.items(), held, strict=True)
    }


def _met(slices: Column, label: Column, keys: Column) -> Column:
    """Parts for slices, an array, in which a row met what `keys` tell."""

    def part(since: Column, key: Column) -> Column:
        later = F.greatest(since, F.col("carried_from")).alias("since")
        return F.struct(later, F.xxhash64(F.col(ROW_HASH), label, key, since).alias("hash"), F.lit(0).alias("rows"))

    return F.zip_with(slices, keys, part)


def _hashable(name: str, kind: T.DataType) -> Column:
    column = F.col(quote_identifier(name))
    if not any(one in kind.simpleString() for one in _UNHASHED):
        return column
    # Maps and variants have no hash in Spark.
    return F.when(column.isNotNull(), as_json(F.struct(column), T.StructType([T.StructField(name, kind)])))


def _as_text(marks: Watermarks) -> str:
    """Watermarks as digests have had them since format 1, whatever their fields are called now."""
    sources = ", ".join(
        f"Source(side={one.side!r}, partition={one.partition!r}, watermark={one.watermark}, last={one.last})"
        for one in marks.sources
    )
    return (
        f"Watermarks(left={marks.left}, right={marks.right}, batch={marks.batch}, "
        f"left_swept={marks.left_last_cleanup}, right_swept={marks.right_last_cleanup}, "
        f"advanced={marks.advanced}, sources=({sources}{',' if len(marks.sources) == 1 else ''}))"
    )
