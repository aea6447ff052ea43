"""List what the quality gate did not publish, and waive expectations, for tasks that a person approves.

It opens tables: import it only inside the process of a task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import pandas as pd

from tidemark.config import Expectation, Pipeline
from tidemark.config.types import format_instant, parse_instant
from tidemark.errors import UserError
from tidemark.formatting import format_count
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx.expectations import get_expectation_name
from tidemark.quality.pending_rejections import list_pending_rejections
from tidemark.quality.quarantine import list_quarantined
from tidemark.quality.results_table import read_results
from tidemark.quality.waivers import list_pending_waivers, waive
from tidemark.timegrid.slices import group_consecutive

MAX_SLICES = 50
"""Maximum number of slices that a person is asked about at once, the earliest first."""
_VALUES = ("value", "min_value", "max_value")


def plan_releases(pipeline: Pipeline, lake: str) -> dict[str, Any]:
    """List the slices with rows in quarantine.

    Args:
        pipeline: The pipeline.
        lake: The lake root.

    Returns:
        JSON-ready: `pipeline`, `notes`, and `slices` with `slice`, `run`, `rows` and `failures` each. A failure has
        `expectation`, `rows` and `result`. A row that fails several expectations counts for each of them.

    Raises:
        UserError: A table is not valid.
    """
    groups = list_quarantined(pipeline, lake)
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    rows = {ledger.grid.label(int(row["number"])): row for row in ledger.rows.to_dict("records")}
    slices: dict[str, dict[str, Any]] = {}
    for group in groups:
        row = rows[group.slice]
        results = {result["expectation"]: result["detail"] for result in json.loads(row["quality_results"])}
        failure = {"expectation": group.expectation, "rows": group.rows, "result": results.get(group.expectation, "")}
        empty = {"slice": group.slice, "run": group.run, "rows": int(row["quarantined"]), "failures": []}
        slices.setdefault(group.slice, empty)["failures"].append(failure)
    return _create_plan(pipeline, list(slices.values()), [])


def select_unreleased(pipeline: Pipeline, lake: str, approved: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the approved slices of `plan_releases` that still have rows in quarantine.

    Raises:
        UserError: A slice has run again since, also if no row fails now; or a table is not valid.
    """
    items = list(approved)
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    runs = {ledger.grid.label(number): entry.run for number, entry in ledger.entries.items()}
    _require_same_runs(items, runs)
    current = {group.slice for group in list_quarantined(pipeline, lake)}
    return [item for item in items if item["slice"] in current]


def plan_waivers(pipeline: Pipeline, lake: str) -> dict[str, Any]:
    """List the rejected slices whose failed expectations can be waived.

    Args:
        pipeline: The pipeline.
        lake: The lake root.

    Returns:
        JSON-ready: `pipeline`, `notes`, and `slices` with `slice`, `end`, `run`, `rejected_at`, `is_committed` and
        `failures` each. A failure has `expectation`, `value`, `min_value` and `max_value`. Notes are about the other
        rejected slices.

    Raises:
        UserError: A table is not valid.
    """
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    expectations = {
        get_expectation_name(expectation): expectation
        for expectation in pipeline.quality
        if expectation.on_failure != "warn"
    }
    waived = {(waiver["slice"], waiver["expectation"]) for waiver in list_pending_waivers(ledger)}
    results = read_results(ledger.tables.rejection_results)
    slices, notes = [], []
    for rejection in list_pending_rejections(ledger):
        # An expectation that the file has no longer, or that only warns now, stops no further run.
        failed = [name for name in rejection.expectations if name in expectations]
        required = [name for name in failed if (rejection.slice, name) not in waived]
        if obstacle := _find_obstacle(failed, required, expectations):
            notes.append(f"slice {rejection.slice}: {obstacle}")
            continue
        number = ledger.grid.parse_boundary(parse_instant(rejection.slice), "slice")
        slices.append(
            {
                "slice": rejection.slice,
                "end": ledger.grid.label(number + 1),
                "run": rejection.run,
                "rejected_at": rejection.rejected_at,
                "is_committed": ledger.entry(number) is not None,
                "failures": list(_list_failures(results, ledger.grid.datetime_of(number), rejection.run, required)),
            }
        )
    return _create_plan(pipeline, slices, notes)


def waive_slices(
    pipeline: Pipeline, lake: str, approved: Iterable[Mapping[str, Any]], reason: str, user: str
) -> list[str]:
    """Waive the failed expectations of approved slices for their next run.

    Args:
        pipeline: The pipeline.
        lake: The lake root.
        approved: Slices of `plan_waivers`.
        reason: Text for the ledger.
        user: Who waives.

    Returns:
        A line per waiver.

    Raises:
        UserError: A slice has run again since, and no expectation was waived; or an expectation cannot be waived.
    """
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    current = {rejection.slice: rejection.run for rejection in list_pending_rejections(ledger)}
    items = list(approved)
    _require_same_runs(items, current)
    waivers = [
        waive(pipeline, lake, parse_instant(item["slice"]), failure["expectation"], reason, user)
        for item in items
        for failure in item["failures"]
    ]
    return [
        f"{waiver.expectation} of slice {format_instant(waiver.slice)} is {waiver.format_note()}" for waiver in waivers
    ]


def list_rejected_ranges(pipeline: Pipeline, lake: str, approved: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the start and end of consecutive approved slices of `plan_waivers` that are still rejected."""
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    current = {rejection.slice for rejection in list_pending_rejections(ledger)}
    grid = ledger.grid
    numbers = (
        grid.parse_boundary(parse_instant(item["slice"]), "slice") for item in approved if item["slice"] in current
    )
    return [(grid.label(part.start), grid.label(part.stop)) for part in group_consecutive(numbers)]


def _require_same_runs(approved: Iterable[Mapping[str, Any]], current: Mapping[str, str]) -> None:
    """Check that a person has approved the current runs of slices.

    Args:
        approved: Slices with the `run` that was approved.
        current: Current run by slice.

    Raises:
        UserError: A slice has another run.
    """
    if changed := [item["slice"] for item in approved if current.get(item["slice"]) != item["run"]]:
        raise UserError(f"slice {', '.join(changed)} has run again since. Start the DAG again to see the new result.")


def _find_obstacle(failed: list[str], required: list[str], expectations: Mapping[str, Expectation]) -> str | None:
    """Return why a slice needs no waiver, or cannot have one; None if it can be waived.

    Args:
        failed: Names of the failed expectations that can still stop a slice.
        required: Those without a waiver.
        expectations: Expectations of the file that can stop a slice, by name.
    """
    if not failed:
        return "none of the failed expectations is in the pipeline file now, so it needs no waiver. Run it again."
    if not required:
        return "it is waived for its next run. Run it again."
    for name in required:
        if (per := expectations[name].per) != "slice":
            return f"{name} is evaluated on more than a slice (per: {per}). Change it in the pipeline file."
    return None


def _list_failures(results: pd.DataFrame, start: datetime, run: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    of_run = results[(results["slice"] == pd.Timestamp(start)) & (results["run"] == run)]
    for name in names:
        row = of_run[of_run["expectation"] == name].iloc[-1]
        values = {column: None if pd.isna(row[column]) else float(row[column]) for column in _VALUES}
        yield {"expectation": name, **values}


def _create_plan(pipeline: Pipeline, slices: list[dict[str, Any]], notes: list[str]) -> dict[str, Any]:
    if hidden := slices[MAX_SLICES:]:
        notes = [*notes, f"{format_count(len(hidden), 'more slice')} not listed. Start the DAG again after this run."]
    return {"pipeline": pipeline.name, "slices": slices[:MAX_SLICES], "notes": notes}
