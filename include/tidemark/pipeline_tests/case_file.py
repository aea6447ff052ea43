"""Find and read the test files of pipelines. Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidemark.config import get_pipelines_folder, list_pipeline_files
from tidemark.config.safe_yaml import YamlDocument, parse_long_yaml, read_long_yaml
from tidemark.config.types import parse_instant
from tidemark.config.validation_errors import explain_validation_error
from tidemark.errors import PipelineFileError, suggest_name
from tidemark.pipeline_tests.case_settings import CaseSettings, FileSettings, GivenEntry, Row, create_model_of_files
from tidemark.pipeline_tests.chain import Chain
from tidemark.pipeline_tests.row_files import RowFile, read_row_file

FOLDER = "tests"
"""Folder of test files, in the folder of the pipeline files."""


@dataclass(frozen=True)
class CaseRow:
    """A row of a test file."""

    values: Row
    place: str
    """File and line."""
    column_places: Mapping[str, str]
    """File and line of each value, where they differ from `place`."""
    slice_start: datetime | None = None
    """Start of the slice whose list has the row; None for a list of all slices."""

    def locate(self, column: str) -> str:
        """Return file and line of a value."""
        return self.column_places.get(column, self.place)


@dataclass(frozen=True)
class GivenRow(CaseRow):
    """A row of an input, or the start of a slice (`slice_start`) if it has no input."""

    input_name: str | None = None
    """Name of the input in the file."""
    cells: Mapping[str, str] = field(default_factory=dict)
    """Texts of the values, if the row is from a CSV file."""


@dataclass(frozen=True)
class ExpectedRow(CaseRow):
    """An expected row: the columns that matter."""


@dataclass(frozen=True)
class Case:
    """A test case."""

    name: str
    place: str
    """File and line."""
    settings: CaseSettings
    given: tuple[GivenRow, ...]
    """Rows and starts of slices, in the order of the file."""
    expected: Mapping[str, tuple[ExpectedRow, ...]]
    """Expected rows by section, for the sections that the case has. In a chain, `PIPELINE.SECTION` is of an earlier
    join."""

    def list_slices(self, section: str) -> list[datetime] | None:
        """Return the slices whose rows a section lists; None if it lists the rows of all slices."""
        value = getattr(self.settings.expect, section, None)
        return [_parse_slice(start) for start in value] if isinstance(value, dict) else None


@dataclass(frozen=True)
class CaseFile:
    """The test cases of a pipeline."""

    document: YamlDocument
    pipeline_file: Path
    chain: Chain
    """The pipeline and those that it reads."""
    settings: FileSettings
    cases: tuple[Case, ...]
    selection: frozenset[str] | None = None
    """Names of the cases to run; None: all. The others still decide about the types of columns."""

    @property
    def selected_cases(self) -> tuple[Case, ...]:
        """The cases to run."""
        return tuple(case for case in self.cases if self.selection is None or case.name in self.selection)

    @property
    def path(self) -> Path:
        """Path of the test file."""
        return self.document.path

    @property
    def pipeline(self) -> str:
        """Name of the pipeline file, without its ending."""
        return self.pipeline_file.stem


def find_case_file(pipeline_file: Path) -> Path:
    """Return the path that the test file of a pipeline file has."""
    return pipeline_file.parent / FOLDER / f"{pipeline_file.stem}.yaml"


def find_pipeline_of(case_file: Path) -> Path | None:
    """Return the pipeline file that a test file is for; None if there is none, so that the file is no test file."""
    folder = case_file.parent
    if folder.name != FOLDER or case_file.suffix != ".yaml":
        return None
    candidates = (folder.parent / f"{case_file.stem}{suffix}" for suffix in (".yaml", ".yml"))
    return next((path for path in candidates if path.is_file()), None)


def list_tested_pipelines(folder: Path | None = None) -> list[Path]:
    """Return the pipeline files of a folder that have a test file.

    Args:
        folder: The folder. Default: the pipelines folder.

    Raises:
        PipelineFileError: There is a test file for a pipeline that does not exist.
    """
    files = list_pipeline_files(folder)
    names = {path.stem for path in files}
    for path in sorted(((folder or get_pipelines_folder()) / FOLDER).glob("*.yaml")):
        if path.stem not in names:
            raise PipelineFileError(f"{path}: there is no pipeline {path.stem}. {suggest_name(path.stem, names)}")
    return [path for path in files if find_case_file(path).is_file()]


def read_case_file(pipeline_file: Path) -> CaseFile:
    """Read the test file of a pipeline.

    Raises:
        PipelineFileError: It does not exist or is invalid. The message has file and line.
    """
    path = find_case_file(pipeline_file)
    if not path.is_file():
        raise PipelineFileError(f"there is no test file {path}. Write it, with cases of the pipeline under cases.")
    return _create_file(read_long_yaml(path), pipeline_file)


def parse_case_file(pipeline_file: Path, text: str) -> CaseFile:
    """Parse the text that the test file of a pipeline is to have.

    Raises:
        PipelineFileError: It is invalid. The message has file and line.
    """
    return _create_file(parse_long_yaml(find_case_file(pipeline_file), text), pipeline_file)


def _create_file(document: YamlDocument, pipeline_file: Path) -> CaseFile:
    if not isinstance(document.content, dict):
        raise PipelineFileError(f"{document.path} has no test cases. Write them under cases.")
    chain = Chain.load(pipeline_file)
    model = create_model_of_files(chain)
    try:
        settings = model.model_validate(document.content)
    except ValidationError as error:
        text = explain_validation_error(error, model, lambda location: f"{document.locate(*location)}: ")
        raise PipelineFileError(text) from None
    cases = tuple(_create_case(document, name, case) for name, case in settings.cases.items())
    return CaseFile(document, pipeline_file, chain, settings, cases)


def _create_case(document: YamlDocument, name: str, settings: CaseSettings) -> Case:
    path = ("cases", name)
    given = tuple(
        row for number, entry in enumerate(settings.given) for row in _read_given(document, path, number, entry)
    )
    expected = {
        section: tuple(_read_expected(document, (*path, "expect", section), rows))
        for section in (type(settings.expect).model_fields if settings.expect else ())
        if (rows := getattr(settings.expect, section)) is not None
    }
    return Case(name, document.locate(*path), settings, given, expected)


def _read_given(document: YamlDocument, case: tuple[str, ...], number: int, entry: GivenEntry) -> Iterator[GivenRow]:
    """Yield the rows of an entry of `given`."""
    [field] = entry.model_fields_set
    raw = document.content["cases"][case[1]]["given"]
    path: tuple[Any, ...] = (*case, "given", field) if isinstance(raw, dict) else (*case, "given", number, field)
    if entry.slice is not None:
        yield GivenRow({}, document.locate(*path), {}, entry.slice)
        return
    value = getattr(entry, field)
    if isinstance(value, str):
        yield from _read_file(document, path, field, value)
        return
    rows: list[tuple[tuple[Any, ...], Row]]
    rows = [((*path, n), row) for n, row in enumerate(value)] if isinstance(value, list) else [(path, value)]
    for row_path, row in rows:
        yield GivenRow(row, document.locate(*row_path), _locate_columns(document, row_path, row), input_name=field)


def _read_file(document: YamlDocument, path: Sequence[Any], input_name: str, name: str) -> Iterator[GivenRow]:
    try:
        file: RowFile = read_row_file(document.path.parent, name)
    except PipelineFileError as error:
        raise PipelineFileError(f"{document.locate(*path)}: {input_name}: {error}") from None
    for line in file.rows:
        yield GivenRow(line.values, f"{file.path}:{line.number}", {}, input_name=input_name, cells=line.cells)


def _read_expected(document: YamlDocument, path: tuple[str, ...], section: Any) -> Iterator[ExpectedRow]:
    """Yield the rows of a section of `expect`."""
    lists = section.items() if isinstance(section, dict) else [(None, section)]
    keys = [key for key in document.spans if key[: len(path)] == path and len(key) == len(path) + 1]
    for index, (start, rows) in enumerate(lists):
        # A slice is a timestamp in the content, and its text in the path.
        part = path if start is None else keys[index]
        for number, row in enumerate(rows):
            row_path = (*part, str(number))
            columns = _locate_columns(document, row_path, row)
            instant = None if start is None else _parse_slice(start)
            yield ExpectedRow(row, document.locate(*row_path), columns, instant)


def _locate_columns(document: YamlDocument, path: Sequence[Any], row: Row) -> dict[str, str]:
    return {column: document.locate(*path, column) for column in row}


def _parse_slice(start: str | date) -> datetime:
    return parse_instant(start, note_missing_zone=False)
