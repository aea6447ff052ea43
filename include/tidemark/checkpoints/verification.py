"""Verify a checkpoint against a replay of the inputs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import CheckpointRef, find_entry_ending_at
from tidemark.checkpoints.rebuild import RebuiltState, rebuild_state
from tidemark.checkpoints.summary import format_event_time
from tidemark.config.sides import SIDES
from tidemark.errors import SliceOrderError
from tidemark.ledger.entry import Entry
from tidemark.ledger.state_fingerprint import carried_hash
from tidemark.timegrid.time_columns import as_example_json, parse_example_json


@dataclass(frozen=True)
class CheckpointVerification:
    """Comparison of a checkpoint with the state rebuilt from the inputs."""

    pipeline: str
    end: str
    replayed_from: str
    """Start of the first slice that was replayed."""
    slices: int
    jobs: int
    """Number of jobs of the replay."""
    fingerprint: str | None
    """Fingerprint in the ledger."""
    rebuilt_fingerprint: str
    has_checkpoint: bool
    """True if the checkpoint has not expired, so rows were compared."""
    differing_slices: list[str]
    """Starts of the replayed slices whose fingerprint differs from the ledger, in order."""
    rows_only_stored: int
    """Number of rows that only the checkpoint has."""
    rows_only_rebuilt: int
    """Number of rows that only the rebuilt state has."""
    differing_rows: list[dict[str, Any]]
    """Some of these rows."""

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        return not self.differing_slices and self.is_checkpoint_equal

    @property
    def is_checkpoint_equal(self) -> bool:
        """True if the checkpoint itself does not differ. States after earlier slices may."""
        is_same_state = self.fingerprint in {None, self.rebuilt_fingerprint}
        return is_same_state and not (self.rows_only_stored or self.rows_only_rebuilt)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as a JSON-ready dictionary."""
        return {"is_equal": self.is_equal, "is_checkpoint_equal": self.is_checkpoint_equal, **asdict(self)}


def verify_checkpoint(
    checkpoint: CheckpointRef, trusted_end: datetime | None = None, max_rows: int = 10
) -> CheckpointVerification:
    """Rebuild a state from the inputs and compare it with the checkpoint.

    Args:
        trusted_end: End of a slice whose checkpoint the replay starts from. Default: start of the chain.
        max_rows: Maximum number of differing rows to return.

    Raises:
        SliceOrderError: A slice is stale or ran under other settings, or `trusted_end` is not the end of a slice.
        InputError: A version of an input that a slice has read is gone.
    """
    trusted = _find_trusted_entry(checkpoint, trusted_end) if trusted_end else None
    rebuilt = rebuild_state(checkpoint, trusted)
    numbers, entries = sorted(rebuilt.fingerprints), checkpoint.ledger.entries
    mismatches = [n for n in numbers if entries[n].fingerprint not in {None, rebuilt.fingerprints[n]}]
    has_checkpoint = checkpoint.has_checkpoint(checkpoint.entry)
    only_stored, only_rebuilt, differing_rows = (
        _compare_rows(checkpoint, rebuilt, max_rows) if has_checkpoint else (0, 0, [])
    )
    return CheckpointVerification(
        checkpoint.pipeline.name,
        checkpoint.end_label,
        checkpoint.grid.label(numbers[0]),
        len(numbers),
        rebuilt.jobs,
        checkpoint.entry.fingerprint,
        rebuilt.fingerprints[checkpoint.entry.number],
        has_checkpoint,
        [checkpoint.grid.label(number) for number in mismatches],
        only_stored,
        only_rebuilt,
        differing_rows,
    )


def _find_trusted_entry(checkpoint: CheckpointRef, trusted_end: datetime) -> Entry:
    entry = find_entry_ending_at(checkpoint.pipeline, checkpoint.ledger, trusted_end, "--from")
    label = checkpoint.grid.label(entry.number + 1)
    if entry.number >= checkpoint.entry.number:
        raise SliceOrderError(
            f"--from {label} is not before {checkpoint.end_label}, the state to verify. Name an earlier slice."
        )
    if any(number not in checkpoint.ledger.entries for number in range(entry.number, checkpoint.entry.number)):
        raise SliceOrderError(
            f"--from {label}: a slice between it and {checkpoint.end_label} was never committed. Name a later slice."
        )
    if not checkpoint.has_checkpoint(entry):
        raise SliceOrderError(f"--from {label}: its checkpoint has expired. Omit --from, or name another slice.")
    return entry


def _compare_rows(
    checkpoint: CheckpointRef, rebuilt: RebuiltState, count: int
) -> tuple[int, int, list[dict[str, Any]]]:
    """Count the rows that only the checkpoint or only the rebuilt state has, and return some of both."""
    both = rebuilt.rows.withColumn("surplus", F.lit(-1)).unionByName(
        checkpoint.read_rows(checkpoint.entry).withColumn("surplus", F.lit(1)), allowMissingColumns=True
    )
    state_columns = [name for name in rebuilt.join.slice_valued_columns if name in both.columns]
    matches = [_matches_until(both, name, checkpoint.entry.number) for name in state_columns]
    hashed = F.xxhash64(carried_hash(both.drop("surplus"), rebuilt.join), *matches)
    shown_columns = ("side", "event_time", F.coalesce(*(as_example_json(F.col(side)) for side in SIDES)).alias("row"))
    counted = both.select(hashed.alias("hash"), "surplus", F.struct(*shown_columns).alias("shown")).groupBy("hash")
    unequal = counted.agg(F.sum("surplus").alias("surplus"), F.first("shown").alias("shown")).where("surplus <> 0")
    unequal = unequal.persist()
    only_stored, only_rebuilt = (
        F.coalesce(F.sum(F.greatest(F.col("surplus") * sign, F.lit(0))), F.lit(0)) for sign in (1, -1)
    )
    sums = unequal.agg(only_stored, only_rebuilt).first()
    assert sums is not None, "an aggregate has one row"
    rows = unequal.select("surplus", "shown.*").orderBy("side", "event_time").limit(count).collect()
    unequal.unpersist()
    differing = [
        {
            "only": "stored" if row["surplus"] > 0 else "rebuilt",
            "side": row["side"],
            "event_time": format_event_time(checkpoint, row["event_time"]),
            "row": parse_example_json(row["row"], both.schema[row["side"]].dataType),
        }
        for row in rows
    ]
    return int(sums[0]), int(sums[1]), differing


def _matches_until(rows: DataFrame, name: str, number: int) -> Column:
    """Return the slices of a row's matches up to a slice (`Join.slice_valued_columns`), in comparable form."""
    if dict(rows.dtypes)[name].startswith("map<"):
        earlier = F.map_filter(name, lambda _, at: at <= number)
        return F.when(F.size(earlier) > 0, F.to_json(F.array_sort(F.map_entries(earlier))))
    return F.when(F.col(name) <= number, F.col(name))
