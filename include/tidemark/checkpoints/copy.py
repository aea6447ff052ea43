"""Copy a checkpoint's buffers to a Delta table for queries.

The copy does not change the pipeline: `tidemark reprocess` by itself starts from the checkpoint before its first slice.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.checkpoints.rebuild import rebuild_state
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.delta.paths import resolve_path
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import CheckFailedError, UserError
from tidemark.formatting import ToDict
from tidemark.ledger.staleness import find_restorable_start
from tidemark.spark.temporary_settings import list_column_mapping_settings, override_settings

_REPLACED_COLUMNS = ("slice", "clock", "event_time")


@dataclass(frozen=True)
class CheckpointCopy(ToDict):
    """A table with the rows of a state."""

    pipeline: str
    end: str
    table: str
    left_rows: int
    right_rows: int
    is_rebuilt: bool
    """True if the checkpoint had expired and its rows were recomputed from the inputs."""


def copy_checkpoint(checkpoint: CheckpointRef, target: str) -> CheckpointCopy:
    """Write the rows in the buffers as a Delta table.

    Its columns are `side`, `event_time`, `arrived_at`, `slice`, then those of the checkpoint: `tiebreak`, `watermark`,
    keys, `left`, `right` and columns of the join. An expired checkpoint is rebuilt from the inputs.

    Args:
        target: Path of the table, relative to the lake root.

    Raises:
        UserError: The table exists already.
        CheckFailedError: The rebuilt state has another fingerprint than the ledger.
        SliceOrderError: A slice is stale or ran under other settings.
        InputError: Versions of the inputs are gone.
    """
    path = resolve_path(checkpoint.lake, target)
    require_no_table(path)
    rows, is_rebuilt = read_buffered_rows(checkpoint)
    grid, tick = checkpoint.grid, checkpoint.pipeline.tick_micros
    table = rows.select(
        "side",
        F.timestamp_micros(F.col("event_time") * tick).alias("event_time"),
        F.timestamp_micros("clock").alias("arrived_at"),
        grid.timestamp_column(F.col("slice")).alias("slice"),
        *(name for name in rows.columns if name not in {"side", *_REPLACED_COLUMNS}),
    )
    with override_settings(checkpoint.spark, list_column_mapping_settings(table.schema)):
        table.write.format("delta").mode("error").save(path)
    return CheckpointCopy(checkpoint.pipeline.name, checkpoint.end_label, path, *checkpoint.entry.carried, is_rebuilt)


def read_buffered_rows(checkpoint: CheckpointRef) -> tuple[DataFrame, bool]:
    """Read the rows in the buffers, rebuilt if the checkpoint has expired.

    Returns:
        The rows, and true if they were rebuilt.

    Raises:
        CheckFailedError: The rebuilt state has another fingerprint than the ledger.
        SliceOrderError: A slice is stale or ran under other settings.
        InputError: Versions of the inputs are gone.
    """
    entry, ledger = checkpoint.entry, checkpoint.ledger
    if checkpoint.has_checkpoint(entry):
        return checkpoint.read_rows(entry), False
    first = find_restorable_start(ledger, entry.number + 1, checkpoint.runs_with_checkpoint)
    rebuilt = rebuild_state(checkpoint, ledger.entry(first - 1))
    if entry.fingerprint not in {None, rebuilt.fingerprints[entry.number]}:
        raise CheckFailedError(
            f"the checkpoint at {checkpoint.end_label} has expired, and the state rebuilt from the inputs differs from "
            f"it. Run tidemark checkpoint verify {format_cli_arguments(checkpoint.pipeline)} --at "
            f"{checkpoint.end_label}"
        )
    return rebuilt.rows, True


def require_no_table(path: str) -> None:
    """Require that no table exists.

    Raises:
        UserError: There is a table.
    """
    if DeltaTableHandle.open(path):
        raise UserError(f"--to {path}: the table exists already. Remove it, or name another path.")
