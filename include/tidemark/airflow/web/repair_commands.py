"""List the commands and DAGs that repair a slice, by its state."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.airflow.dag_kinds import Kind, format_dag_id, has_dag
from tidemark.airflow.web.slice_states import SliceSummary
from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.quality.gx.expectations import get_expectation_name
from tidemark.quality.quarantine import abbreviate_expectation_name


@dataclass(frozen=True)
class RepairCommand:
    """A command, and what it does."""

    purpose: str
    command: str
    dag: str | None = None
    """Id of the pipeline's DAG that does the same; None if there is none."""


def list_commands(
    pipeline: Pipeline, summary: SliceSummary, start: str, end: str, failed: Sequence[str] = ()
) -> Iterator[RepairCommand]:
    """Yield the commands for consecutive slices in one state, the most useful first.

    Args:
        pipeline: The pipeline.
        summary: State of the slices, and their match with the stream.
        start: Start of the first slice (inclusive).
        end: End of the last slice (exclusive).
        failed: Names of the expectations for which the first slice was rejected.
    """
    name, state = format_cli_arguments(pipeline), summary.state
    reprocess = f"tidemark reprocess {name} --from {start} --to {end}", _find_dag(pipeline, "reprocess")
    if state == "rejected":
        run = reprocess if summary.is_committed else (f"tidemark run {name} --to {end}", None)
        yield RepairCommand("Show which expectation failed", f"tidemark quality show {name}")
        yield RepairCommand("Run it again, after the cause is removed", *run)
        yield from _list_waivers(pipeline, start, failed)
        if summary.has_quarantined_rows:
            yield from _list_quarantine_commands(pipeline, start)
    elif state == "stale":
        repair = _find_dag(pipeline, "repair")
        yield RepairCommand("Run stale slices again", f"tidemark run {name} --to {end}", repair)
    elif state == "due":
        yield RepairCommand("Show what it waits for", f"tidemark plan {name} --to {end}")
        yield RepairCommand("Run the slices up to it", f"tidemark run {name} --to {end}")
    elif state == "quarantined":
        yield from _list_quarantine_commands(pipeline, start)
    if summary.match not in {None, "equal"}:
        yield RepairCommand("Compare with the stream again", f"tidemark compare run {name} --from {start} --to {end}")
    if summary.is_committed and state != "rejected":
        yield RepairCommand("Compute it again", *reprocess)


def _find_dag(pipeline: Pipeline, kind: Kind) -> str | None:
    return format_dag_id(pipeline.name, kind) if has_dag(pipeline, kind) else None


def _list_quarantine_commands(pipeline: Pipeline, start: str) -> Iterator[RepairCommand]:
    name = format_cli_arguments(pipeline)
    yield RepairCommand("Show the rows in quarantine", f"tidemark quarantine list {name}")
    release = f"tidemark quarantine release {name} --slice {start}"
    yield RepairCommand("Publish them", release, _find_dag(pipeline, "release"))


def _list_waivers(pipeline: Pipeline, start: str, failed: Sequence[str]) -> Iterator[RepairCommand]:
    """Yield the commands that waive expectations of the file, except those that can be waived for no single slice."""
    expectations = {
        get_expectation_name(expectation): expectation
        for expectation in pipeline.quality
        if expectation.on_failure != "warn"
    }
    names = [get_expectation_name(expectation) for expectation in pipeline.quality]
    for expectation in failed:
        if expectation not in expectations or expectations[expectation].per != "slice":
            continue
        word = shlex.quote(abbreviate_expectation_name(expectation, names))
        yield RepairCommand(
            f"Publish it at the next run although it fails {expectation}",
            f"tidemark quality waive {format_cli_arguments(pipeline)} --slice {start} --expectation {word} "
            "--reason TEXT",
            _find_dag(pipeline, "waive"),
        )
