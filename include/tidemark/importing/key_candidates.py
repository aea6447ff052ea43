"""Rank pairs of columns that may be the join key, by their types, values and names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import types as T

from tidemark.config.sides import SIDES, SideName
from tidemark.errors import UserError
from tidemark.formatting import format_span
from tidemark.importing.choice import Candidate, Choice
from tidemark.importing.column_names import rank_key_names
from tidemark.importing.expressions import Column
from tidemark.importing.table_sample import SampledColumn, TableSample, is_integral
from tidemark.importing.time_candidates import TimeValues, format_share
from tidemark.importing.written_expressions import write_column

_MANY, _SOME = 0.5, 0.01
"""Shares of common values that separate the ranks of an overlap."""
_MIN_DISTINCT = 20
"""Distinct values from which a key separates rows well."""


@dataclass(frozen=True, eq=False)
class KeyValues:
    """A pair of columns as the join key."""

    left: SampledColumn
    right: SampledColumn
    expressions: tuple[str, str]
    """Keys of both sides in the form of a pipeline file."""

    @property
    def setting(self) -> Any:
        """Value in the form of a pipeline file."""
        left, right = self.expressions
        return left if left == right else {"left": left, "right": right}


def create_key_choice(samples: dict[SideName, TableSample], times: Mapping[SideName, Collection[str]]) -> Choice:
    """Rank the pairs of columns of both tables that may be the key.

    Args:
        samples: Both samples.
        times: Columns of each side that have times, or positions of the stream.

    Raises:
        UserError: No pair of columns has comparable types and common values.
    """
    columns = {side: [column for column in samples[side].columns if _may_be_key(column, times[side])] for side in SIDES}
    candidates = [
        candidate
        for left in columns["left"]
        for right in columns["right"]
        if (candidate := _create_candidate(samples, left, right))
    ]
    if not candidates:
        raise UserError(
            f"the tables {samples['left'].name} and {samples['right'].name} have no pair of columns with comparable "
            "types that share a value of the samples or a name. Pass --key LEFT=RIGHT, with columns or expressions."
        )
    criteria = f"share of common values, at least {_MIN_DISTINCT} distinct values, names"
    choice = Choice.create("join key", "--key", criteria, candidates)
    is_clear = choice.candidates[0].rank[0] > 0 or choice.candidates[0].rank[2] == 3  # noqa: PLR2004 - equal names
    return choice if is_clear else replace(choice, can_default=False)


def select_keys(choice: Choice | None, texts: Sequence[str]) -> tuple[list[Any], list[KeyValues]]:
    """Return the keys that `--key` names in the form of a pipeline file, and the values of those that are candidates.

    Raises:
        UserError: A text is no key.
    """
    by_label = {candidate.label: candidate.value for candidate in choice.candidates} if choice else {}
    settings = []
    for text in texts:
        left, _, right = text.partition("=")
        if not left or ("=" in text and not right):
            raise UserError(f"--key {text} is no key. Write NAME, or LEFT=RIGHT.")
        if value := by_label.get(text):
            settings.append(value.setting)
        else:
            settings.append({"left": left, "right": right} if right and right != left else left)
    return settings, [by_label[text] for text in texts if text in by_label]


def measure_distances(key: KeyValues, times: Mapping[SideName, TimeValues]) -> str:
    """Describe right time - left time of pairs with equal keys: each left row with its nearest right row."""
    frames = {}
    columns: dict[SideName, SampledColumn] = {"left": key.left, "right": key.right}
    for side, column in columns.items():
        usable = times[side].is_valid & ~column.is_null
        codes = column.row_hashes[usable]
        frame = pd.DataFrame({"key": codes, "time": times[side].micros[usable]})
        frames[side] = frame.sort_values("time", ignore_index=True)
    frames["right"]["other"] = frames["right"]["time"]
    pairs = pd.merge_asof(frames["left"], frames["right"], on="time", by="key", direction="nearest").dropna()
    if not len(pairs):
        return "No left and right row of the samples have equal keys."
    distances: npt.NDArray[np.float64] = (pairs["other"] - pairs["time"]).to_numpy(np.float64) / 1000
    low, middle, high = (format_span(int(value)) for value in np.quantile(distances, (0.05, 0.5, 0.95)))
    return (
        f"Right time - left time of {len(pairs):,} left rows and the nearest right row of equal key: 5 % below {low}, "
        f"median {middle}, 5 % above {high}."
    )


def _may_be_key(column: SampledColumn, times: Collection[str]) -> bool:
    dtype = column.leaf.dtype
    is_text = isinstance(dtype, T.StringType | T.BinaryType)
    return (is_text or is_integral(dtype)) and column.leaf.path[0] not in times


def _create_candidate(
    samples: dict[SideName, TableSample], left: SampledColumn, right: SampledColumn
) -> Candidate | None:
    expressions = write_keys(samples, left, right)
    if expressions is None:
        return None
    names = rank_key_names(str(left.leaf), str(right.leaf))
    smaller, larger = sorted((left.hashes, right.hashes), key=len)
    common = int(np.isin(smaller, larger, assume_unique=True).sum())
    share = common / len(smaller) if len(smaller) else 0.0
    if not common and names < 2:  # noqa: PLR2004 - neither values nor names are alike
        return None
    rank = (
        2 if share >= _MANY else 1 if share >= _SOME else 0,
        int(min(len(left.hashes), len(right.hashes)) >= _MIN_DISTINCT),
        names,
    )
    types = left.leaf.dtype.simpleString(), right.leaf.dtype.simpleString()
    figures = (
        f"{' and '.join(dict.fromkeys(types))}, {len(left.hashes):,} and {len(right.hashes):,} distinct values, "
        f"{format_share(share)} common"
    )
    nulls = [format_share(column.is_null.mean()) if len(column.is_null) else "0 %" for column in (left, right)]
    if nulls != ["0 %", "0 %"]:
        figures += f", {' and '.join(nulls)} null"
    label = expressions[0] if expressions[0] == expressions[1] else "=".join(expressions)
    return Candidate(label, KeyValues(left, right, expressions), figures, rank)


def write_keys(
    samples: dict[SideName, TableSample], left: SampledColumn, right: SampledColumn
) -> tuple[str, str] | None:
    """Write both keys; a whole number that meets a text is cast to one. None if the types are not comparable."""
    dtypes = left.leaf.dtype, right.leaf.dtype
    names = write_key_name(left, samples["left"]), write_key_name(right, samples["right"])
    are_numbers = all(isinstance(dtype, T.NumericType) for dtype in dtypes)
    if dtypes[0].simpleString() == dtypes[1].simpleString() or are_numbers:
        return names
    sql = [write_column(Column(column.leaf.path, "", "left"), has_side=False) for column in (left, right)]
    match dtypes:
        case (T.StringType(), right_type) if is_integral(right_type):
            return names[0], f"CAST({sql[1]} AS STRING)"
        case (left_type, T.StringType()) if is_integral(left_type):
            return f"CAST({sql[0]} AS STRING)", names[1]
    return None


def write_key_name(column: SampledColumn, sample: TableSample) -> str:
    """Write a column or field as a key of the pipeline file: its name, or SQL if the name could be misread."""
    path = column.leaf.path
    if len(path) == 1:
        return path[0]
    sql = write_column(Column(path, "", "left"), has_side=False)
    return f"({sql})" if sql in sample.column_names else sql
