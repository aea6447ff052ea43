"""List and delete candidate versions of a pipeline, each of which has tables of its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tidemark.config import Pipeline, Slices
from tidemark.config.candidate_version import (
    CANDIDATES_FOLDER,
    DROP_MARKER,
    format_cli_arguments,
    to_candidate,
    with_stored_config,
)
from tidemark.delta.filesystem import delete_file, has_file, list_file_sizes, open_filesystem, write_text
from tidemark.delta.pipeline_tables import PipelineTables, list_candidate_folders
from tidemark.errors import SliceOrderError, UserError
from tidemark.ledger.config_fingerprint import describe_setting_diff, parse_settings, remove_later_restarts
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.tables.table_changes import open_tables
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class CandidateVersion:
    """A candidate version of a pipeline."""

    name: str
    slices: int
    start: str
    end: str
    """End of the last slice, exclusive."""
    differing_settings: str
    """Settings that differ from the live version, in words; empty if none."""
    files: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-ready dictionary."""
        return asdict(self)


def list_candidates(pipeline: Pipeline, lake: str) -> list[CandidateVersion]:
    """Return the candidate versions with committed slices, by name."""
    live = Ledger.from_pipeline(pipeline, lake)
    names = [name for name in list_candidate_folders(live.tables) if not is_being_dropped(live.tables, name)]
    versions = {name: to_candidate_with_stored_slices(pipeline, lake, name) for name in names}
    candidates = (_summarize(Ledger.from_pipeline(version, lake), name, live) for name, version in versions.items())
    return [candidate for candidate in candidates if candidate is not None]


def is_being_dropped(live: PipelineTables, name: str) -> bool:
    """Return True if a candidate version is deleted only in part."""
    return has_file(f"{live.root}/{CANDIDATES_FOLDER}/{name}", DROP_MARKER)


def read_candidate_ledger(pipeline: Pipeline, lake: str, name: str) -> Ledger:
    """Read the ledger of a candidate version.

    Raises:
        UserError: There is no such candidate.
    """
    ledger = Ledger.from_pipeline(to_candidate(pipeline, name), lake)
    if ledger.last is None:
        raise _unknown_candidate_error(pipeline, lake, name)
    return ledger


def to_candidate_with_stored_slices(pipeline: Pipeline, lake: str, name: str) -> Pipeline:
    """Return a candidate version with the `slices` that it ran with, because the pipeline file can have others."""
    candidate = to_candidate(pipeline, name)
    grid = Grid.from_config(candidate.slices)
    last = Ledger.read_without_sync(PipelineTables.from_config(candidate, lake), grid).last
    if last is None:
        return candidate
    slices = Slices.model_validate(parse_settings(last.settings)["slices"])
    return candidate.model_copy(update={"slices": slices})


def with_live_settings(pipeline: Pipeline, lake: str) -> Pipeline:
    """Return the pipeline with the settings of the last live slice.

    Raises:
        SliceOrderError: No slice is live.
        PipelineFileError: The stored settings are not valid for this version of Tidemark.
    """
    last = Ledger.from_pipeline(pipeline, lake).last
    if last is None:
        command = f"tidemark run {format_cli_arguments(pipeline)}"
        raise SliceOrderError(f"{pipeline.name} has no live slice. Run {command} first.")
    return with_stored_config(pipeline, parse_settings(last.settings))


def drop_candidate(pipeline: Pipeline, lake: str, name: str) -> int:
    """Delete a candidate version and its files. Promoted slices stay: they have copies of the files.

    Returns:
        The bytes of the deleted files.

    Raises:
        UserError: There is no such candidate.
    """
    to_candidate(pipeline, name)  # rejects names that lead to another folder
    root = f"{PipelineTables.from_config(pipeline, lake).root}/{CANDIDATES_FOLDER}/{name}"
    files = list_file_sizes(open_filesystem(root))
    if not any(files.values()):
        raise _unknown_candidate_error(pipeline, lake, name)
    # The marker hides a half-deleted candidate. After a kill, the same command continues.
    write_text(f"{root}/{DROP_MARKER}", f"by tidemark version drop {format_cli_arguments(pipeline)} {name}\n")
    for path in [*(path for path in files if path != DROP_MARKER), DROP_MARKER]:
        delete_file(root, path)
    return sum(files.values())


def _unknown_candidate_error(pipeline: Pipeline, lake: str, name: str) -> UserError:
    names = ", ".join(candidate.name for candidate in list_candidates(pipeline, lake)) or "none"
    command = f"tidemark run {format_cli_arguments(to_candidate(pipeline, name))}"
    return UserError(f"{pipeline.name} has no candidate {name} (there are: {names}). Create one with {command}.")


def _describe_setting_diff(live: Entry, candidate: Entry, grid: Grid) -> str:
    """Describe the settings in which a candidate differs from the live version, up to their common last slice."""
    both = min(live.number, candidate.number)
    was, now = (remove_later_restarts(entry.settings, grid, both) for entry in (live, candidate))
    return describe_setting_diff(was, now)


def _summarize(ledger: Ledger, name: str, live: Ledger) -> CandidateVersion | None:
    if ledger.last is None:
        return None
    logs = open_tables(ledger.tables).values()
    return CandidateVersion(
        name,
        len(ledger.entries),
        ledger.grid.label(next(iter(ledger.entries))),
        ledger.grid.label(ledger.last.number + 1),
        _describe_setting_diff(live.last, ledger.last, ledger.grid) if live.last else "",
        sum(len(log.files) for log in logs),
        sum(int(log.files["size"].sum()) for log in logs),
    )
