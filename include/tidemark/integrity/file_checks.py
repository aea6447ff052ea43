"""Check data files against the statistics in a table's log, and count their rows per slice, without a JVM."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from math import isnan
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidemark.config.types import to_micros
from tidemark.delta.table import DataFile, DeltaTableHandle
from tidemark.ledger.ledger import Ledger
from tidemark.tables.run_files import SLICE_COLUMNS, list_slices_by_file, parse_run
from tidemark.timegrid.slices import Grid

FileDamage = Literal["missing file", "truncated file", "changed file", "unreadable file", "duplicate reference"]
RowCounts = dict[int, Counter[str]]
"""Number of rows per slice and run."""
NO_SLICE = -1
"""Number under which rows are counted that name no slice, because another program has inserted them."""


@dataclass(frozen=True)
class DamagedFile:
    """A file that differs from its entry in the log."""

    path: str
    """Path relative to the table."""
    damage: FileDamage
    detail: str


@dataclass(frozen=True)
class FileCheckResult:
    """Result of checking the files of a table."""

    damaged: tuple[DamagedFile, ...]
    checked: int
    bytes: int
    paths: frozenset[str] = field(repr=False)
    """Paths of undamaged files."""


def check_files(log: DeltaTableHandle, *, deep: bool, on_file: Callable[[], object] = lambda: None) -> FileCheckResult:
    """Check that each file of a table exists, and that its size, number of rows and value bounds are as logged.

    Args:
        log: The table.
        deep: Also read every page, and verify its checksum.
        on_file: Called before each file is checked.
    """
    sizes = {info.path: info.size for info in _list_files(log)}
    statistics = _read_statistics(log)
    damaged: list[DamagedFile] = []
    intact: set[str] = set()
    first_paths: dict[str, str] = {}
    for path, size, rows in zip(*(log.files[name] for name in ("path", "size", "rows")), strict=True):
        on_file()
        plain = posixpath.normpath(unquote(path))
        first = first_paths.setdefault(plain, path)
        if first != path:
            damaged.append(DamagedFile(path, "duplicate reference", f"it is {first} once more"))
            continue
        damage = _find_damage(log, plain, sizes.get(plain), int(size), rows, statistics.get(path, {}), deep=deep)
        if damage is None:
            intact.add(path)
        else:
            damaged.append(DamagedFile(path, *damage))
    return FileCheckResult(tuple(damaged), len(log.files), int(log.files["size"].sum()), frozenset(intact))


def count_rows_by_slice(log: DeltaTableHandle, name: str, ledger: Ledger, paths: Iterable[str]) -> RowCounts:
    """Count the rows of files per slice and run; for a checkpoint, the rows in the buffers after each slice.

    Rows without a slice are counted under `NO_SLICE`.
    """
    grid = ledger.grid
    chosen = sorted(paths)
    if not chosen:
        return {}
    first, last = SLICE_COLUMNS[name]
    keys = list(dict.fromkeys((first, last)))
    rows = log.read(keys, path_column="file", paths=chosen)
    grouped = rows.group_by([*keys, "file"]).aggregate([([], "count_all")]).to_pylist()
    counts: RowCounts = {}
    for row in grouped:
        for number in _list_slices(grid, row[first], row[last], is_exclusive=first != last):
            counts.setdefault(number, Counter())[ledger.resolve_run(parse_run(row["file"]), number)] += row["count_all"]
    return counts


def _list_slices(grid: Grid, first: datetime | None, last: datetime | None, *, is_exclusive: bool) -> range:
    if first is None or last is None:
        return range(NO_SLICE, NO_SLICE + 1)
    return range(grid.number_at(to_micros(first)), grid.number_at(to_micros(last)) + (not is_exclusive))


def find_copies(
    log: DeltaTableHandle, name: str, grid: Grid, paths: Iterable[str], committed: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield uncommitted copies of committed files, as (original, copy): the same run, size and value bounds.

    Two committed files may look the same too, such as small files with equal rows; they are not reported.
    """
    chosen, groups = set(paths), dict[Any, list[str]]()
    slices_by_path, statistics = list_slices_by_file(log, name, grid), _read_statistics(log)
    for path, size in zip(log.files["path"], log.files["size"], strict=True):
        if path in chosen and statistics.get(path):
            identity = (
                parse_run(path),
                int(size),
                slices_by_path[path],
                json.dumps(statistics[path], default=str, sort_keys=True),
            )
            groups.setdefault(identity, []).append(path)
    for group in groups.values():
        originals = [path for path in group if path in committed]
        yield from ((originals[0], path) for path in group if originals and path not in committed)


def is_undamaged(log: DeltaTableHandle, file: DataFile) -> bool:
    """Return True if a file, referenced or not, exists in the table's folder with its size and rows."""
    info = log.filesystem.get_file_info(file.path)
    return _find_damage(log, file.path, info.size, file.size, file.rows, {}, deep=True) is None


def _list_files(log: DeltaTableHandle) -> list[pafs.FileInfo]:
    everything = log.filesystem.get_file_info(pafs.FileSelector("", recursive=True))
    return [info for info in everything if info.is_file]


def _read_statistics(log: DeltaTableHandle) -> dict[str, dict[str, Any]]:
    """Read each file's statistics from the log: minimum, maximum and number of nulls per column."""
    actions = pa.table(log.table.get_add_actions(flatten=False))
    kinds = [kind for kind in ("min", "max", "null_count") if kind in actions.column_names]
    return {row["path"]: {kind: row[kind] for kind in kinds} for row in actions.select(["path", *kinds]).to_pylist()}


def _find_damage(
    log: DeltaTableHandle,
    path: str,
    actual_size: int | None,
    size: int,
    rows: float,
    statistics: dict[str, Any],
    *,
    deep: bool,
) -> tuple[FileDamage, str] | None:
    if actual_size is None:
        return "missing file", f"the file of {size:,} bytes is gone"
    if actual_size != size:
        return (
            "truncated file" if actual_size < size else "changed file",
            f"{actual_size:,} bytes where {size:,} were written",
        )
    try:
        with log.filesystem.open_input_file(path) as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=deep)
            changed = _describe_change(parquet.metadata, rows, statistics)
            if deep and not changed:
                for _ in parquet.iter_batches():
                    pass
    except (OSError, pa.ArrowException) as error:
        if "CRC" not in str(error):
            return "unreadable file", str(error)
        changed = "a page is not what its checksum says"
    return ("changed file", changed) if changed else None


def _describe_change(footer: pq.FileMetaData, rows: float, statistics: dict[str, Any]) -> str | None:
    """Describe how a file's footer differs from the log in rows or integer bounds; None if it does not."""
    if not isnan(rows) and footer.num_rows != rows:
        return f"{footer.num_rows:,} rows where {int(rows):,} were written"
    for place in range(footer.num_columns):
        name = footer.schema.column(place).path
        groups = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        bounded = [column_chunk for column_chunk in groups if column_chunk is not None and column_chunk.has_min_max]
        for kind, pick in (("min", min), ("max", max)):
            expected = (statistics.get(kind) or {}).get(name)
            if (
                isinstance(expected, int)
                and bounded
                and pick(getattr(column_chunk, kind) for column_chunk in bounded) != expected
            ):
                return f"values of {name} that were not written"
    return None
