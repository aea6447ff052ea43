"""Validate the rows of a job before the ledger publishes its slices.

Invariants of the join are validated on one aggregate row per slice. Expectations of the pipeline file are grouped by
scope: the rows they are on, and the unit of evaluation. Expectations on history use metrics from the ledger.
docs/decisions/0008-quality-gate.md describes what happens to a job with a failed slice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from types import MappingProxyType

import pandas as pd

from tidemark.config import Expectation, Pipeline
from tidemark.config.sides import SIDES
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.baseline_checks import evaluate_baseline_checks
from tidemark.quality.evaluation_scope import ValidationRows
from tidemark.quality.gx.data_docs import get_docs_index
from tidemark.quality.gx.fast_path import can_skip_gx, store_passed_result
from tidemark.quality.gx.project import open_project
from tidemark.quality.gx.result_store import delete_oldest_results
from tidemark.quality.gx.suites import SuiteRunner, get_result_format
from tidemark.quality.results import ResultSet, ValidationResult
from tidemark.quality.waivers import Waivers, apply_waivers


def validate_output(
    invariants: pd.DataFrame,
    rows: ValidationRows,
    pipeline: Pipeline,
    tables: PipelineTables,
    run: str,
    waivers: Waivers = MappingProxyType({}),
) -> ValidationResult:
    """Validate the output of a job by the invariants of the join and the expectations of the pipeline file.

    Rows are read only for expectations of the file. Great Expectations is not imported if all invariants hold and
    nothing else needs it (`can_skip_gx`).

    Args:
        invariants: One row per slice, with the columns of `INVARIANTS`.
        rows: Rows and metrics of the job.
        pipeline: Its expectations and settings of results.
        tables: Where results are stored: those of the first rejected slice; without one, those of the last slice with
            a failure, else of the last slice. `write_docs` adds them to Data Docs.
        run: Name of the run in results.
        waivers: Expectations that do not keep a slice from being published.
    """
    started = time.monotonic()
    delete_oldest_results(tables)
    expectations = [expectation for expectation in pipeline.quality if expectation.on not in SIDES]
    if can_skip_gx(pipeline, invariants):
        store_passed_result(tables, invariants, run)
        results = ResultSet.create_empty(len(invariants))
    else:
        with open_project(tables) as context:
            runner = SuiteRunner(context, run, get_result_format(pipeline), waivers)
            results = _evaluate_on_rows(runner, expectations, rows, runner.evaluate_invariants(invariants))
    if rows.metrics is not None:
        on_history = (expectation for expectation in expectations if expectation.on == "history")
        checks = [*on_history, *pipeline.default_expectations]
        results = results.merge(_evaluate_on_history(rows, rows.metrics, checks, waivers))
    return _create_validation_result(results, started, tables)


def validate_inputs(
    rows: ValidationRows, pipeline: Pipeline, tables: PipelineTables, run: str, waivers: Waivers = MappingProxyType({})
) -> ValidationResult:
    """Validate the rows that a job is about to join, by the expectations of the pipeline file on its inputs."""
    started = time.monotonic()
    expectations = [expectation for expectation in pipeline.quality if expectation.on in SIDES]
    with open_project(tables) as context:
        runner = SuiteRunner(context, run, get_result_format(pipeline), waivers)
        empty = ResultSet.create_empty(len(rows.slice_starts))
        results = _evaluate_on_rows(runner, expectations, rows, empty)
        return _create_validation_result(results, started, tables)


def _evaluate_on_rows(
    runner: SuiteRunner, expectations: Iterable[Expectation], rows: ValidationRows, results: ResultSet
) -> ResultSet:
    """Add the results of expectations on rows; days that continue after the job are not evaluated yet."""
    for group in _group_by_scope(expectation for expectation in expectations if expectation.on != "history"):
        if units := rows.select_units(group[0]):
            results = results.merge_units(runner.evaluate_units(group, units), units)
    return results


def _group_by_scope(expectations: Iterable[Expectation]) -> list[list[Expectation]]:
    """Group expectations by evaluation scope: the rows they are on, and the unit of evaluation."""
    groups: dict[tuple[str, str], list[Expectation]] = defaultdict(list)
    for expectation in expectations:
        groups[expectation.on, expectation.per].append(expectation)
    return list(groups.values())


def _evaluate_on_history(
    rows: ValidationRows, metrics: pd.DataFrame, checks: list[Expectation], waivers: Waivers
) -> ResultSet:
    failures, measurements = zip(*evaluate_baseline_checks(metrics, checks, rows.metric_details), strict=True)
    waived = [
        apply_waivers(slice_failures, waivers.get(start, {}))
        for start, slice_failures in zip(rows.slice_starts, failures, strict=True)
    ]
    return ResultSet(waived, measurements, {})


def _create_validation_result(results: ResultSet, started: float, tables: PipelineTables) -> ValidationResult:
    """Create the result of a validation that started at this reading of the monotonic clock."""
    return ValidationResult(
        tuple(results.failures),
        time.monotonic() - started,
        get_docs_index(tables),
        tuple(results.gx_results),
        tuple(results.measurements),
    )
