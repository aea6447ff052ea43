"""What a pipeline has been told to forget, as its ledger has it: predicates over the rows of its inputs.

Rows that meet one are in none of its tables, and no run reads them: docs/decisions/0047-forgetting.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.dataset as ds

from tidemark.config import Pipeline
from tidemark.config.candidate_version import served
from tidemark.config.sides import SIDES, SideName
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaLog

LeftOut = Mapping[SideName, Sequence[str]]
"""Predicates by side: SQL over the input's own columns."""


@dataclass(frozen=True)
class Forgotten:
    """Rows that were forgotten at a time, as the ledger has it of one slice."""

    where: dict[SideName, str]
    """The predicate by side."""
    by: str
    at: str
    all: dict[str, int]
    """How many rows went of each table."""
    rows: dict[str, int]
    """How many of those were the slice's; of `checkpoint`: were in the buffers at its end."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return {name: value for name, value in asdict(self).items() if name != "rows"}


def forgotten_of(text: str | None) -> list[Forgotten]:
    """What was taken out of a slice since it ran, the oldest first (`Entry.forgotten`)."""
    return [Forgotten(**one) for one in json.loads(text or "[]")]


def forgets(tables: PipelineTables) -> list[Forgotten]:
    """All that was ever forgotten of these tables, the oldest first, each as one of its slices has it."""
    log = DeltaLog.open(tables.ledger)
    if log is None or "forgotten" not in log.schema.names:
        return []
    stored = log.read(["forgotten"], ds.field("forgotten").is_valid())["forgotten"].to_pylist()
    found = {(one.at, tuple(one.where.items())): one for text in set(stored) for one in forgotten_of(text)}
    return [found[key] for key in sorted(found)]


def last_forgotten(tables: PipelineTables) -> int:
    """The last commit of the ledger by which rows were forgotten; 0 for none."""
    log = DeltaLog.open(tables.ledger)
    if log is None or "dropped" not in log.schema.names:
        return 0
    return max(log.read(["commit", "dropped"], ds.field("dropped").is_valid())["commit"].to_pylist(), default=0)


def left_out_of(pipeline: Pipeline, lake: str) -> LeftOut:
    """What runs of a pipeline leave out; a shadow's runs, what is forgotten of the pipeline that is served too."""
    places = {PipelineTables.of(one, lake) for one in (served(pipeline), pipeline)}
    told = [one.where for tables in places for one in forgets(tables)]
    return {side: tuple(sorted({where[side] for where in told if side in where})) for side in SIDES}


def as_text(left_out: LeftOut) -> str | None:
    """Predicates as `Entry.left_out` has them; None for none."""
    told = {side: list(texts) for side, texts in left_out.items() if texts}
    return json.dumps(told, sort_keys=True) if told else None


def from_text(text: str | None) -> LeftOut:
    """The inverse of `as_text`."""
    return dict(json.loads(text or "{}"))
