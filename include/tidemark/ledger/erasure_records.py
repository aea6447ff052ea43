"""Read the erasures that a ledger records: predicates of input rows that no run reads.

No table of the pipeline has rows that match one: docs/decisions/0010-erasure.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.dataset as ds

from tidemark.config import Pipeline
from tidemark.config.candidate_version import CANDIDATES_FOLDER, DROP_MARKER, to_live
from tidemark.config.sides import SIDES, SideName
from tidemark.delta.filesystem import has_file
from tidemark.delta.pipeline_tables import PipelineTables, list_candidate_folders
from tidemark.delta.table import DeltaTableHandle

ExcludedPredicates = Mapping[SideName, Sequence[str]]
"""Predicates of erased rows by side, SQL over the input's own columns."""


@dataclass(frozen=True)
class ErasureRecord:
    """One erasure, as recorded with one slice in the ledger."""

    predicates: dict[SideName, str]
    """Predicate by side, SQL over the input's own columns."""
    user: str
    at: str
    """Instant of the erasure, UTC."""
    row_counts: dict[str, int]
    """Number of erased rows, by table."""
    slice_row_counts: dict[str, int]
    """Number of the slice's erased rows, by table; of `checkpoint`: rows in the buffers at its end."""

    def to_dict(self) -> dict[str, Any]:
        """Return the erasure without the slice's counts, as a JSON-ready dictionary."""
        return {name: value for name, value in asdict(self).items() if name != "slice_row_counts"}


def parse_erasure_records(text: str | None) -> list[ErasureRecord]:
    """Parse the erasures since a slice ran (`Entry.erasures`), the oldest first."""
    return [ErasureRecord(**record) for record in json.loads(text or "[]")]


def list_erasures(tables: PipelineTables) -> list[ErasureRecord]:
    """List all erasures of these tables, the oldest first, each as recorded with one of its slices."""
    log = DeltaTableHandle.open(tables.ledger)
    if log is None or "erasures" not in log.schema.names:
        return []
    stored = log.read(["erasures"], ds.field("erasures").is_valid())["erasures"].to_pylist()
    records = {
        (record.at, tuple(record.predicates.items())): record
        for text in set(stored)
        for record in parse_erasure_records(text)
    }
    return [records[key] for key in sorted(records)]


def find_last_erasure_commit(tables: PipelineTables) -> int:
    """Find the last commit of the ledger that erased rows; 0 without any."""
    log = DeltaTableHandle.open(tables.ledger)
    if log is None or "removed_files" not in log.schema.names:
        return 0
    erasing = log.read(["commit", "removed_files"], ds.field("removed_files").is_valid())
    return max(erasing["commit"].to_pylist(), default=0)


def find_excluded_predicates(pipeline: Pipeline, lake: str) -> ExcludedPredicates:
    """Return the predicates that a pipeline's runs exclude: those of erasures from any version of the pipeline."""
    live = PipelineTables.from_config(to_live(pipeline), lake)
    folders = (f"{live.root}/{CANDIDATES_FOLDER}/{name}" for name in list_candidate_folders(live))
    candidates = (PipelineTables(folder) for folder in folders if not has_file(folder, DROP_MARKER))
    locations = {live, PipelineTables.from_config(pipeline, lake), *candidates}
    predicates = [record.predicates for tables in locations for record in list_erasures(tables)]
    return {side: tuple(sorted({where[side] for where in predicates if side in where})) for side in SIDES}


def predicates_to_json(excluded: ExcludedPredicates) -> str | None:
    """Serialize predicates as in `Entry.excluded_predicates`; None without any."""
    predicates = {side: list(side_predicates) for side, side_predicates in excluded.items() if side_predicates}
    return json.dumps(predicates, sort_keys=True) if predicates else None


def predicates_from_json(text: str | None) -> ExcludedPredicates:
    """Parse predicates; the inverse of `predicates_to_json`."""
    return dict(json.loads(text or "{}"))
