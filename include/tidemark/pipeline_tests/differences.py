"""Compare the output of a case with the expected rows, in any order and by the columns that these name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose, isnan
from typing import Any, Literal

from pyspark.sql import types as T

from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant
from tidemark.errors import PipelineFileError, suggest_name
from tidemark.formatting import ToDict
from tidemark.pipeline_tests.case_file import ExpectedRow
from tidemark.pipeline_tests.chain import split_name
from tidemark.pipeline_tests.columns import convert_value
from tidemark.pipeline_tests.outputs import Types, Values
from tidemark.timegrid.time_columns import to_plain_row

_TOLERANCE = 1e-9


class _ExpectedMap(dict[str, Any]):
    """Expected entries of a map. It has no others, while a struct may have fields that a test does not name."""


class _RowsInAnyOrder(list[Any]):
    """Expected rows of one side of a coGroup."""


"""Relative tolerance for floating-point numbers."""


@dataclass(frozen=True)
class RowDifference:
    """A row that is missing, unexpected or changed."""

    kind: Literal["missing", "unexpected", "changed"]
    expected: Values | None
    """Expected values by column; None for an unexpected row."""
    actual: Values | None
    """Values of the output by column; None for a missing row."""
    place: str | None
    """File and line of the expected row."""


@dataclass(frozen=True)
class SectionDifference(ToDict):
    """Rows of a section that differ from the expected ones."""

    section: str
    """Kind of rows, with the slice if the case lists the rows of that slice."""
    columns: tuple[str, ...]
    """Columns that the rows are compared by, or that describe an unexpected row."""
    rows: tuple[RowDifference, ...]
    note: str | None = None
    """Other slices with which the rows differ from those with the pipeline's slices, such as `two jobs`."""

    @property
    def title(self) -> str:
        """The section, and if its rows depend on the slices, what to do."""
        if not self.note:
            return self.section
        return (
            f"{self.section} with {self.note}: the rows differ from those with the pipeline's slices. Report this case "
            "as a bug of Tidemark."
        )


def parse_expected(rows: Sequence[ExpectedRow], section: str, types: Types) -> list[Values]:
    """Convert the values of expected rows to plain values, as the output has them.

    Raises:
        PipelineFileError: There is no such column, or a value does not fit its type. Names file and line.
    """
    return [{**_parse_row(row, section, types), **_slice_value(row, section)} for row in rows]


def _slice_value(row: ExpectedRow, section: str) -> Values:
    if row.slice_start is None or split_name(section)[1] == "carried":
        return {}
    return {"_slice": format_instant(row.slice_start)}


def _parse_row(row: ExpectedRow, section: str, types: Types) -> Values:
    plain: Values = {}
    for name, value in row.values.items():
        if name not in types:
            raise PipelineFileError(
                f"{row.locate(name)}: rows of {section} have no column {name}. {suggest_name(name, types)}"
            )
        try:
            converted = convert_value(value, types[name])
        except (ValueError, OverflowError) as error:
            raise PipelineFileError(f"{row.locate(name)}: column {name}: {error}") from None
        schema = T.StructType([T.StructField(name, types[name])])
        expected = _select_fields(to_plain_row({name: converted}, schema)[name], value, types[name])
        is_group = name in SIDES and isinstance(expected, list)
        plain[name] = _RowsInAnyOrder(expected) if is_group else expected
    return plain


def _select_fields(plain: Any, given: Any, dtype: T.DataType) -> Any:
    """Leave out the fields of structs that an expected value does not name."""
    if plain is None:
        return None
    match dtype:
        case T.StructType():
            fields = (field for field in dtype if field.name in given)
            return {
                field.name: _select_fields(plain[field.name], given[field.name], field.dataType) for field in fields
            }
        case T.ArrayType():
            return [_select_fields(value, part, dtype.elementType) for value, part in zip(plain, given, strict=True)]
        case T.MapType():
            pairs = zip(plain.items(), given.values(), strict=True)
            return _ExpectedMap({key: _select_fields(value, part, dtype.valueType) for (key, value), part in pairs})
    return plain


def compare_rows(
    section: str, expected: Sequence[Values], actual: Sequence[Values], places: Sequence[str]
) -> SectionDifference | None:
    """Match expected rows with rows of the output; None if each has a partner.

    Args:
        section: Name of the section.
        expected: Expected rows; a row of the output matches if it has these values.
        actual: Rows of the output.
        places: File and line of each expected row.
    """
    partners = _match(expected, actual)
    missing = [number for number in range(len(expected)) if number not in partners.values()]
    unexpected = [number for number in range(len(actual)) if number not in partners]
    if not missing and not unexpected:
        return None
    names = list(dict.fromkeys(name for row in expected for name in row))
    differences = []
    for number in missing:
        likeness = {other: _count_equal(expected[number], actual[other]) for other in unexpected}
        closest = max(likeness, key=lambda other: likeness[other], default=None)
        row, place = expected[number], places[number]
        if closest is None or not likeness[closest]:
            differences.append(RowDifference("missing", row, None, place))
            continue
        unexpected.remove(closest)
        differences.append(RowDifference("changed", row, {name: actual[closest].get(name) for name in row}, place))
    columns = names or _informative_columns([actual[number] for number in unexpected])
    differences += [
        RowDifference("unexpected", None, {name: actual[number].get(name) for name in columns}, None)
        for number in unexpected
    ]
    order = ("missing", "unexpected", "changed")
    rows = tuple(sorted(differences, key=lambda difference: order.index(difference.kind)))
    return SectionDifference(section, tuple(columns), rows)


def compare_cuts(
    section: str, own: Sequence[Values], cut: Sequence[Values], columns: Sequence[str], name: str
) -> SectionDifference | None:
    """Compare the rows of a cut with those of the pipeline's own slices, by all columns but `_slice`.

    Args:
        section: Name of the section.
        own: Rows under the pipeline's own slices.
        cut: Rows under the cut.
        columns: Columns to show.
        name: Name of the cut.
    """
    counts = [Counter(map(_identify, rows)) for rows in (own, cut)]
    if counts[0] == counts[1]:
        return None
    rows = []
    kinds: tuple[tuple[Literal["missing", "unexpected"], Counter[str]], ...]
    kinds = (("missing", counts[0] - counts[1]), ("unexpected", counts[1] - counts[0]))
    by_identity = {_identify(row): row for row in (*own, *cut)}
    shown = tuple(columns) or tuple(_informative_columns(list(by_identity.values())))
    for kind, surplus in kinds:
        for identity in surplus.elements():
            values = {column: by_identity[identity].get(column) for column in shown}
            is_missing = kind == "missing"
            rows.append(RowDifference(kind, values if is_missing else None, None if is_missing else values, None))
    return SectionDifference(section, shown, tuple(rows), name)


def _identify(row: Values) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "_slice"}, sort_keys=True)


def _informative_columns(rows: Sequence[Values]) -> list[str]:
    """List the columns that have values, without those of the output's origin unless there are no others."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    return [name for name in names if not name.startswith("_")] or list(names)


def _match(expected: Sequence[Values], actual: Sequence[Values]) -> dict[int, int]:
    """Match as many rows as possible, by augmenting paths; return the expected row of each matched row."""
    candidates = [[number for number, row in enumerate(actual) if is_match(values, row)] for values in expected]
    partners: dict[int, int] = {}
    for number in range(len(expected)):
        _augment(number, candidates, partners)
    return partners


def _augment(start: int, candidates: Sequence[Sequence[int]], partners: dict[int, int]) -> None:
    """Match one more expected row, `start`, if others can have other partners among their candidates."""
    own_partners = {number: partner for partner, number in partners.items()}
    reached_from: dict[int, int] = {}
    queue = [start]
    for number in queue:
        for candidate in candidates[number]:
            if candidate in reached_from:
                continue
            reached_from[candidate] = number
            if candidate in partners:
                queue.append(partners[candidate])
                continue
            free: int | None = candidate
            while free is not None:
                follower = reached_from[free]
                partners[free] = follower
                free = own_partners.get(follower)
            return


def is_match(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> bool:
    """Return True if a row of the output has the values of an expected row."""
    return _count_equal(expected, actual) == len(expected)


def _count_equal(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> int:
    return sum(_is_equal(value, actual.get(name)) for name, value in expected.items())


def _is_equal(expected: Any, actual: Any) -> bool:
    if isinstance(expected, float) and isinstance(actual, float):
        return isclose(expected, actual, rel_tol=_TOLERANCE) or (isnan(expected) and isnan(actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        has_all = not isinstance(expected, _ExpectedMap) or expected.keys() == actual.keys()
        return has_all and is_match(expected, actual)
    if isinstance(expected, list) and isinstance(actual, list):
        if isinstance(expected, _RowsInAnyOrder):
            return len(expected) == len(actual) == len(_match(expected, actual))
        return len(expected) == len(actual) and all(map(_is_equal, expected, actual))
    return bool(expected == actual)
