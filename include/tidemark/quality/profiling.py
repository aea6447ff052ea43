"""Propose expectations from committed emissions, which satisfy them."""

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
from tidemark.formatting import format_count, quote_identifier

MAX_SET_SIZE = 12
"""Maximum number of distinct values of a proposed set."""
MAX_TEXT_LENGTH = 100
"""Maximum number of characters of a string in a proposed set."""
_ROW_COUNT_FACTOR = 2
"""Factor from the observed to the proposed bounds on the rows of a slice."""
_SIGNIFICANT_DIGITS = 2
"""Digits to which bounds of numbers are rounded outwards."""


@dataclass(frozen=True)
class Profile:
    """Statistics of emissions over committed slices."""

    slices: int
    """Number of committed slices, those without emissions included."""
    rows: int
    min_rows: int
    """Minimum number of rows in a slice."""
    max_rows: int
    """Maximum number of rows in a slice."""
    columns: tuple[ColumnProfile, ...]


@dataclass(frozen=True)
class ColumnProfile:
    """Statistics of a column."""

    name: str
    nulls: int
    max_null_share: float
    """Maximum share of nulls in a slice, 0 to 1."""
    min_value: Any = None
    """Minimum of a numeric column; None for other types, and if it is not finite."""
    max_value: Any = None
    """Maximum of a numeric column; None for other types, and if it is not finite."""
    values: tuple[Any, ...] = ()
    """Distinct strings or booleans, if they are few enough for a set."""


def profile_emissions(emissions: DataFrame, slices: int) -> Profile | None:
    """Compute statistics of emissions in two queries, one of them for small sets; None if there are no emissions.

    Args:
        emissions: Rows of committed slices.
        slices: Number of committed slices, those without rows included.
    """
    fields = [field for field in emissions.schema if not field.name.startswith("_") and _is_atomic(field.dataType)]
    aggregates = [F.count("*").alias("rows")]
    for number, field in enumerate(fields):
        aggregates += [column.alias(f"{name}_{number}") for name, column in _create_aggregates(field).items()]
    table = emissions.rollup("_slice").agg(*aggregates).toPandas()
    by_slice = table[table["_slice"].notna()]
    [total] = table[table["_slice"].isna()].to_dict("records") or [{}]
    if by_slice.empty:
        return None
    set_numbers = [n for n, _ in enumerate(fields) if 0 < total.get(f"distinct_{n}", 0) <= 2 * MAX_SET_SIZE]
    sets = [F.collect_set(quote_identifier(fields[n].name)).alias(str(n)) for n in set_numbers]
    values = emissions.agg(*sets).first() if sets else None
    columns = []
    for number, field in enumerate(fields):
        null_shares = by_slice[f"nulls_{number}"] / by_slice["rows"]
        low, high = (_to_finite_number(total.get(f"{name}_{number}")) for name in ("min", "max"))
        distinct = _select_set_values(tuple(sorted(values[str(number)]))) if values and number in set_numbers else ()
        columns.append(
            ColumnProfile(field.name, int(total[f"nulls_{number}"]), float(null_shares.max()), low, high, distinct)
        )
    rows = by_slice["rows"]
    fewest = int(rows.min()) if len(by_slice) == slices else 0
    return Profile(slices, int(rows.sum()), fewest, int(rows.max()), tuple(columns))


def propose_expectations(profile: Profile) -> list[dict[str, Any]]:
    """Propose expectations as the pipeline file writes them, all of severity warning."""
    return [{**proposal, "severity": "warning"} for proposal in _propose(profile)]


def format_yaml_block(profile: Profile, *, has_quality: bool = False) -> str:
    """Format the proposals as YAML for a pipeline file.

    Args:
        profile: Statistics of the emissions.
        has_quality: True if the file has a field `quality`, below which the items belong. YAML allows it only once.
    """
    rows, slices = format_count(profile.rows, "row"), format_count(profile.slices, "slice")
    source = f"proposed from {rows} in {slices}"
    lines = [f"  # items for the field quality, {source}" if has_quality else f"quality:   # {source}"]
    for proposal in propose_expectations(profile):
        Expectation.model_validate(proposal)
        line = yaml.safe_dump(proposal, default_flow_style=True, sort_keys=False, width=math.inf, allow_unicode=True)
        lines.append(f"  - {line.strip()}")
    return "\n".join(lines)


def _propose(profile: Profile) -> Iterator[dict[str, Any]]:
    row_bounds = {
        "min_value": profile.min_rows // _ROW_COUNT_FACTOR,
        "max_value": profile.max_rows * _ROW_COUNT_FACTOR,
    }
    yield {"type": "expect_table_row_count_to_be_between", **row_bounds}
    for column in profile.columns:
        if column.max_null_share < 1:
            share = math.floor(100 * (1 - column.max_null_share)) / 100
            mostly = {"mostly": share} if column.nulls else {}
            if share:
                yield {"type": "expect_column_values_to_not_be_null", "column": column.name, **mostly}
        if column.values:
            yield {
                "type": "expect_column_values_to_be_in_set",
                "column": column.name,
                "value_set": list(column.values),
            }
        elif column.min_value is not None and column.max_value is not None:
            bounds = {
                "min_value": _round_outwards(column.min_value, math.floor),
                "max_value": _round_outwards(column.max_value, math.ceil),
            }
            yield {"type": "expect_column_values_to_be_between", "column": column.name, **bounds}


def _create_aggregates(field: T.StructField) -> dict[str, Column]:
    column = F.col(quote_identifier(field.name))
    aggregates = {"nulls": F.count_if(column.isNull())}
    match field.dataType:
        case T.StringType() | T.BooleanType():
            return {**aggregates, "distinct": F.approx_count_distinct(column)}
        case T.NumericType():  # NaN is the maximum of a column that contains it, which has no bounds then.
            return {**aggregates, "min": F.min(column), "max": F.max(column)}
    return aggregates


def _is_atomic(dtype: T.DataType) -> bool:
    return isinstance(dtype, T.AtomicType)


def _select_set_values(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values if they are few, short and on one line each, else none."""
    texts = [value for value in values if isinstance(value, str)]
    is_short = all(len(text) <= MAX_TEXT_LENGTH and text.isprintable() for text in texts)
    return values if len(values) <= MAX_SET_SIZE and is_short else ()


def _to_finite_number(value: Any) -> int | float | None:
    if isinstance(value, Decimal):
        value = float(value)
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(value)


def _round_outwards(value: float, round_up_or_down: Any) -> int | float:
    """Round a number to two significant digits.

    >>> [_round_outwards(1234, math.ceil), _round_outwards(-17.28, math.floor), _round_outwards(0.0123, math.floor)]
    [1300, -18, 0.012]
    >>> _round_outwards(7, math.ceil)
    7
    """
    if not value:
        return 0
    digits = _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value)))
    factor = 10**digits
    rounded = round_up_or_down(value * factor) / factor
    return int(rounded) if rounded == int(rounded) else round(rounded, max(digits, 0))
