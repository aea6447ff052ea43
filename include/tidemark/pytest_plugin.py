"""Collect the test files of pipelines as pytest items, by the entry point `pytest11`.

Other modules are imported when a test file is collected, so that other test suites do not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

if TYPE_CHECKING:
    from tidemark.pipeline_tests.case_file import Case, CaseFile
    from tidemark.pipeline_tests.runner import CaseResult

_RESULTS = pytest.StashKey[dict[tuple[Path, str], Any]]()
"""Results of the cases that have run, by test file and case."""


class CaseFailedError(Exception):
    """A test case failed."""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    """Collect a YAML file in a folder `tests` if the folder above has a pipeline file of its name."""
    if file_path.suffix != ".yaml" or file_path.parent.name != "tests":
        return None
    from tidemark.pipeline_tests.case_file import find_pipeline_of  # noqa: PLC0415

    if find_pipeline_of(file_path) is None:
        return None
    return PipelineTestFile.from_parent(parent, path=file_path)


class PipelineTestFile(pytest.File):
    """The test file of a pipeline."""

    @override
    def collect(self) -> Iterator[pytest.Item]:
        """Yield an item for each case."""
        from tidemark.errors import UserError  # noqa: PLC0415
        from tidemark.pipeline_tests.case_file import find_pipeline_of, read_case_file  # noqa: PLC0415

        pipeline_file = find_pipeline_of(self.path)
        assert pipeline_file, "the file was collected"
        try:
            file = read_case_file(pipeline_file)
        except UserError as error:
            raise self.CollectError(str(error)) from None
        for case in file.cases:
            yield PipelineTestItem.from_parent(self, name=case.name, case=case, file=file)


class PipelineTestItem(pytest.Item):
    """A test case of a pipeline."""

    def __init__(self, *, case: Case, file: CaseFile, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.case, self.file = case, file

    @override
    def runtest(self) -> None:
        """Run the case, together with all collected ones if it is the first."""
        results = self.session.stash.setdefault(_RESULTS, {})
        if (self.path, self.name) not in results:
            results |= _run_cases(self)
        result: CaseResult = results[self.path, self.name]
        if result.status != "passed":
            from tidemark.pipeline_tests.junit import describe_failure  # noqa: PLC0415

            raise CaseFailedError("\n".join(describe_failure(result)))

    @override
    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the differences of a failed case without a traceback."""
        from tidemark.errors import TidemarkError  # noqa: PLC0415

        if isinstance(excinfo.value, CaseFailedError | TidemarkError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    @override
    def reportinfo(self) -> tuple[Path, int, str]:
        """Return path, line (from 0) and name of the case."""
        return self.path, int(self.case.place.rpartition(":")[2]) - 1, f"{self.file.pipeline}: {self.name}"


def _run_cases(item: PipelineTestItem) -> dict[tuple[Path, str], CaseResult]:
    """Run the selected cases of all files, or in a worker of pytest-xdist those of the item's file."""
    from dataclasses import replace  # noqa: PLC0415

    from tidemark.pipeline_tests import runner  # noqa: PLC0415
    from tidemark.spark import session  # noqa: PLC0415

    items = [other for other in item.session.items if isinstance(other, PipelineTestItem)]
    if hasattr(item.config, "workerinput"):
        items = [other for other in items if other.path == item.path]
    files = {other.path: other.file for other in items}
    chosen = [
        replace(file, selection=frozenset(other.case.name for other in items if other.path == path))
        for path, file in files.items()
    ]
    runs = runner.run_case_files(session.get_spark_session("tidemark test", brief=True), chosen)
    paths = [path for path, file in zip(files, chosen, strict=True) for _ in file.selected_cases]
    return {(path, run.case.name): run.result for path, run in zip(paths, runs, strict=True)}
