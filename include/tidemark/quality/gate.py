"""The quality gate: what a job has written is judged before the ledger row makes it count.

What follows from the join itself is the suite `derived`, on one aggregate row per slice (`facts`). The expectations of
the pipeline file are a suite for each kind of rows and units that they are on (`subjects`, `units`); those on history
go by the ledger alone (`history`). docs/decisions/0016-groups-of-slices.md says what becomes of a job that fails.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame

from tidemark.config import Expectation, Pipeline
from tidemark.config.quality import default_expectations
from tidemark.config.sides import SIDES
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.baseline_checks import judged_by_history
from tidemark.quality.evaluation_scope import JobRows, Units
from tidemark.quality.gx.fast_path import ASSET, DATA, SUITE, forget_old_results, keep_held, suffices
from tidemark.quality.gx.project import (
    built,
    docs_page,
    gx_library,
    noted,
    project,
    run_suite,
    store_results,
    told_of,
    withhold_values,
)
from tidemark.quality.invariants import DERIVED
from tidemark.quality.results import Finding, Measure, Verdict, findings_of, measures_of, named, waived
from tidemark.quality.waivers import Waivers

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation as GxExpectation


def judge(
    facts: pd.DataFrame,
    rows: JobRows,
    pipeline: Pipeline,
    tables: PipelineTables,
    run: str,
    waivers: Waivers = MappingProxyType({}),
) -> Verdict:
    """Judge a job by its facts (one row per slice, with the columns of `DERIVED`) and what it has written.

    What is waived, by a slice's start in microseconds, is told and does not keep the slice from being published. Rows
    are only read where the pipeline file has expectations. Results are stored, of slices those of one: the first that
    is refused, else the last with a warning, else the last. `write_docs` shows them. Great Expectations is left alone
    where facts say all (`plain`).
    """
    began = time.monotonic()
    forget_old_results(tables)
    asked = [one for one in pipeline.quality if one.on not in SIDES]
    if suffices(pipeline, facts):
        keep_held(tables, facts, run)
        found = _Found([()] * len(facts), [()] * len(facts), {})
    else:
        with project(tables) as context:
            found = _with_all(_derived(context, facts, run), context, rows, asked, run, told_of(pipeline), waivers)
    if rows.figures is not None:
        usual = default_expectations() if pipeline.quality_defaults else []
        beside = [*(one for one in asked if one.on == "history"), *usual]
        told = judged_by_history(rows.figures, beside)
        found = found.with_slices(
            (waived(findings, waivers.get(start, {})), measures)
            for start, (findings, measures) in zip(rows.starts, told, strict=True)
        )
    return found.verdict(began, tables)


def judge_inputs(
    rows: JobRows, pipeline: Pipeline, tables: PipelineTables, run: str, waivers: Waivers = MappingProxyType({})
) -> Verdict:
    """Judge the rows that a job is about to join, by the expectations of the pipeline file on its inputs."""
    began = time.monotonic()
    nothing: _Found = _Found([()] * len(rows.starts), [()] * len(rows.starts), {})
    asked = [one for one in pipeline.quality if one.on in SIDES]
    with project(tables) as context:
        return _with_all(nothing, context, rows, asked, run, told_of(pipeline), waivers).verdict(began, tables)


def _with_all(
    found: _Found,
    context: Any,
    rows: JobRows,
    asked: Iterable[Expectation],
    run: str,
    told: dict[str, Any],
    waivers: Waivers,
) -> _Found:
    """What was found, and what expectations on rows come to."""
    for alike in _alike(one for one in asked if one.on != "history"):
        if units := rows.units(alike[0]):
            found = found.with_units(_judged(context, alike, units, run, told, waivers), units)
    return found


def _alike(expectations: Iterable[Expectation]) -> list[list[Expectation]]:
    """Those that look at the same units of the same rows, together."""
    alike: dict[tuple[str, str], list[Expectation]] = defaultdict(list)
    for one in expectations:
        alike[one.on, one.per].append(one)
    return list(alike.values())


def _derived(context: Any, facts: pd.DataFrame, run: str) -> _Found:
    """What facts come to, by Great Expectations."""
    derived = [
        gx_library().expectations.ExpectColumnValuesToBeInSet(
            column=name, value_set=[0], severity="critical", notes=says
        )
        for name, says in DERIVED.items()
    ]
    slices = context.data_sources.add_pandas(DATA).add_dataframe_asset(ASSET)
    stored = run_suite(context, SUITE, slices, facts, derived, run)
    known = _of_facts(facts, [finding for one in stored.values() for finding in findings_of(one.results)])
    return _Found(known, [()] * len(facts), stored)


def _of_facts(facts: pd.DataFrame, findings: Sequence[Finding]) -> list[tuple[Finding, ...]]:
    """Findings on all facts, by the slices whose facts are wrong."""
    named = {name: finding for finding in findings for name in DERIVED if f"(column {name}," in finding.expectation}
    broken = facts[list(DERIVED)].to_numpy(dtype=bool)
    return [tuple(named[name] for name, wrong in zip(DERIVED, row, strict=True) if wrong) for row in broken]


@dataclass(frozen=True)
class _Found:
    """Findings and measures, of slices or of units, and the results that are stored."""

    findings: list[tuple[Finding, ...]]
    measures: list[tuple[Measure, ...]]
    stored: dict[Any, Any]

    def with_units(self, other: _Found, units: Units) -> _Found:
        """These, of slices, and what was found in units of them."""
        findings, measures = list(self.findings), list(self.measures)
        for number, places in enumerate(units.slices.values()):
            for place in places:
                findings[place] += other.findings[number]
                measures[place] += other.measures[number]
        return _Found(findings, measures, self.stored | other.stored)

    def with_slices(self, others: Iterable[tuple[tuple[Finding, ...], tuple[Measure, ...]]]) -> _Found:
        """These, of slices, and others of them."""
        found, measured = zip(*others, strict=True)
        return _Found(
            [(*mine, *more) for mine, more in zip(self.findings, found, strict=True)],
            [(*mine, *more) for mine, more in zip(self.measures, measured, strict=True)],
            self.stored,
        )

    def verdict(self, began: float, tables: PipelineTables) -> Verdict:
        """These as the verdict of a gate that began then, by the monotonic clock."""
        seconds = time.monotonic() - began
        return Verdict(tuple(self.findings), seconds, docs_page(tables), tuple(self.stored), tuple(self.measures))


def _judged(
    context: Any, asked: Sequence[Expectation], units: Units, run: str, told: dict[str, Any], waivers: Waivers
) -> _Found:
    """What expectations that look at the same come to in each unit."""
    by_unit = waivers if asked[0].per == "slice" else {}
    gate = _Gate(context, asked[0], [built(one) for one in asked], run, told, by_unit)
    if len(units.slices) == 1:
        return gate.judge(units.rows, *units.slices)
    from tidemark.quality.gx.batched_engine import judged  # noqa: PLC0415 - imports Great Expectations

    verdicts = judged(units.rows, units.unit, list(units.slices), gate.expectations)
    found = []
    for unit, of_unit in verdicts.by_unit.items():
        failed = [one.failed for one in of_unit if one.failed]
        withhold_values(failed, gate.told)
        found.append(waived(findings_of(failed), gate.waivers.get(unit, {})))
    warned = [number for number, findings in enumerate(found) if findings]
    refused = Verdict(tuple(found), 0, "").fit
    shown = refused if refused < len(found) else warned[-1] if warned else len(found) - 1
    unit = list(units.slices)[shown]
    if gate.told["partial_unexpected_count"]:
        alone = gate.judge(units.rows.where(units.unit == unit), unit)
        found[shown], stored = alone.findings[0], alone.stored
    else:
        noting = [noted(one, gate.waivers.get(unit, {})) for one in gate.expectations]
        results = verdicts.results(unit, noting)
        withhold_values(results, gate.told)
        stored = store_results(context, gate.suite, results, run)
    names = [named(expectation.configuration.to_json_dict()) for expectation in gate.expectations]
    measures = [
        tuple(Measure(*name, one.value, one.failed is None) for name, one in zip(names, of_unit, strict=True))
        for of_unit in verdicts.by_unit.values()
    ]
    return _Found(found, measures, stored)


@dataclass(frozen=True)
class _Gate:
    """Expectations of a pipeline file that look at the same, and where their results go."""

    context: Any
    like: Expectation
    """One of them, as the file has it."""
    expectations: list[GxExpectation]
    run: str
    told: dict[str, Any]
    waivers: Waivers

    @property
    def suite(self) -> str:
        """What the suite is called."""
        return f"{self.like.on}_per_{self.like.per}"

    def judge(self, rows: DataFrame, unit: int) -> _Found:
        """What they come to in the rows of a unit; of one that is waived results say who did so, and why."""
        waivers = self.waivers.get(unit, {})
        stored: dict[Any, Any] = {}
        for number, part in enumerate(_told_apart(self.expectations)):
            name = f"{self.suite}_{number + 1}" if number else self.suite
            asset = self.context.data_sources.add_spark(name).add_dataframe_asset(self.like.on)
            shown = [noted(one, waivers) for one in part]
            stored |= run_suite(self.context, name, asset, rows, shown, self.run, self.told)
        results = [result for one in stored.values() for result in one.results]
        measures = measures_of(results, self.expectations)
        return _Found([waived(findings_of(results), waivers)], [measures], stored)


def _told_apart(expectations: Iterable[GxExpectation]) -> list[list[GxExpectation]]:
    """The same in suites: in one Great Expectations takes the quantiles of a column for any others of it."""
    suites: list[dict[Any, GxExpectation]] = [{}]
    for one in expectations:
        about = getattr(one, "column", None) if hasattr(one, "quantile_ranges") else id(one)
        free = next((suite for suite in suites if about not in suite), None)
        if free is None:
            suites.append(free := {})
        free[about] = one
    return [list(suite.values()) for suite in suites]
