"""Results of validating the slices of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tidemark.quality.evaluation_scope import EvaluationUnits

_T = TypeVar("_T")
_OUTCOMES = {"stop": "failed", "quarantine": "quarantined", "waived": "waived", "warn": "warned"}
"""Outcome of a slice by the consequence of a failed expectation, the most severe first."""


@dataclass(frozen=True)
class ExpectationResult:
    """Result of an expectation that failed. Passed expectations have only a `Measurement`."""

    expectation: str
    """Name by `format_expectation_name`."""
    severity: str
    detail: str
    """Observed value, or message of an exception."""
    on_failure: str = "stop"
    """Consequence for the slice: `stop`, `quarantine`, `warn`; `waived` if a waiver lets it be published."""

    @property
    def outcome(self) -> str:
        """Outcome of the slice: `failed`, `quarantined`, `waived` or `warned`."""
        return _OUTCOMES[self.on_failure]


@dataclass(frozen=True)
class Measurement:
    """Observed value of an expectation of the pipeline file in a slice, passed or failed."""

    expectation: str
    """Name by `format_expectation_name`."""
    severity: str
    value: float | None
    """Observed value if it is a single number. For expectations on single rows: share (0 to 1) of the values that are
    not null and violate it. None without values, and for several values, text and exceptions."""
    passed: bool


SliceFailures = Sequence[tuple[ExpectationResult, ...]]
"""Failed expectations by slice or by evaluation unit."""
SliceMeasurements = Sequence[tuple[Measurement, ...]]
"""Measurements by slice or by evaluation unit."""


@dataclass(frozen=True)
class ResultSet:
    """Results by slice, or by evaluation unit, while a job is validated."""

    failures: SliceFailures
    measurements: SliceMeasurements
    gx_results: Mapping[Any, Any]
    """Stored results of Great Expectations, by their identifiers."""

    @classmethod
    def create_empty(cls, slices: int) -> ResultSet:
        """Create results without failures or measurements."""
        return cls([()] * slices, [()] * slices, {})

    def merge(self, other: ResultSet) -> ResultSet:
        """Append other results on the same slices."""
        return ResultSet(
            _concatenate(self.failures, other.failures),
            _concatenate(self.measurements, other.measurements),
            {**self.gx_results, **other.gx_results},
        )

    def merge_units(self, other: ResultSet, units: EvaluationUnits) -> ResultSet:
        """Append results by unit to the slices that report each unit."""
        failures, measurements = list(self.failures), list(self.measurements)
        for unit, indices in enumerate(units.slices.values()):
            for index in indices:
                failures[index] += other.failures[unit]
                measurements[index] += other.measurements[unit]
        return ResultSet(failures, measurements, {**self.gx_results, **other.gx_results})


@dataclass(frozen=True)
class ValidationResult:
    """Results of some slices of a job. Only consequence `stop` keeps a slice from being published."""

    failures_by_slice: tuple[tuple[ExpectationResult, ...], ...]
    """Failed expectations by slice, in order. Failures of the whole job are in every slice."""
    seconds: float
    docs_index: str
    """Path of Data Docs' first page."""
    gx_result_ids: tuple[Any, ...] = ()
    """Identifiers of the stored results of Great Expectations, for `write_docs`."""
    measurements_by_slice: tuple[tuple[Measurement, ...], ...] = ()
    """Measurements by slice, in order: expectations per slice before those per job, in the pipeline file's order.
    Invariants are not included."""

    def select_slices(self, start: int, stop: int) -> ValidationResult:
        """Return the result of the slices with index `start` <= n < `stop`."""
        return replace(
            self,
            failures_by_slice=self.failures_by_slice[start:stop],
            measurements_by_slice=self.measurements_by_slice[start:stop],
        )

    def merge(self, other: ValidationResult) -> ValidationResult:
        """Append another result on the same slices."""
        return replace(
            self,
            failures_by_slice=_concatenate(self.failures_by_slice, other.failures_by_slice),
            seconds=self.seconds + other.seconds,
            gx_result_ids=(*self.gx_result_ids, *other.gx_result_ids),
            measurements_by_slice=_concatenate(self.measurements_by_slice, other.measurements_by_slice),
        )

    @property
    def publishable_count(self) -> int:
        """Number of slices before the first rejected slice."""
        return count_publishable(self.failures_by_slice)

    @property
    def failures(self) -> tuple[ExpectationResult, ...]:
        """Distinct failures of all slices."""
        return tuple(dict.fromkeys(failure for failures in self.failures_by_slice for failure in failures))

    @property
    def blocking_failures(self) -> tuple[ExpectationResult, ...]:
        """Failures that keep a slice from being published."""
        return tuple(failure for failure in self.failures if failure.on_failure == "stop")

    @property
    def outcome(self) -> str:
        """Most severe outcome of all slices: `failed`, `quarantined`, `waived`, `warned` or `passed`."""
        actions = {failure.on_failure for failure in self.failures}
        return next((outcome for action, outcome in _OUTCOMES.items() if action in actions), "passed")


def count_publishable(failures_by_slice: SliceFailures) -> int:
    """Count the slices before the first one with a failure that keeps it from being published."""
    blocked = (n for n, failures in enumerate(failures_by_slice) if any(f.on_failure == "stop" for f in failures))
    return next(blocked, len(failures_by_slice))


def format_expectation_name(expectation_type: str, arguments: Mapping[str, Any], scope: str) -> str:
    """Format the name of an expectation for results, messages and tables: `TYPE(NAME VALUE, ...) SCOPE`.

    Args:
        expectation_type: Such as `expect_column_values_to_not_be_null`.
        arguments: Arguments by name.
        scope: Rows and unit, as `Expectation.scope` returns them.
    """
    listed = ", ".join(f"{name} {value}" for name, value in arguments.items())
    return f"{expectation_type}({listed}){scope}"


def _concatenate(first: Sequence[tuple[_T, ...]], second: Sequence[tuple[_T, ...]]) -> tuple[tuple[_T, ...], ...]:
    return tuple((*ours, *theirs) for ours, theirs in zip(first, second, strict=True))
