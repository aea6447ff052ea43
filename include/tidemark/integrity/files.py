"""Whether the files that a table refers to are what its log says of them, and whose rows they hold; without a JVM."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidemark.config.types import micros
from tidemark.delta.table import DataFile, DeltaLog
from tidemark.ledger.ledger import Ledger
from tidemark.tables.run_files import HELD, run_of, spans
from tidemark.timegrid.slices import Grid

FileDamage = Literal["file gone", "file cut short", "file changed", "file unreadable", "reference doubled"]
RowsOfSlices = dict[int, Counter[str]]
"""How many rows of each run belong to each slice."""


@dataclass(frozen=True)
class BadFile:
    """A file that is not what the log says."""

    path: str
    """Relative to the table."""
    damage: FileDamage
    detail: str


@dataclass(frozen=True)
class SoundFiles:
    """What the files of a table came to."""

    bad: tuple[BadFile, ...]
    checked: int
    bytes: int
    paths: frozenset[str] = field(repr=False)
    """Those that are sound."""


def check_files(log: DeltaLog, *, content: bool) -> SoundFiles:
    """See that each file that a table refers to is there, with its size, rows and the bounds of its values.

    With `content` every page is read too, against its checksum.
    """
    sizes = {one.path: one.size for one in _listed(log)}
    told = _told(log)
    bad: list[BadFile] = []
    sound: set[str] = set()
    places: dict[str, str] = {}
    for path, size, rows in zip(*(log.files[name] for name in ("path", "size", "rows")), strict=True):
        plain = posixpath.normpath(unquote(path))
        first = places.setdefault(plain, path)
        if first != path:
            bad.append(BadFile(path, "reference doubled", f"it is {first} once more"))
            continue
        found = _damage(log, plain, sizes.get(plain), int(size), rows, told.get(path, {}), content=content)
        if found is None:
            sound.add(path)
        else:
            bad.append(BadFile(path, *found))
    return SoundFiles(tuple(bad), len(log.files), int(log.files["size"].sum()), frozenset(sound))


def rows_of_slices(log: DeltaLog, name: str, ledger: Ledger, paths: Iterable[str]) -> RowsOfSlices:
    """How many rows of each run some files hold for each slice; of a checkpoint, those in the buffers behind it."""
    grid = ledger.grid
    chosen = sorted(paths)
    if not chosen:
        return {}
    first, last = HELD[name]
    keys = list(dict.fromkeys((first, last)))
    rows = log.read(keys, file="file", paths=chosen)
    grouped = rows.group_by([*keys, "file"]).aggregate([([], "count_all")]).to_pylist()
    found: RowsOfSlices = {}
    for row in grouped:
        start = grid.number_at(micros(row[first]))
        stop = start + 1 if first == last else grid.number_at(micros(row[last]))
        for number in range(start, stop):
            found.setdefault(number, Counter())[ledger.run_in(run_of(row["file"]), number)] += row["count_all"]
    return found


def copies(
    log: DeltaLog, name: str, grid: Grid, paths: Iterable[str], committed: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Copies, which the ledger has not committed, beside the file that it has: of one run, size and bounds.

    Two files that were both committed may look alike: small ones with the same rows.
    """
    chosen, alike = set(paths), dict[Any, list[str]]()
    known, told = spans(log, name, grid), _told(log)
    for path, size in zip(log.files["path"], log.files["size"], strict=True):
        if path in chosen and told.get(path):
            sign = (run_of(path), int(size), known[path], json.dumps(told[path], default=str, sort_keys=True))
            alike.setdefault(sign, []).append(path)
    for group in alike.values():
        originals = [path for path in group if path in committed]
        yield from ((originals[0], path) for path in group if originals and path not in committed)


def is_whole(log: DeltaLog, file: DataFile) -> bool:
    """Whether a file that a table need not refer to is in its folder, with its size and rows."""
    info = log.folder.get_file_info(file.path)
    return _damage(log, file.path, info.size, file.size, file.rows, {}, content=True) is None


def _listed(log: DeltaLog) -> list[pafs.FileInfo]:
    everything = log.folder.get_file_info(pafs.FileSelector("", recursive=True))
    return [info for info in everything if info.is_file]


def _told(log: DeltaLog) -> dict[str, dict[str, Any]]:
    """What the log says of each file's values: the least, the greatest and the number of nulls by column."""
    actions = pa.table(log.table.get_add_actions(flatten=False))
    kinds = [one for one in ("min", "max", "null_count") if one in actions.column_names]
    return {row["path"]: {kind: row[kind] for kind in kinds} for row in actions.select(["path", *kinds]).to_pylist()}


def _damage(
    log: DeltaLog, path: str, found: int | None, size: int, rows: float, told: dict[str, Any], *, content: bool
) -> tuple[FileDamage, str] | None:
    if found is None:
        return "file gone", f"{size:,} bytes are in no file"
    if found != size:
        return "file cut short" if found < size else "file changed", f"{found:,} bytes where {size:,} were written"
    try:
        with log.folder.open_input_file(path) as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=content)
            changed = _changed(parquet.metadata, rows, told)
            if content and not changed:
                for _ in parquet.iter_batches():
                    pass
    except (OSError, pa.ArrowException) as error:
        if "CRC" not in str(error):
            return "file unreadable", str(error)
        changed = "a page is not what its checksum says"
    return ("file changed", changed) if changed else None


def _changed(footer: pq.FileMetaData, rows: float, told: dict[str, Any]) -> str | None:
    """What a file's footer has otherwise than the log: rows, or the bounds of whole numbers; None for nothing."""
    if not isnan(rows) and footer.num_rows != rows:
        return f"{footer.num_rows:,} rows where {int(rows):,} were written"
    for place in range(footer.num_columns):
        name = footer.schema.column(place).path
        groups = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        bounded = [one for one in groups if one is not None and one.has_min_max]
        for kind, pick in (("min", min), ("max", max)):
            wanted = (told.get(kind) or {}).get(name)
            if isinstance(wanted, int) and bounded and pick(getattr(one, kind) for one in bounded) != wanted:
                return f"values of {name} that were not written"
    return None
