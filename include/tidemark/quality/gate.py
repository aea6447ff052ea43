"""The quality gate: what a job has written is judged before the ledger row makes it count.

Two suites. `derived` follows from the join itself and is judged on one aggregate row per slice (`facts`); `pipeline`
holds the expectations of the pipeline file and is judged on the output rows of each slice (`units`), or of the job
where one says so. docs/decisions/0016-groups-of-slices.md says what becomes of a job that fails.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.commits.waivers import Waivers
from tidemark.delta.lake import PipelineTables
from tidemark.quality.facts import DERIVED
from tidemark.quality.findings import Finding, Verdict, findings_of, waived
from tidemark.quality.project import (
    built,
    docs_page,
    forget_old_results,
    gx_library,
    noted,
    project,
    run_suite,
    told_of,
    withhold_values,
)
from tidemark.settings import Pipeline

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation as GxExpectation


def judge(
    facts: pd.DataFrame,
    output: DataFrame,
    starts: Sequence[int],
    pipeline: Pipeline,
    tables: PipelineTables,
    run: str,
    waivers: Waivers = MappingProxyType({}),
) -> Verdict:
    """Judge a job by its facts (one row per slice, with the columns of `DERIVED`) and its output rows.

    `starts` are those of its slices, in microseconds, by which `waivers` go as well: what is waived is told,
    and does not keep it from being published. Rows are only read where the pipeline file has expectations.
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
        for per, judged in (("slice", _of_slices), ("job", _of_job)):
            if own := [built(expectation) for expectation in pipeline.quality if expectation.per == per]:
                gate = _Gate(context, f"pipeline_{per}", own, run, told_of(pipeline), waivers)
                found, results = judged(gate, output, starts)
                by_slice = [(*before, *more) for before, more in zip(by_slice, found, strict=True)]
                stored |= results
    return Verdict(tuple(by_slice), time.monotonic() - began, docs_page(tables), tuple(stored))


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
    waivers: Waivers

    def of_slice(self, start: int) -> _Gate:
        """The same for one slice: results say of an expectation that is waived for it who did so, and why."""
        waived = self.waivers.get(start, {})
        return replace(self, expectations=[noted(one, waived) for one in self.expectations])

    def judge(self, rows: DataFrame) -> tuple[tuple[Finding, ...], dict[Any, Any]]:
        """What they find in some rows, and the results as they are stored."""
        asset = self.context.data_sources.add_spark(self.suite).add_dataframe_asset("emissions")
        results = run_suite(self.context, self.suite, asset, rows, self.expectations, self.run, self.told)
        return tuple(finding for one in results.values() for finding in findings_of(one.results)), results


_Found = tuple[list[tuple[Finding, ...]], dict[Any, Any]]
"""Findings of each slice, and the results that are stored."""


def _of_job(gate: _Gate, output: DataFrame, starts: Sequence[int]) -> _Found:
    findings, stored = gate.judge(output)
    return [findings] * len(starts), stored


def _of_slices(gate: _Gate, output: DataFrame, starts: Sequence[int]) -> _Found:
    if len(starts) == 1:
        [findings], stored = _of_job(gate.of_slice(starts[0]), output, starts)
        return [waived(findings, gate.waivers.get(starts[0], {}))], stored
    from tidemark.quality import units  # noqa: PLC0415 - imports Great Expectations

    slice_of = F.unix_micros("_slice")
    failed = units.failures(output, slice_of, starts, gate.expectations)
    for results in failed.values():
        withhold_values(results, gate.told)
    found = [waived(findings_of(failed[start]), gate.waivers.get(start, {})) for start in starts]
    warned = [number for number, findings in enumerate(found) if findings]
    refused = Verdict(tuple(found), 0, "").fit
    shown = refused if refused < len(starts) else warned[-1] if warned else len(starts) - 1
    findings, stored = gate.of_slice(starts[shown]).judge(output.where(slice_of == starts[shown]))
    found[shown] = waived(findings, gate.waivers.get(starts[shown], {}))
    return found, stored
