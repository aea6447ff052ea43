"""Validate the content of test files. Imports no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, create_model, model_validator

from tidemark.config.base import INTERNAL, Settings
from tidemark.config.sides import SideName
from tidemark.config.types import Instant, parse_instant
from tidemark.pipeline_tests.chain import Chain, format_name

SECTIONS = ("emissions", "padded", "late", "carried")
"""Kinds of expected rows."""
Section = Literal["emissions", "padded", "late", "carried"]
Row = dict[str, Any]
_ROWS = "should be a row such as {k: 1}, a list of rows, or the name of a .csv or .jsonl file"


def _check_rows(value: Any) -> Any:
    rows = value if isinstance(value, list) else [value]
    if not isinstance(value, str) and not all(isinstance(row, dict) for row in rows):
        raise ValueError(_ROWS)
    return value


GivenRows = Annotated[Any, AfterValidator(_check_rows)]


class GivenEntry(Settings):
    """An entry of `given`: rows of one input, or the start of a slice.

    In a chain there is a field `PIPELINE.left` or `PIPELINE.right` for each table that an earlier join reads.
    """

    left: GivenRows = None
    """Row, list of rows, or name of a file, of the left input."""
    right: GivenRows = None
    """The same for the right input."""
    slice: Instant | None = None
    """Start of the slice in which the following rows arrive."""

    @model_validator(mode="after")
    def _check_single(self) -> Self:
        if len(self.model_fields_set) != 1:
            names = ", ".join(name for name in type(self).model_fields if name != "slice")
            raise ValueError(f"should have one of {names} and slice, not {len(self.model_fields_set)}")
        if self.model_fields_set == {"slice"} and self.slice is None:
            raise ValueError("slice: has no value. Write its start, such as 2013-01-01T05:00Z.")
        return self


def _check_section(value: Any) -> Any:
    lists = list(value.values()) if isinstance(value, dict) else [value]
    if not all(isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in lists):
        raise ValueError("should be a list of rows such as [{left_k: 1}], or a map of slices to such lists")
    for start in value if isinstance(value, dict) else ():
        parse_instant(start, note_missing_zone=False)
    return value


ExpectedRows = Annotated[Any, AfterValidator(_check_section)]


class Expectation(Settings):
    """Expected output: a list of rows, or a list for each slice. Kinds of rows that are left out are not compared.

    In a chain there is a field `PIPELINE.SECTION` for each section of an earlier join.
    """

    emissions: ExpectedRows = None
    """Emitted rows. With `padded`, the emitted rows that are not padded."""
    padded: ExpectedRows = None
    """Rows emitted without a partner, by outer joins."""
    late: ExpectedRows = None
    """Rows of the table `late`."""
    carried: ExpectedRows = None
    """Rows in the buffers after the last slice, or after the slice of the list."""


class CaseSettings(Settings):
    """A test case as in the file."""

    description: str | None = None
    """Description for readers."""
    given: list[GivenEntry]
    """Rows in the order of their arrival; or a map of left and right to rows, in the order of their times."""
    drain: bool = False
    """True if the inputs end after the last row, as with `tidemark run --drain`."""
    columns: Mapping[str, dict[str, str]] = {}
    """Types of columns, in addition to those of the file."""
    expect: Expectation | None = None
    """Expected output."""
    error: str | None = None
    """Instead of `expect`: part of the message with which the case is refused."""
    is_by_time: Annotated[bool, INTERNAL] = False

    @model_validator(mode="before")
    @classmethod
    def _expand_given(cls, value: Any) -> Any:
        match value:
            case {"is_by_time": _}:
                raise ValueError("is_by_time: unknown field. Remove it.")
            case {"given": dict(given)}:
                return {**value, "given": [{side: rows} for side, rows in given.items()], "is_by_time": True}
        return value

    @model_validator(mode="after")
    def _check_expected(self) -> Self:
        if self.expect is not None and self.error is not None:
            raise ValueError("has both expect and error. Remove one of them.")
        if self.expect is None and self.error is None:
            raise ValueError("has neither expect nor error. Write expect, for example expect: {emissions: []}.")
        if self.is_by_time and any(entry.slice for entry in self.given):
            raise ValueError("given: a slice is an entry of a list. Write given as a list.")
        return self


class FileSettings(Settings):
    """Content of a test file."""

    columns: Mapping[str, dict[str, str]] = {}
    """Types of input columns as in Spark SQL, by input and name. Default: by their values."""
    cases: Mapping[str, CaseSettings]
    """Test cases by name."""


def create_model_of_files(chain: Chain) -> type[FileSettings]:
    """Return the settings of test files in which the inputs and the outputs of a chain are fields."""
    rows: Any = {source.name: (GivenRows, None) for source in chain.inputs}
    rows |= {side: (_refuse_rows_of(chain, side), None) for side in chain.pipeline.upstreams}
    sections: Any = {
        format_name(join, section): (ExpectedRows, None) for join in chain.upstream_names for section in SECTIONS
    }
    entry: Any = create_model("GivenEntry", __base__=GivenEntry, **rows)
    expectation: Any = create_model("Expectation", __base__=Expectation, **sections)
    names: Any = Literal[tuple(source.name for source in chain.inputs)]
    columns: Any = (dict[names, dict[str, str]], {})
    case: Any = create_model(
        "CaseSettings",
        __base__=CaseSettings,
        given=(list[entry], ...),
        expect=(expectation | None, None),
        columns=columns,
    )
    return create_model(
        "FileSettings", __base__=FileSettings, cases=(dict[str, case], Field(min_length=1)), columns=columns
    )


def _refuse_rows_of(chain: Chain, side: SideName) -> Any:
    """Return the type of a field that is refused, because the input is the output of another pipeline."""
    upstream = chain.pipeline.upstreams[side].pipeline
    names = " and ".join(source.name for source in chain.inputs if source.join == upstream)

    def refuse(_: Any) -> Any:
        remedy = f"Write the rows of {names}." if names else "Write the rows of the tables that its inputs come from."
        raise ValueError(f"has no rows of its own, because it is the output of {upstream}. {remedy}")

    return Annotated[Any, AfterValidator(refuse)]
