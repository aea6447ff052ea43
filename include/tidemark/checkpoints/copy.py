"""A state as a table of its own, to be read and queried.

The pipeline goes on from its last slice all the same: to run from an earlier one again is `tidemark reprocess`, which
takes the checkpoint before its first slice by itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import SavedState
from tidemark.checkpoints.rebuild import rebuild
from tidemark.delta.paths import place
from tidemark.delta.table import DeltaLog
from tidemark.errors import CheckFailedError, UserError
from tidemark.ledger.staleness import restorable

_LABELS = ("slice", "clock", "event_time")


@dataclass(frozen=True)
class Restored:
    """A copy of a state."""

    pipeline: str
    at: str
    table: str
    left: int
    right: int
    """Rows of it."""
    rebuilt: bool
    """Whether the checkpoint had expired, so that the rows were made from the inputs once more."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def restore(state: SavedState, to: str) -> Restored:
    """Write the rows in the buffers as a Delta table: `side`, `event_time`, `arrived_at`, keys, `left` and `right`.

    From the checkpoint, or from the inputs where that has expired. `to` is a path, relative to the lake root.

    Raises:
        UserError: there is a table already.
        CheckFailedError: what was rebuilt has another digest than the ledger says.
        SliceOrderError, InputError: it cannot be rebuilt.
    """
    path = place(state.lake, to)
    refuse_table(path)
    rows, rebuilt = buffered_rows(state)
    grid, tick = state.grid, state.pipeline.tick
    table = rows.select(
        "side",
        F.timestamp_micros(F.col("event_time") * tick).alias("event_time"),
        F.timestamp_micros("clock").alias("arrived_at"),
        grid.timestamp_column(F.col("slice")).alias("slice"),
        *(name for name in rows.columns if name not in {"side", *_LABELS}),
    )
    table.write.format("delta").mode("error").save(path)
    return Restored(state.pipeline.name, state.label, path, *state.entry.carried, rebuilt)


def buffered_rows(state: SavedState) -> tuple[DataFrame, bool]:
    """The rows in the buffers, and whether they had to be rebuilt.

    Raises:
        CheckFailedError, SliceOrderError, InputError: they had to, and cannot be.
    """
    entry, ledger = state.entry, state.ledger
    if state.is_kept(entry):
        return state.rows(entry), False
    found = rebuild(state, ledger.entry(restorable(ledger, entry.number + 1, state.kept) - 1))
    if entry.digest not in {None, found.digests[entry.number]}:
        raise CheckFailedError(
            f"the checkpoint at {state.label} has expired, and the inputs come to another state than it held; see "
            f"tidemark state verify {state.pipeline.name} --at {state.label}"
        )
    return found.rows, True


def refuse_table(path: str) -> None:
    """See that there is no table yet.

    Raises:
        UserError: there is one.
    """
    if DeltaLog.open(path):
        raise UserError(f"--to {path}: there is a table already; remove it, or name another place")
