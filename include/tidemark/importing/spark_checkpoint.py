"""Read from a streaming query's checkpoint what a plan lacks: the time of the first batch, and settings."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tidemark.config.types import from_micros
from tidemark.errors import UserError

_REMOTE = "://"


@dataclass(frozen=True)
class CheckpointStart:
    """First micro-batch of a query."""

    time: datetime
    """Timestamp of the batch."""
    settings: dict[str, str]
    """Spark settings that the query keeps for all of its batches."""


def read_checkpoint_start(path: str, lake: str) -> CheckpointStart | None:
    """Read the first entry of a checkpoint's offset log; None for a checkpoint in an object store.

    Args:
        path: Path of the checkpoint, absolute or relative to the lake root, or its URI.
        lake: The lake root.

    Raises:
        UserError: There is no such entry.
    """
    path = re.sub(r"^file:/+", "/", path)
    if _REMOTE in path or (_REMOTE in lake and not Path(path).is_absolute()):
        return None
    file = Path(lake, path, "offsets", "0")
    try:
        header = json.loads(file.read_text(encoding="utf-8").splitlines()[1])
        return CheckpointStart(from_micros(header["batchTimestampMs"] * 1000), dict(header.get("conf", {})))
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(
            f"{file} has no first batch. Give the checkpoint of a query that keeps all of its batches "
            "(spark.sql.streaming.minBatchesToRetain), or pass --start without --arrival."
        ) from None
