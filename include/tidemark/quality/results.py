"""What the gate found: expectations that did not hold, by slice, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from math import isfinite
from typing import Any

import numpy as np

from tidemark.quality.waivers import Waiver

ON_FAILURE, LOOKS_AT = "tidemark_on_failure", "tidemark_looks_at"
"""Where Great Expectations' `meta` of an expectation has what the pipeline file says of it."""


_OUTCOMES = {"stop": "failed", "quarantine": "quarantined", "waived": "waived", "warn": "warned"}


@dataclass(frozen=True)
class Finding:
    """An expectation that did not hold."""

    expectation: str
    severity: str
    detail: str
    on_failure: str = "stop"
    """What follows for the slice: `stop`, `quarantine`, `warn`; `waived` where somebody lets the slice through."""

    @property
    def outcome(self) -> str:
        """How a slice of it comes out: `failed`, `quarantined`, `waived` or `warned`."""
        return _OUTCOMES[self.on_failure]


@dataclass(frozen=True)
class Measure:
    """What an expectation of the pipeline file came to in a slice, whether it held or not."""

    expectation: str
    """As in `Finding`."""
    severity: str
    value: float | None
    """What was observed, where that is one number; of an expectation on single rows the share (0 to 1) of its values,
    those that are not null, which break it. None where there is neither: no value, several, a text, an exception."""
    passed: bool


@dataclass(frozen=True)
class Verdict:
    """What the gate found in some slices; only one that stops keeps them from being published."""

    by_slice: tuple[tuple[Finding, ...], ...]
    """In the order of the slices; what is known of the job alone is found in each."""
    seconds: float
    docs: str
    """Data Docs' first page."""
    results: tuple[Any, ...] = ()
    """What Great Expectations calls its results, for `write_docs`."""
    measures: tuple[tuple[Measure, ...], ...] = ()
    """In the order of the slices; in each the pipeline file's expectations on slices, then those on jobs, in its order.
    What follows from the join itself is not among them."""

    def of(self, start: int, stop: int) -> Verdict:
        """That on the slices `start` <= n < `stop` of these."""
        return replace(self, by_slice=self.by_slice[start:stop], measures=self.measures[start:stop])

    def beside(self, other: Verdict) -> Verdict:
        """This and another on the same slices."""
        return replace(
            self,
            by_slice=tuple((*mine, *more) for mine, more in zip(self.by_slice, other.by_slice, strict=True)),
            seconds=self.seconds + other.seconds,
            results=(*self.results, *other.results),
            measures=tuple((*mine, *more) for mine, more in zip(self.measures, other.measures, strict=True)),
        )

    @property
    def fit(self) -> int:
        """How many slices come before the first one that is refused."""
        refused = (n for n, found in enumerate(self.by_slice) if any(one.on_failure == "stop" for one in found))
        return next(refused, len(self.by_slice))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, those of several slices once."""
        return tuple(dict.fromkeys(one for found in self.by_slice for one in found))

    @property
    def stopping(self) -> tuple[Finding, ...]:
        """Findings that refuse the output."""
        return tuple(f for f in self.findings if f.on_failure == "stop")

    @property
    def outcome(self) -> str:
        """The gravest: `failed`, `quarantined`, `waived`, `warned` or `passed`."""
        found = {finding.on_failure for finding in self.findings}
        return next((outcome for action, outcome in _OUTCOMES.items() if action in found), "passed")


def findings_of(results: Iterable[Any]) -> list[Finding]:
    """Those that Great Expectations' results hold."""
    return [_finding(result.to_json_dict()) for result in results if not result.success]


def measures_of(results: Iterable[Any], expectations: Iterable[Any]) -> tuple[Measure, ...]:
    """Those that Great Expectations' results hold, in the order of its expectations."""
    known = {}
    for result in results:
        name = named(result.expectation_config.to_json_dict())
        known[name] = Measure(*name, observed(result.result), bool(result.success))
    return tuple(known[named(expectation.configuration.to_json_dict())] for expectation in expectations)


def named(config: Mapping[str, Any]) -> tuple[str, str]:
    """How an expectation is called, by its configuration, and its severity."""
    return called(config), config["severity"]


def observed(result: Mapping[str, Any]) -> float | None:
    """`Measure.value`, by the details of one of Great Expectations' results."""
    if "unexpected_percent" in result:
        percent = result["unexpected_percent"]
        return None if percent is None else percent / 100
    value = result.get("observed_value")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | np.number):
        return None
    number = float(value)
    return number if isfinite(number) else None


def waived(findings: Iterable[Finding], waivers: Mapping[str, Waiver]) -> tuple[Finding, ...]:
    """Findings of a slice, those told as waived that somebody lets it through for."""
    return tuple(
        replace(one, on_failure="waived", detail=f"{one.detail}; {waiver.told()}")
        if one.on_failure != "warn" and (waiver := waivers.get(one.expectation))
        else one
        for one in findings
    )


def _finding(result: dict[str, Any]) -> Finding:
    config = result["expectation_config"]
    message = _exception(result["exception_info"])
    seen = message or f"found {_seen(result['result'])}"
    action = (config.get("meta") or {}).get(ON_FAILURE, "stop")
    if message and action == "quarantine":  # it does not tell which rows
        action = "stop"
    return Finding(called(config), config["severity"], seen, action)


def called(config: Mapping[str, Any]) -> str:
    """An expectation by Great Expectations' configuration of it, and what it looks at beside a slice's emissions."""
    arguments = ", ".join(f"{k} {v}" for k, v in config["kwargs"].items() if k != "batch_id")
    return f"{config['type']}({arguments}){(config.get('meta') or {}).get(LOOKS_AT, '')}"


def _seen(result: dict[str, Any]) -> str:
    if "unexpected_count" in result:
        some = result.get("partial_unexpected_list", [])[:3]
        return f"{result['unexpected_count']} of {result['element_count']} values" + (
            f", such as {some}" if some else ""
        )
    return str(result.get("observed_value", result))


def _exception(info: dict[str, Any]) -> str | None:
    messages = [str(one["exception_message"]) for one in raised_in(info)]
    return " ".join(messages[0].split()) if messages else None


def raised_in(info: dict[str, Any]) -> list[dict[str, Any]]:
    """The exceptions of an expectation, or of the metrics that it needs."""
    known = [info] if "exception_message" in info else info.values()
    return [one for one in known if one.get("raised_exception")]
