"""Run expectations as suites of Great Expectations and store their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame

from tidemark.config import Expectation, Pipeline
from tidemark.planning.row_conditions import check_conditions_of
from tidemark.quality.evaluation_scope import EvaluationUnits
from tidemark.quality.gx.expectations import build_expectation, with_waiver_note
from tidemark.quality.gx.fast_path import ASSET, DATA_SOURCE, SUITE
from tidemark.quality.gx.project import import_gx
from tidemark.quality.gx.result_parsing import (
    get_name_and_severity,
    list_exceptions,
    parse_failures,
    parse_measurements,
)
from tidemark.quality.invariants import INVARIANTS
from tidemark.quality.results import (
    ExpectationResult,
    Measurement,
    ResultSet,
    SliceFailures,
    count_publishable,
)
from tidemark.quality.waivers import Waivers, apply_waivers
from tidemark.spark.error_redaction import remove_values

if TYPE_CHECKING:
    from great_expectations.datasource.fluent.interfaces import DataAsset
    from great_expectations.expectations.expectation import Expectation as GxExpectation

MAX_SHOWN_VALUES = 20
"""Maximum number of failing values stored with a result, if values may be shown."""


@dataclass(frozen=True)
class _Suite:
    """Expectations of equal scope."""

    name: str
    rows_name: str
    """Rows the expectations are on, as in `Expectation.on`."""
    expectations: list[GxExpectation]
    waivers: Waivers
    """Waivers by unit."""


@dataclass(frozen=True)
class SuiteRunner:
    """Evaluates expectations in a project of Great Expectations, which stores the results."""

    context: Any
    run: str
    """Name of the run in results."""
    result_format: dict[str, Any]
    waivers: Waivers

    def evaluate_invariants(self, invariants: pd.DataFrame) -> ResultSet:
        """Evaluate the invariants of the join; one row per slice, with the columns of `INVARIANTS`."""
        expectations = [
            import_gx().expectations.ExpectColumnValuesToBeInSet(
                column=name, value_set=[0], severity="critical", notes=sentence
            )
            for name, sentence in INVARIANTS.items()
        ]
        asset = self.context.data_sources.add_pandas(DATA_SOURCE).add_dataframe_asset(ASSET)
        stored = run_suite(self.context, SUITE, asset, invariants, expectations, self.run)
        failures = [failure for result in stored.values() for failure in parse_failures(result.results)]
        return ResultSet(_assign_to_slices(failures, invariants), [()] * len(invariants), stored)

    def evaluate_units(self, expectations: Sequence[Expectation], units: EvaluationUnits) -> ResultSet:
        """Evaluate expectations of equal scope on each unit, and store the results of one unit."""
        on, per = expectations[0].on, expectations[0].per
        for expectation in expectations:
            # Great Expectations passes them to Spark as they are.
            check_conditions_of(units.rows.sparkSession, expectation, units.rows.schema, "quality")
        built = [build_expectation(expectation) for expectation in expectations]
        suite = _Suite(f"{on}_per_{per}", on, built, self.waivers if per == "slice" else {})
        if len(units.slices) == 1:
            return self._evaluate_unit(suite, units.rows, *units.slices)
        from tidemark.quality.gx.batched_engine import evaluate_units  # noqa: PLC0415 - imports Great Expectations

        batched = evaluate_units(units.rows, units.unit, list(units.slices), suite.expectations)
        failures = []
        for unit, unit_results in batched.by_unit.items():
            failed = [result.failed for result in unit_results if result.failed]
            withhold_values(failed, self.result_format)
            failures.append(apply_waivers(parse_failures(failed), suite.waivers.get(unit, {})))
        stored_index = _choose_stored_unit(failures)
        unit = list(units.slices)[stored_index]
        if self.result_format["partial_unexpected_count"]:
            rerun = self._evaluate_unit(suite, units.rows.where(units.unit == unit), unit)
            failures[stored_index], stored = rerun.failures[0], rerun.gx_results
        else:
            annotated = [with_waiver_note(built, suite.waivers.get(unit, {})) for built in suite.expectations]
            results = batched.create_results(unit, annotated)
            withhold_values(results, self.result_format)
            stored = store_results(self.context, suite.name, results, self.run)
        names = [get_name_and_severity(built.configuration.to_json_dict()) for built in suite.expectations]
        measurements = [
            tuple(
                Measurement(*name, result.value, result.failed is None)
                for name, result in zip(names, unit_results, strict=True)
            )
            for unit_results in batched.by_unit.values()
        ]
        return ResultSet(failures, measurements, stored)

    def _evaluate_unit(self, suite: _Suite, rows: DataFrame, unit: int) -> ResultSet:
        """Evaluate a suite on the rows of one unit. Stored results mention waivers."""
        waivers = suite.waivers.get(unit, {})
        stored: dict[Any, Any] = {}
        for number, part in enumerate(_split_conflicting_quantiles(suite.expectations)):
            name = f"{suite.name}_{number + 1}" if number else suite.name
            asset = self.context.data_sources.add_spark(name).add_dataframe_asset(suite.rows_name)
            annotated = [with_waiver_note(expectation, waivers) for expectation in part]
            stored |= run_suite(self.context, name, asset, rows, annotated, self.run, self.result_format)
        results = [result for stored_result in stored.values() for result in stored_result.results]
        failures = apply_waivers(parse_failures(results), waivers)
        return ResultSet([failures], [parse_measurements(results, suite.expectations)], stored)


def _assign_to_slices(
    failures: Sequence[ExpectationResult], invariants: pd.DataFrame
) -> list[tuple[ExpectationResult, ...]]:
    """Return failed invariants by slice; results of Great Expectations do not contain the slice."""
    by_name = {
        name: failure for failure in failures for name in INVARIANTS if f"(column {name}," in failure.expectation
    }
    violated = invariants[list(INVARIANTS)].to_numpy(dtype=bool)
    return [
        tuple(by_name[name] for name, is_violated in zip(INVARIANTS, row, strict=True) if is_violated)
        for row in violated
    ]


def _choose_stored_unit(failures: SliceFailures) -> int:
    """Return the index of the unit to store: the first rejected, else the last with a failure, else the last."""
    rejected = count_publishable(failures)
    if rejected < len(failures):
        return rejected
    return max((index for index, failed in enumerate(failures) if failed), default=len(failures) - 1)


def _split_conflicting_quantiles(expectations: Iterable[GxExpectation]) -> list[list[GxExpectation]]:
    """Split expectations into suites with at most one expectation on quantiles per column.

    Within a suite, Great Expectations reuses the quantiles of a column although other quantiles are needed.
    """
    suites: list[dict[Any, GxExpectation]] = [{}]
    for expectation in expectations:
        has_quantiles = hasattr(expectation, "quantile_ranges")
        key = getattr(expectation, "column", None) if has_quantiles else id(expectation)
        suite = next((suite for suite in suites if key not in suite), None)
        if suite is None:
            suites.append(suite := {})
        suite[key] = expectation
    return [list(suite.values()) for suite in suites]


def run_suite(
    context: Any,
    name: str,
    asset: DataAsset[Any, Any],
    data: pd.DataFrame | DataFrame,
    expectations: Iterable[GxExpectation],
    run: str,
    result_format: dict[str, Any] | None = None,
) -> dict[Any, Any]:
    """Run expectations as a suite and store the result.

    Returns:
        Results of Great Expectations by their identifiers.
    """
    gx = import_gx()
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=list(expectations)))
    batch = asset.add_batch_definition_whole_dataframe("job")  # type: ignore[attr-defined]
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name=name,
            validation_definitions=[definition],
            result_format=result_format or "SUMMARY",
        )
    )
    outcome = checkpoint.run(batch_parameters={"dataframe": data}, run_id=gx.RunIdentifier(run_name=run))
    for key, result in outcome.run_results.items():
        if result_format and withhold_values(result.results, result_format):
            context.validation_results_store.set(key, result)
    return dict(outcome.run_results)


def store_results(context: Any, name: str, results: Sequence[Any], run: str) -> dict[Any, Any]:
    """Store computed results as if a suite of this name had been run; return them by their identifier."""
    gx = import_gx()
    identifiers, now = gx.data_context.types.resource_identifiers, datetime.now(UTC)
    run_id = gx.RunIdentifier(run_name=run, run_time=now)
    passed = sum(bool(result.success) for result in results)
    key = identifiers.ValidationResultIdentifier(identifiers.ExpectationSuiteIdentifier(name), run_id, f"{name}-rows")
    result = gx.core.expectation_validation_result.ExpectationSuiteValidationResult(
        success=passed == len(results),
        results=list(results),
        suite_name=name,
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": passed,
            "unsuccessful_expectations": len(results) - passed,
            "success_percent": 100 * passed / len(results),
        },
        meta={"great_expectations_version": gx.__version__, "run_id": run_id, "validation_time": now},
        batch_id=key.batch_identifier,
    )
    context.validation_results_store.set(key, result)
    return {key: result}


def withhold_values(results: Iterable[Any], result_format: Mapping[str, Any]) -> bool:
    """Remove quoted row values from exceptions, unless the format shows values; return True if any were changed."""
    exceptions = [exception for result in results for exception in list_exceptions(result.exception_info)]
    if result_format["partial_unexpected_count"]:
        return False
    for exception in exceptions:
        exception["exception_message"] = remove_values(str(exception["exception_message"]))
        exception["exception_traceback"] = ""
    return bool(exceptions)


def get_result_format(pipeline: Pipeline) -> dict[str, Any]:
    """Return the format of results: counts, with some failing values only if the file has `expose_row_values`."""
    shown = MAX_SHOWN_VALUES if pipeline.expose_row_values else 0
    return {"result_format": "SUMMARY", "partial_unexpected_count": shown}
