"""Expectations proposed by what committed emissions hold: bounds that every slice so far has kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import yaml
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import Expectation
from tidemark.formatting import counted, quoted

FEW = 12
"""At most so many values make a set."""
LONGEST = 100
"""Letters of a text that may stand in a set."""
_SLACK = 2
"""Rows in a slice may be so many times more than the most seen, or fewer than the least."""
_DIGITS = 2
"""To so many digits the bounds of numbers are rounded, outwards."""


@dataclass(frozen=True)
class Profile:
    """What emissions hold, over slices that have any."""

    slices: int
    rows: int
    fewest: int
    """Rows of a slice."""
    most: int
    columns: tuple[ColumnProfile, ...]


@dataclass(frozen=True)
class ColumnProfile:
    """What a column holds."""

    name: str
    nulls: int
    most_null: float
    """The greatest share of nulls in a slice."""
    least: Any = None
    """Of numbers; None for others."""
    greatest: Any = None
    values: tuple[Any, ...] = ()
    """Of texts and booleans all values where they are `FEW`, else none."""


def profile(emissions: DataFrame) -> Profile | None:
    """Read emissions, in one query for counts and bounds, and one for small sets; None where there are none."""
    columns = [one for one in emissions.schema if not one.name.startswith("_") and _is_plain(one.dataType)]
    asked = [F.count("*").alias("rows")]
    for number, one in enumerate(columns):
        asked += [measure.alias(f"{name}_{number}") for name, measure in _measures(one).items()]
    found = emissions.rollup("_slice").agg(*asked).toPandas()
    slices, [total] = found[found["_slice"].notna()], found[found["_slice"].isna()].to_dict("records") or [{}]
    if slices.empty:
        return None
    few = [n for n, _ in enumerate(columns) if 0 < total.get(f"distinct_{n}", 0) <= 2 * FEW]
    sets = [F.collect_set(quoted(columns[n].name)).alias(str(n)) for n in few]
    values = emissions.agg(*sets).first() if sets else None
    told = []
    for number, one in enumerate(columns):
        nulls = slices[f"nulls_{number}"] / slices["rows"]
        least, greatest = (_finite(total.get(f"{name}_{number}")) for name in ("least", "greatest"))
        held = _fit(tuple(sorted(values[str(number)]))) if values and number in few else ()
        told.append(ColumnProfile(one.name, int(total[f"nulls_{number}"]), float(nulls.max()), least, greatest, held))
    rows = slices["rows"]
    return Profile(len(slices), int(rows.sum()), int(rows.min()), int(rows.max()), tuple(told))


def proposals(seen: Profile) -> list[dict[str, Any]]:
    """Expectations as a pipeline file has them: warnings, until somebody makes them critical."""
    return [{**one, "severity": "warning"} for one in _proposals(seen)]


def block(seen: Profile) -> str:
    """The same as text to paste into a pipeline file."""
    lines = [f"quality:   # by {counted(seen.rows, 'row')} in {counted(seen.slices, 'slice')} that have any"]
    for one in proposals(seen):
        Expectation.model_validate(one)
        told = yaml.safe_dump(one, default_flow_style=True, sort_keys=False, width=math.inf, allow_unicode=True)
        lines.append(f"  - {told.strip()}")
    return "\n".join(lines)


def _proposals(seen: Profile) -> Iterator[dict[str, Any]]:
    rows = {"min_value": seen.fewest // _SLACK, "max_value": seen.most * _SLACK}
    yield {"type": "expect_table_row_count_to_be_between", **rows}
    for one in seen.columns:
        if one.most_null < 1:
            kept = math.floor(100 * (1 - one.most_null)) / 100
            mostly = {"mostly": kept} if one.nulls else {}
            if kept:
                yield {"type": "expect_column_values_to_not_be_null", "column": one.name, **mostly}
        if one.values:
            yield {"type": "expect_column_values_to_be_in_set", "column": one.name, "value_set": list(one.values)}
        elif one.least is not None and one.greatest is not None:
            bounds = {"min_value": _rounded(one.least, math.floor), "max_value": _rounded(one.greatest, math.ceil)}
            yield {"type": "expect_column_values_to_be_between", "column": one.name, **bounds}


def _measures(field: T.StructField) -> dict[str, Column]:
    column = F.col(quoted(field.name))
    found = {"nulls": F.count_if(column.isNull())}
    match field.dataType:
        case T.StringType() | T.BooleanType():
            return {**found, "distinct": F.approx_count_distinct(column)}
        case T.NumericType():  # of fractions NaN is the greatest, within no bounds
            return {**found, "least": F.min(column), "greatest": F.max(column)}
    return found


def _is_plain(kind: T.DataType) -> bool:
    return isinstance(kind, T.AtomicType)


def _fit(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values that may stand in a set: few, short, and in one line."""
    texts = [value for value in values if isinstance(value, str)]
    fits = len(values) <= FEW and all(len(text) <= LONGEST and text.isprintable() for text in texts)
    return values if fits else ()


def _finite(value: Any) -> int | float | None:
    if isinstance(value, Decimal):
        value = float(value)
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(value)


def _rounded(value: float, outwards: Any) -> int | float:
    """A number to two digits, away from what was seen.

    >>> _rounded(1234, math.ceil), _rounded(-17.28, math.floor), _rounded(0.0123, math.floor), _rounded(7, math.ceil)
    (1300, -18, 0.012, 7)
    """
    if not value:
        return 0
    places = _DIGITS - 1 - math.floor(math.log10(abs(value)))
    step = 10**places
    found = outwards(value * step) / step
    return int(found) if found == int(found) else round(found, max(places, 0))
