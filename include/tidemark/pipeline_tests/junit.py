"""Write the results of test cases as JUnit XML, which CI systems read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree as ET

from tidemark.errors import UserError
from tidemark.formatting import format_values
from tidemark.pipeline_tests.differences import RowDifference, SectionDifference
from tidemark.pipeline_tests.runner import CaseResult


def write_junit(results: Sequence[CaseResult], file: Path) -> None:
    """Write a suite for each pipeline.

    Raises:
        UserError: The file cannot be written.
    """
    root = ET.Element("testsuites")
    for pipeline, group in groupby(results, lambda result: result.pipeline):
        cases = list(group)
        failed = sum(result.status != "passed" for result in cases)
        seconds = sum(result.seconds for result in cases)
        counts = {"tests": str(len(cases)), "failures": str(failed), "errors": "0", "time": f"{seconds:.3f}"}
        suite = ET.SubElement(root, "testsuite", {"name": pipeline, **counts})
        for result in cases:
            _add_case(suite, result)
    ET.indent(root)
    try:
        ET.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise UserError(f"--junit {file} cannot be written: {error.strerror}. Name another file.") from None


def _add_case(suite: ET.Element, result: CaseResult) -> None:
    path, _, line = result.place.rpartition(":")
    attributes = {"name": result.case, "classname": result.pipeline, "file": path, "line": line}
    case = ET.SubElement(suite, "testcase", {**attributes, "time": f"{result.seconds:.3f}"})
    if result.status != "passed":
        lines = describe_failure(result)
        ET.SubElement(case, "failure", type=result.status, message=_clean(lines[0])).text = _clean("\n".join(lines))


def describe_failure(result: CaseResult) -> list[str]:
    """Describe why a case failed, in lines of plain text."""
    lines = [result.message] if result.message else []
    for difference in result.differences:
        lines += [_describe_section(difference), *(f"  {_describe_row(row)}" for row in difference.rows)]
    return lines


def _describe_section(difference: SectionDifference) -> str:
    if difference.note:
        return difference.title
    counts = {kind: sum(row.kind == kind for row in difference.rows) for kind in ("missing", "unexpected", "changed")}
    return f"{difference.section}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def _describe_row(row: RowDifference) -> str:
    place = f" ({row.place})" if row.place else ""
    if row.expected is None:
        return f"unexpected: {format_values(row.actual or {})}"
    if row.actual is None:
        return f"missing: {format_values(row.expected)}{place}"
    return f"changed: {format_values(row.expected)} became {format_values(row.actual)}{place}"


def _clean(text: str) -> str:
    """Replace the control characters that XML does not allow."""
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)
