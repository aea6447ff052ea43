"""The quality gate: what a job has written is judged before the ledger row makes it count.

Two suites. `derived` follows from the join itself and is judged on one aggregate row per slice (`facts`); `pipeline`
holds the expectations of the pipeline file and is judged on the output rows of each slice (`units`), or of the job
where one says so. docs/decisions/0016-groups-of-slices.md says what becomes of a job that fails.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.delta.lake import PipelineTables
from tidemark.quality.facts import DERIVED
from tidemark.quality.findings import Finding, Measure, Verdict, findings_of, measures_of, named
from tidemark.quality.project import (
    built,
    docs_page,
    forget_old_results,
    gx_library,
    project,
    run_suite,
    told_of,
    withhold_values,
)
from tidemark.settings import Pipeline

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation as GxExpectation


def judge(
    facts: pd.DataFrame, output: DataFrame, starts: Sequence[int], pipeline: Pipeline, tables: PipelineTables, run: str
) -> Verdict:
    """Judge a job by its facts (one row per slice, with the columns of `DERIVED`) and its output rows.

    `starts` are those of its slices, in microseconds. Rows are only read where the pipeline file has expectations.
    Results are stored, of slices those of one: the first that is refused, else the last with a warning, else the last.
    `write_docs` shows them.
    """
    began = time.monotonic()
    derived = [
        gx_library().expectations.ExpectColumnValuesToBeInSet(
            column=name, value_set=[0], severity="critical", notes=says
        )
        for name, says in DERIVED.items()
    ]
    with project(tables) as context:
        forget_old_results(context)
        slices = context.data_sources.add_pandas("slices").add_dataframe_asset("facts")
        stored = run_suite(context, "derived", slices, facts, derived, run)
        by_slice = _of_facts(facts, [finding for one in stored.values() for finding in findings_of(one.results)])
        measures: list[tuple[Measure, ...]] = [()] * len(starts)
        for per, judged in (("slice", _of_slices), ("job", _of_job)):
            if own := [built(expectation) for expectation in pipeline.quality if expectation.per == per]:
                gate = _Gate(context, f"pipeline_{per}", own, run, told_of(pipeline))
                found = judged(gate, output, starts)
                by_slice = [(*before, *more) for before, more in zip(by_slice, found.findings, strict=True)]
                measures = [(*before, *more) for before, more in zip(measures, found.measures, strict=True)]
                stored |= found.stored
    seconds = time.monotonic() - began
    return Verdict(tuple(by_slice), seconds, docs_page(tables), tuple(stored), tuple(measures))


def _of_facts(facts: pd.DataFrame, findings: Sequence[Finding]) -> list[tuple[Finding, ...]]:
    """Findings on all facts, by the slices whose facts are wrong."""
    named = {name: finding for finding in findings for name in DERIVED if f"(column {name}," in finding.expectation}
    broken = facts[list(DERIVED)].to_numpy(dtype=bool)
    return [tuple(named[name] for name, wrong in zip(DERIVED, row, strict=True) if wrong) for row in broken]


@dataclass(frozen=True)
class _Gate:
    """Expectations of a pipeline file, and where their results go."""

    context: Any
    suite: str
    expectations: list[GxExpectation]
    run: str
    told: dict[str, Any]

    def judge(self, rows: DataFrame, count: int) -> _Found:
        """What they come to in some rows, for so many slices."""
        asset = self.context.data_sources.add_spark(self.suite).add_dataframe_asset("emissions")
        stored = run_suite(self.context, self.suite, asset, rows, self.expectations, self.run, self.told)
        results = [result for one in stored.values() for result in one.results]
        findings, measures = tuple(findings_of(results)), measures_of(results, self.expectations)
        return _Found([findings] * count, [measures] * count, stored)


@dataclass(frozen=True)
class _Found:
    """Findings and measures of each slice, and the results that are stored."""

    findings: list[tuple[Finding, ...]]
    measures: list[tuple[Measure, ...]]
    stored: dict[Any, Any]


def _of_job(gate: _Gate, output: DataFrame, starts: Sequence[int]) -> _Found:
    return gate.judge(output, len(starts))


def _of_slices(gate: _Gate, output: DataFrame, starts: Sequence[int]) -> _Found:
    if len(starts) == 1:
        return _of_job(gate, output, starts)
    from tidemark.quality import units  # noqa: PLC0415 - imports Great Expectations

    slice_of = F.unix_micros("_slice")
    judged = units.judged(output, slice_of, starts, gate.expectations)
    failed = [[one.failed for one in judged[start] if one.failed] for start in starts]
    for results in failed:
        withhold_values(results, gate.told)
    found = [tuple(findings_of(results)) for results in failed]
    warned = [number for number, findings in enumerate(found) if findings]
    refused = Verdict(tuple(found), 0, "").fit
    shown = refused if refused < len(starts) else warned[-1] if warned else len(starts) - 1
    alone = gate.judge(output.where(slice_of == starts[shown]), 1)
    found[shown] = alone.findings[0]
    names = [named(expectation.configuration.to_json_dict()) for expectation in gate.expectations]
    measures = [
        tuple(Measure(*name, one.value, one.failed is None) for name, one in zip(names, judged[start], strict=True))
        for start in starts
    ]
    return _Found(found, measures, alone.stored)
