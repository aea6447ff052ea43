"""Whether a checkpoint is what the inputs come to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import SavedState, entry_before
from tidemark.checkpoints.rebuild import Rebuilt, rebuild
from tidemark.checkpoints.summary import time_of
from tidemark.config.sides import SIDES
from tidemark.errors import SliceOrderError
from tidemark.ledger.ledger import Entry
from tidemark.ledger.state_fingerprint import carried_hash


@dataclass(frozen=True)
class Verified:
    """A checkpoint beside what the inputs come to."""

    pipeline: str
    at: str
    since: str
    """Start of the first slice that was replayed."""
    slices: int
    jobs: int
    """How many jobs they were replayed in."""
    digest: str | None
    """The digest as the ledger has it; None in ledgers of format 1."""
    rebuilt_digest: str
    kept: bool
    """Whether there was a checkpoint whose rows could be compared."""
    first_different: str | None
    """Start of the first replayed slice whose state has another digest than the ledger says."""
    only_stored: int
    """Rows of the checkpoint that the inputs do not come to."""
    only_rebuilt: int
    """Rows that it lacks."""
    rows: list[dict[str, Any]]
    """Some of either."""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.first_different or self.only_stored or self.only_rebuilt)

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return {"same": self.same, **asdict(self)}


def verify(state: SavedState, since: datetime | None = None, rows: int = 10) -> Verified:
    """Rebuild a state from the inputs and compare; tells so many rows that differ.

    The replay begins with the first slice of the state's chain, or at `since`, the end of a slice whose checkpoint is
    trusted.

    Raises:
        SliceOrderError: a slice no longer holds, or ran under other settings, or `since` is no such instant.
        InputError: a version of an input that a slice has read is gone.
    """
    trusted = _trusted(state, since) if since else None
    found = rebuild(state, trusted)
    numbers, entries = sorted(found.digests), state.ledger.entries
    other = [n for n in numbers if entries[n].digest not in {None, found.digests[n]}]
    kept = state.is_kept(state.entry)
    stored, rebuilt, examples = _differences(state, found, rows) if kept else (0, 0, [])
    return Verified(
        state.pipeline.name,
        state.label,
        state.grid.name(numbers[0]),
        len(numbers),
        found.jobs,
        state.entry.digest,
        found.digests[state.entry.number],
        kept,
        state.grid.name(other[0]) if other else None,
        stored,
        rebuilt,
        examples,
    )


def _trusted(state: SavedState, since: datetime) -> Entry:
    entry = entry_before(state.ledger, since, "--from")
    label = state.grid.name(entry.number + 1)
    if entry.number >= state.entry.number:
        raise SliceOrderError(f"--from {label} is not before {state.label}, the state to verify")
    if any(number not in state.ledger.entries for number in range(entry.number, state.entry.number)):
        raise SliceOrderError(f"--from {label}: a slice between there and {state.label} was never committed")
    if not state.is_kept(entry):
        raise SliceOrderError(f"--from {label}: its checkpoint has expired; leave --from out, or name another")
    return entry


def _differences(state: SavedState, found: Rebuilt, count: int) -> tuple[int, int, list[dict[str, Any]]]:
    """How many rows the checkpoint has too many, how many it lacks, and some of both."""
    both = found.rows.withColumn("surplus", F.lit(-1)).unionByName(
        state.rows(state.entry).withColumn("surplus", F.lit(1)), allowMissingColumns=True
    )
    met = {name: _met_by(both, name, state.entry.number) for name in found.join.dated if name in both.columns}
    hashed = F.xxhash64(carried_hash(both.drop("surplus"), found.join), *met.values())
    shown = ("side", "event_time", F.coalesce(*(F.to_json(side) for side in SIDES)).alias("row"))
    counted = both.select(hashed.alias("hash"), "surplus", F.struct(*shown).alias("shown")).groupBy("hash")
    other = counted.agg(F.sum("surplus").alias("surplus"), F.first("shown").alias("shown")).where("surplus <> 0")
    other = other.persist()
    stored, rebuilt = (F.coalesce(F.sum(F.greatest(F.col("surplus") * sign, F.lit(0))), F.lit(0)) for sign in (1, -1))
    sums = other.agg(stored, rebuilt).first()
    assert sums is not None, "an aggregate has one row"
    rows = other.select("surplus", "shown.*").orderBy("side", "event_time").limit(count).collect()
    other.unpersist()
    differing = [
        {
            "only": "stored" if row["surplus"] > 0 else "rebuilt",
            "side": row["side"],
            "event_time": time_of(state, row["event_time"]),
            "row": json.loads(row["row"]),
        }
        for row in rows
    ]
    return int(sums[0]), int(sums[1]), differing


def _met_by(rows: DataFrame, name: str, number: int) -> Column:
    """What a row had met by a slice (`Join.dated`), so that it can be compared."""
    if dict(rows.dtypes)[name].startswith("map<"):
        return F.to_json(F.array_sort(F.map_entries(F.map_filter(name, lambda _, at: at <= number))))
    return F.when(F.col(name) <= number, F.col(name))
