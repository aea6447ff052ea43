"""Define the columns of a pipeline's ledger table, and read its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import UserError
from tidemark.tables.table_changes import TableChanges, files_from_rows
from tidemark.timegrid.slices import Grid

FORMAT = 1
"""Version of the layout of a pipeline's tables. Other versions are refused."""
COMPACT_EVERY = 100
"""Number of commits after which the ledger's small files are compacted, because each plan reads them all."""

WATERMARK_COLUMNS = {
    "left": "left_watermark",
    "right": "right_watermark",
    "batch": "batch_watermark",
    "sources_combined": "sources_watermark",
    "left_last_cleanup": "left_last_cleanup",
    "right_last_cleanup": "right_last_cleanup",
}
"""Ledger column (without `_ms`) by field of `Watermarks`; the value is in ms, null if unknown."""

_TIME, _TEXT, _LONG = pa.timestamp("us", "UTC"), pa.string(), pa.int64()


def _struct(names: str, dtype: pa.DataType = _LONG) -> pa.StructType:
    return pa.struct([(name, dtype) for name in names.split()])


_COUNTS = _struct("read carried_in late rejected evicted carried_out")
_FILE = {"table": _TEXT, "path": _TEXT, "size": _LONG, "rows": _LONG, "modification_time": _LONG}
SCHEMA = pa.schema(
    {
        "slice": _TIME,
        "slice_end": _TIME,
        "run": _TEXT,
        "attempt": pa.int32(),
        "committed_at": _TIME,
        "format": pa.int32(),
        "settings": _TEXT,
        "selected_columns": _TEXT,
        "pipeline": _TEXT,
        "left_version": _LONG,
        "right_version": _LONG,
        "left_table_id": _TEXT,
        "right_table_id": _TEXT,
        **{f"{name}_ms": _LONG for name in WATERMARK_COLUMNS.values()},
        "sources": pa.list_(pa.struct({"side": _TEXT, "partition": _TEXT, "watermark": _LONG, "last_clock": _LONG})),
        "drained": pa.bool_(),
        "emissions": _LONG,
        "pairs": _LONG,
        "floored_event_times": _LONG,
        "left": _COUNTS,
        "right": _COUNTS,
        "left_filtered": _LONG,
        "right_filtered": _LONG,
        "left_rows_ahead": _LONG,
        "right_rows_ahead": _LONG,
        "quality": _TEXT,
        "quality_results": _TEXT,
        "job_slices": _LONG,
        "job_seconds": pa.float64(),
        "commit": _LONG,
        "fingerprint": _TEXT,
        "carried_in_fingerprint": _TEXT,
        "late_arrival_policy": _TEXT,
        "late_arriving_rows": _LONG,
        "late_arriving_from": _TIME,
        "slices_to_reprocess": pa.list_(_TIME),
        "incomplete_inputs": _TEXT,
        "quarantined": _LONG,
        "applied_waivers": _TEXT,
        "releases": _TEXT,
        "original_commit": _LONG,
        "promotion": _TEXT,
        "excluded_predicates": _TEXT,
        "erasures": _TEXT,
        "adopted_from": _TEXT,
        "removed_files": pa.list_(pa.struct({"table": _TEXT, "path": _TEXT})),
        "table_versions_before": _struct("emissions late checkpoint"),
        "added_files": pa.list_(pa.struct({**_FILE, "stats": _TEXT})),
    }
)
"""The ledger's columns. The first row of a commit also has the tables' versions before it (`table_versions_before`),
the files that it adds (`added_files`), and the files that it removes by path (`removed_files`)."""

PROMOTED, ROLLED_BACK = "promoted", "rolled_back"
"""Keys of the JSON in column `promotion`: the name of the candidate that the commit promoted, or rolled back."""


def read_newest_row(tables: PipelineTables, slice_: datetime) -> dict[str, Any]:
    """Read the newest stored row of a committed slice, without its files."""
    return read_newest_rows(tables, ds.field("slice") == pa.scalar(slice_, _TIME))[slice_]


def read_newest_rows(tables: PipelineTables, where: ds.Expression | None = None) -> dict[datetime, dict[str, Any]]:
    """Read the newest stored row of each slice, without its files.

    Args:
        tables: The pipeline's tables.
        where: Filter, applied before the newest row is chosen.

    Returns:
        Rows by slice start, in order.
    """
    log = DeltaTableHandle.open(tables.ledger)
    assert log is not None, "something is committed"
    columns = [name for name in SCHEMA.names if name not in {"added_files", "table_versions_before", "removed_files"}]
    rows = sorted(
        log.read(columns, where).to_pylist(), key=lambda row: (row["slice"], row["attempt"], row["commit"] or 0)
    )
    return {row["slice"]: row for row in rows}


def read_attempts(log: DeltaTableHandle, grid: Grid) -> pd.DataFrame:
    """Read all attempts of a ledger's table by slice and attempt, without `added_files` and `removed_files`.

    Returns:
        The stored columns, `number`, the slice's number, and `published_at`, the time of the attempt's first commit.
        Slices in `late_arriving_from` and `slices_to_reprocess` are numbers too.
    """
    columns = [column for column in SCHEMA if column.name not in {"added_files", "removed_files"}]
    stored = log.read([column.name for column in columns])
    for column in columns:
        if column.name not in stored.column_names:
            stored = stored.append_column(column, pa.nulls(len(stored), column.type))
    earliest, unread = stored["late_arriving_from"].to_pylist(), stored["slices_to_reprocess"].to_pylist()
    plain = stored.drop_columns(["slices_to_reprocess", "late_arriving_from"]).to_pandas(integer_object_nulls=True)
    numbered = plain.assign(
        number=grid.numbers_at(_to_micros(stored["slice"])),
        late_arriving_from=pd.Series(
            [start and grid.number_at(to_micros(start)) for start in earliest], dtype="object"
        ),
        slices_to_reprocess=pd.Series(
            [starts and [grid.number_at(to_micros(start)) for start in starts] for starts in unread], dtype="object"
        ),
    )
    attempt = ["number", "attempt"]
    ordered: pd.DataFrame = numbered.sort_values([*attempt, "commit"], kind="stable").reset_index(drop=True)
    # A release or an erasure commits the row of an attempt again.
    return ordered.assign(published_at=ordered.groupby(attempt)["committed_at"].transform("first"))


def iterate_rows(attempts: pd.DataFrame, columns: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield some columns of rows of `read_attempts` as dictionaries, in a third of the time of `DataFrame.to_dict`."""
    names = list(columns)
    for values in zip(*(attempts[name].tolist() for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


def require_supported_format(tables: PipelineTables, stored: pd.DataFrame) -> None:
    """Check that a ledger's rows (`read_attempts`) have the current format.

    Raises:
        UserError: They have another one.
    """
    unsupported = set(stored["format"]) - {FORMAT}
    if unsupported:
        raise UserError(
            f"{tables.ledger} has format {max(unsupported)} and this version reads format {FORMAT}. Use the version of "
            "Tidemark that wrote it."
        )


def read_table_changes(log: DeltaTableHandle, grid: Grid, after: int) -> dict[int, TableChanges]:
    """Read the table changes of each commit after number `after` (exclusive), in order."""
    columns = ["slice", "attempt", "commit", "added_files", "original_commit", "promotion", "removed_files"]
    rows = log.read(columns, ds.field("commit") > after).to_pylist()
    changes: dict[int, TableChanges] = {}
    for number in sorted({row["commit"] for row in rows}):
        commit_rows = [row for row in rows if row["commit"] == number]
        if (removed_files := _parse_removed_files(commit_rows)) is not None:
            changes[number] = TableChanges({}, removed_files=removed_files)
            continue
        added = files_from_rows(file for row in commit_rows for file in row["added_files"] or ())
        released_rows = (
            row for row in commit_rows if row.get("original_commit") is not None and row.get("promotion") is None
        )
        released = {grid.number_at(to_micros(row["slice"])) for row in released_rows}
        rerun = {grid.number_at(to_micros(row["slice"])) for row in commit_rows if row["attempt"] > 1} - released
        changes[number] = TableChanges(added, tuple(sorted(rerun)), tuple(released))
    return changes


def _parse_removed_files(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]] | None:
    """Return the files that a commit removes by path, by table; None if the commit removes none that way."""
    entries = next((row["removed_files"] for row in rows if row.get("removed_files") is not None), None)
    if entries is None:
        return None
    paths: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        paths[entry["table"]] = (*paths.get(entry["table"], ()), entry["path"])
    return paths


def _to_micros(times: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    micros: npt.NDArray[np.int64] = pc.cast(pc.cast(times, _TIME), _LONG).to_numpy()
    return micros
