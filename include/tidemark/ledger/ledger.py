"""Read and append the ledger, which has one row per committed run of a slice.

A slice is committed once its row is in the ledger. Commits are numbered in sequence, and a process can only commit on
top of the last commit (optimistic concurrency).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidemark.config import Pipeline
from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import CommitConflictError, DeltaTableHandle, OpenTables, create_internal_table
from tidemark.errors import SliceOrderError, UserError
from tidemark.tables.run_files import merged_at
from tidemark.tables.table_changes import (
    TableChanges,
    apply_to_tables,
    files_from_rows,
    last_applied_commit,
    to_file_rows,
)
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.watermarks import NO_WATERMARK, SourceWatermark, Watermarks

FORMAT = 1
"""Version of the layout of a pipeline's tables. Other versions are refused."""

COMPACT_EVERY = 100
"""Number of commits after which the ledger's small files are compacted, because each plan reads them all."""
WATERMARK_COLUMNS = {
    "left": "left_watermark",
    "right": "right_watermark",
    "batch": "batch_watermark",
    "advanced": "advanced_watermark",
    "left_last_cleanup": "left_swept",
    "right_last_cleanup": "right_swept",
}
"""Ledger column (without `_ms`) by field of `Watermarks`; the value is in ms, null if unknown."""

_TIME, _TEXT, _LONG = pa.timestamp("us", "UTC"), pa.string(), pa.int64()


def _struct(names: str, dtype: pa.DataType = _LONG) -> pa.StructType:
    return pa.struct([(name, dtype) for name in names.split()])


_COUNTS = _struct("read carried_in late rejected evicted carried_out")
_FILE = {"table": _TEXT, "path": _TEXT, "size": _LONG, "rows": _LONG, "modified": _LONG}
SCHEMA = pa.schema(
    {
        "slice": _TIME,
        "slice_end": _TIME,
        "run": _TEXT,
        "attempt": pa.int32(),
        "committed_at": _TIME,
        "format": pa.int32(),
        "settings": _TEXT,
        "pipeline": _TEXT,
        "left_version": _LONG,
        "right_version": _LONG,
        **{f"{name}_ms": _LONG for name in WATERMARK_COLUMNS.values()},
        "sources": pa.list_(pa.struct({"side": _TEXT, "partition": _TEXT, "watermark": _LONG, "last": _LONG})),
        "drained": pa.bool_(),
        "emissions": _LONG,
        "pairs": _LONG,
        "floored": _LONG,
        "left": _COUNTS,
        "right": _COUNTS,
        "left_filtered": _LONG,
        "right_filtered": _LONG,
        "quality": _TEXT,
        "findings": _TEXT,
        "job_slices": _LONG,
        "job_seconds": pa.float64(),
        "commit": _LONG,
        "digest": _TEXT,
        "carried_in_digest": _TEXT,
        "landing": _TEXT,
        "landed": _LONG,
        "landed_from": _TIME,
        "waiting": pa.list_(_TIME),
        "incomplete": _TEXT,
        "quarantined": _LONG,
        "waived": _TEXT,
        "released": _TEXT,
        "ran_in": _LONG,
        "brought": _TEXT,
        "left_out": _TEXT,
        "forgotten": _TEXT,
        "dropped": pa.list_(pa.struct({"table": _TEXT, "path": _TEXT})),
        "tables_before": _struct("emissions late checkpoint"),
        "files": pa.list_(pa.struct({**_FILE, "stats": _TEXT})),
    }
)
"""The ledger's columns. The first row of a commit also has the tables' versions before it (`tables_before`), the files
that it adds (`files`), and the files that it removes by path (`dropped`)."""
Landing = Literal["append", "reprocess", "start"]


@dataclass(frozen=True)
class Counts:
    """One input's rows in one slice: read + carried_in = late + rejected + evicted + carried_out."""

    read: int
    carried_in: int
    late: int
    rejected: int
    evicted: int
    carried_out: int

    @classmethod
    def with_remaining_evicted(cls, read: int, carried_in: int, late: int, rejected: int, carried_out: int) -> Counts:
        """Create counts in which the remaining rows were evicted."""
        return cls(read, carried_in, late, rejected, read + carried_in - late - rejected - carried_out, carried_out)


@dataclass(frozen=True)
class Entry:
    """A committed run of a slice."""

    number: int
    run: str
    attempt: int
    commit: int
    """Number of the ledger's commit in which the slice ran."""
    settings: str
    """`Pipeline.output_affecting_settings` as JSON."""
    versions: tuple[int, int]
    """Versions of the left and right input that the slice read."""
    watermarks: Watermarks
    """The watermarks at the slice's end."""
    read: tuple[int, int]
    """Number of left and right rows read."""
    carried: tuple[int, int]
    """Number of left and right rows in the checkpoint."""
    drained: bool
    digest: str | None = None
    """Fingerprint of the checkpoint."""
    carried_in_digest: str | None = None
    """Fingerprint of the checkpoint that the slice continued; None for empty state."""
    landing: Landing = "append"
    """Policy of the job for late-arriving rows of earlier slices: `append` reads them, `reprocess` leaves them to a
    reprocess, `start` excludes them for good, because the job began with empty state."""
    landed: int | None = None
    """Number of late-arriving rows read, with rows without a usable clock; None unless it is its job's first slice."""
    landed_from: int | None = None
    """Earliest slice of the late-arriving rows; 0 for rows without a usable clock."""
    waiting: tuple[int, ...] | None = None
    """Under `reprocess`: slices with late-arriving rows that were unread when the job was planned."""
    counts: tuple[Counts, Counts] | None = None
    """Counts of left and right rows."""
    filtered: tuple[int, int] | None = None
    """Number of left and right rows that `where` excluded, which are not in `read`; None without a filter, or if rows
    are filtered before the watermark, where they are not counted."""
    emissions: int | None = None
    """Number of emissions, with quarantined ones."""
    pairs: int | None = None
    """Number of pairs from which `explode` made the emissions; None without `explode`, where each pair is one."""
    released: int | None = None
    """Number of the last commit that released quarantined rows of the slice, erased rows of it, or promoted or rolled
    it back; None without any."""

    left_out: str | None = None
    """Predicates of erased rows that the run excluded, as JSON (`erasure_records.predicates_to_json`)."""
    forgotten: str | None = None
    """Erasures since the run, as a JSON list of `erasure_records.ErasureRecord`."""

    @property
    def output_version(self) -> str:
        """Identifier of the slice's current emissions: the run, and the last commit that changed its rows since."""
        return self.run if self.released is None else f"{self.run}+{self.released}"

    @property
    def consumes_late_arrivals(self) -> bool:
        """True if the job read all late-arriving rows that its input versions had."""
        return self.landed is not None and self.landing != "reprocess"


@dataclass(frozen=True)
class Ledger:
    """The ledger of one pipeline as it was read, possibly with entries committed since."""

    tables: PipelineTables
    grid: Grid
    rows: pd.DataFrame = field(repr=False, compare=False)
    """Newest attempt of each slice, in order, as stored when the ledger was read."""
    entries: dict[int, Entry]
    """Newest attempt of each slice by number, in order."""
    runs: frozenset[str]
    """All committed runs of all attempts."""
    number: int
    """Number of the last commit; 0 before the first."""

    @classmethod
    def from_pipeline(cls, pipeline: Pipeline, lake: str) -> Ledger:
        """Read the ledger of a pipeline in a lake, and apply its commits to the tables.

        Raises:
            UserError: The ledger belongs to another pipeline, or another version of Tidemark wrote it.
        """
        ledger = cls.read(PipelineTables.from_config(pipeline, lake), Grid.from_config(pipeline.slices))
        owners = set(ledger.rows["pipeline"].dropna()) if len(ledger.rows) else set()
        if owners - {pipeline.name}:
            raise UserError(
                f"output {pipeline.output} is that of pipeline {', '.join(sorted(owners))}, as its ledger says; give "
                f"{pipeline.name} an output of its own, or its old name back"
            )
        return ledger

    @classmethod
    def read(cls, tables: PipelineTables, grid: Grid) -> Ledger:
        """Read the ledger, and apply its commits to tables that lack them.

        Returns:
            The ledger; an empty one if there is none.

        Raises:
            UserError: Another version of Tidemark wrote it.
        """
        log = DeltaTableHandle.open(tables.ledger)
        if log is None:
            return cls.empty(tables, grid)
        stored = read_attempts(log, grid)
        require_supported_format(tables, stored)
        number = int(stored["commit"].max()) if len(stored) else 0
        if (applied := last_applied_commit(tables)) is not None and applied < number:
            for missed, references in _read_table_changes(log, grid, applied).items():
                apply_to_tables(tables, grid, missed, references)
        return cls.from_attempts(tables, grid, stored)

    @classmethod
    def read_without_sync(cls, tables: PipelineTables, grid: Grid) -> Ledger:
        """Read the ledger without changing the tables, for read-only commands."""
        log = DeltaTableHandle.open(tables.ledger)
        if log is None:
            return cls.empty(tables, grid)
        stored = read_attempts(log, grid)
        require_supported_format(tables, stored)
        return cls.from_attempts(tables, grid, stored)

    @classmethod
    def empty(cls, tables: PipelineTables, grid: Grid) -> Ledger:
        """Create a ledger without commits."""
        return cls(tables, grid, pd.DataFrame({"number": pd.Series(dtype="int64")}), {}, frozenset(), 0)

    @classmethod
    def from_attempts(cls, tables: PipelineTables, grid: Grid, stored: pd.DataFrame) -> Ledger:
        """Create the ledger from its stored rows (`read_attempts`)."""
        rows = stored.drop_duplicates("number", keep="last").reset_index(drop=True)
        entries = {int(row["number"]): _create_entry(row) for row in rows.to_dict("records")}
        number = int(stored["commit"].max()) if len(stored) else 0
        return cls(tables, grid, rows, entries, frozenset(stored["run"]), number)

    @property
    def last(self) -> Entry | None:
        """The last committed slice."""
        return next(reversed(self.entries.values()), None)

    def entry(self, number: int) -> Entry | None:
        """Return the newest committed run of a slice; None if there is none."""
        return self.entries.get(number)

    def resolve_run(self, run: str, number: int) -> str:
        """Return the run that wrote a slice's rows in a file.

        Args:
            run: Run in the file's path, possibly of a merged file.
            number: The slice.

        Returns:
            For a merged file, the slice's run at the time of the merge, or `run` if the slice was rerun since.
        """
        entry, merged = self.entry(number), merged_at(run)
        return entry.run if entry and merged is not None and entry.commit <= merged else run

    def is_current(self, run: str, number: int) -> bool:
        """Return True if a slice's rows in a file of a run are the committed ones."""
        entry = self.entry(number)
        return entry is not None and entry.run == self.resolve_run(run, number)

    def with_entries(self, entries: Iterable[Entry]) -> Ledger:
        """Return the ledger with further committed entries."""
        added = {entry.number: entry for entry in entries}
        runs = self.runs | {entry.run for entry in added.values()}
        number = max([self.number, *(entry.commit for entry in added.values())])
        return replace(self, entries=dict(sorted({**self.entries, **added}.items())), runs=runs, number=number)

    def row(self, entry: Entry) -> dict[str, Any]:
        """Convert an entry to ledger columns, for `commit`."""
        plain = {f.name: getattr(entry, f.name) for f in fields(entry) if f.name not in _NOT_COLUMNS}
        marks = {
            f"{name}_ms": _mark_or_none(getattr(entry.watermarks, part)) for part, name in WATERMARK_COLUMNS.items()
        }
        earliest, waiting = entry.landed_from, entry.waiting
        return {
            "slice": self.grid.datetime_of(entry.number),
            "slice_end": self.grid.datetime_of(entry.number + 1),
            "format": FORMAT,
            **plain,
            **marks,
            "sources": [asdict(source) for source in entry.watermarks.sources],
            "left_version": entry.versions[0],
            "right_version": entry.versions[1],
            "left_filtered": entry.filtered[0] if entry.filtered else None,
            "right_filtered": entry.filtered[1] if entry.filtered else None,
            "landed_from": None if earliest is None else self.grid.datetime_of(earliest),
            "waiting": None if waiting is None else [self.grid.datetime_of(number) for number in waiting],
        }

    def create_conflict_error(self, first: int) -> SliceOrderError:
        """Create the error for a process whose ledger is outdated; `first` is the first slice it could not commit."""
        return SliceOrderError(
            f"another process has committed slices of {self.tables.root} since this one looked, so slice "
            f"{self.grid.name(first)} and those after it were not published; run the same command again"
        )

    def commit(
        self,
        rows: list[dict[str, Any]],
        number: int,
        references: TableChanges,
        before: Mapping[str, int],
        opened: OpenTables,
    ) -> None:
        """Append rows as one atomic commit.

        Each commit is a transaction of one Delta application, with the commit number as its version.

        Args:
            rows: Ledger rows (`row` and further columns).
            number: Number of the commit.
            references: The commit's changes of the tables.
            before: The tables' versions before the commit.
            opened: Tables that are open, by path. The ledger is replaced by its new version.

        Raises:
            SliceOrderError: Another process has committed since this ledger was read.
        """
        first, *more = rows
        records = [{**first, "files": to_file_rows(references), "tables_before": dict(before)}, *more]
        if references.dropped is not None:
            records[0]["dropped"] = [
                {"table": name, "path": path} for name, all_ in references.dropped.items() for path in all_
            ]
        path = self.tables.ledger
        log = opened.pop(path, None) or DeltaTableHandle.open(path) or create_internal_table(path, SCHEMA)
        create_conflict_error = self.create_conflict_error(self.grid.number_at(to_micros(first["slice"])))
        # Delta rejects a version only if it conflicts with a commit since the table was opened.
        if log.txn_version >= number:
            raise create_conflict_error
        try:
            grown = log.append(pa.Table.from_pylist(records, SCHEMA), number)
        except CommitConflictError:
            raise create_conflict_error from None
        if number % COMPACT_EVERY == 0:
            grown.compact()
        else:
            opened[path] = grown


def newest_row(tables: PipelineTables, slice_: datetime) -> dict[str, Any]:
    """Read the newest stored row of a committed slice, without its files."""
    return newest_rows(tables, ds.field("slice") == pa.scalar(slice_, _TIME))[slice_]


def newest_rows(tables: PipelineTables, where: ds.Expression | None = None) -> dict[datetime, dict[str, Any]]:
    """Read the newest stored row of each slice, without its files.

    Args:
        tables: The pipeline's tables.
        where: Filter, applied before the newest row is chosen.

    Returns:
        Rows by slice start, in order.
    """
    log = DeltaTableHandle.open(tables.ledger)
    assert log is not None, "something is committed"
    columns = [name for name in SCHEMA.names if name not in {"files", "tables_before", "dropped"}]
    rows = sorted(
        log.read(columns, where).to_pylist(), key=lambda row: (row["slice"], row["attempt"], row["commit"] or 0)
    )
    return {row["slice"]: row for row in rows}


def read_attempts(log: DeltaTableHandle, grid: Grid) -> pd.DataFrame:
    """Read all attempts of a ledger's table by slice and attempt, without `files` and `dropped`.

    Returns:
        The stored columns and `number`, the slice's number. Slices in `landed_from` and `waiting` are numbers too.
    """
    fields_ = [item for item in SCHEMA if item.name not in {"files", "dropped"}]
    stored = log.read([item.name for item in fields_])
    for item in fields_:
        if item.name not in stored.column_names:
            stored = stored.append_column(item, pa.nulls(len(stored), item.type))
    waiting, landed = stored["waiting"].to_pylist(), stored["landed_from"].to_pylist()
    plain = stored.drop_columns(["waiting", "landed_from"]).to_pandas(integer_object_nulls=True)
    numbered = plain.assign(
        number=grid.numbers_at(_to_micros(stored["slice"])),
        landed_from=pd.Series([item and grid.number_at(to_micros(item)) for item in landed], dtype="object"),
        waiting=pd.Series(
            [item and [grid.number_at(to_micros(at)) for at in item] for item in waiting], dtype="object"
        ),
    )
    by = ["number", "attempt", "commit"]
    ordered: pd.DataFrame = numbered.sort_values(by, kind="stable").reset_index(drop=True)
    return ordered


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


def _read_table_changes(log: DeltaTableHandle, grid: Grid, after: int) -> dict[int, TableChanges]:
    """Read the table changes of each commit after number `after` (exclusive), in order."""
    columns = ["slice", "attempt", "commit", "files", "ran_in", "brought", "dropped"]
    rows = log.read(columns, ds.field("commit") > after).to_pylist()
    changes: dict[int, TableChanges] = {}
    for number in sorted({row["commit"] for row in rows}):
        commit_rows = [row for row in rows if row["commit"] == number]
        if (dropped := _parse_dropped_files(commit_rows)) is not None:
            changes[number] = TableChanges({}, dropped=dropped)
            continue
        added = files_from_rows(file for row in commit_rows for file in row["files"] or ())
        released_rows = (row for row in commit_rows if row.get("ran_in") is not None and row.get("brought") is None)
        released = {grid.number_at(to_micros(row["slice"])) for row in released_rows}
        rerun = {grid.number_at(to_micros(row["slice"])) for row in commit_rows if row["attempt"] > 1} - released
        changes[number] = TableChanges(added, tuple(sorted(rerun)), tuple(released))
    return changes


def _parse_dropped_files(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]] | None:
    """Return the files that a commit removes by path, by table; None if the commit removes none that way."""
    entries = next((row["dropped"] for row in rows if row.get("dropped") is not None), None)
    if entries is None:
        return None
    paths: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        paths[entry["table"]] = (*paths.get(entry["table"], ()), entry["path"])
    return paths


def _to_micros(times: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    micros: npt.NDArray[np.int64] = pc.cast(pc.cast(times, _TIME), _LONG).to_numpy()
    return micros


_NOT_COLUMNS = {
    *("number", "versions", "watermarks", "read", "carried", "landed_from", "waiting"),
    *("counts", "filtered", "emissions", "released"),
}


def _create_entry(row: Mapping[Hashable, Any]) -> Entry:
    def int_or_none(name: str) -> int | None:
        return None if pd.isna(row[name]) else int(row[name])

    def str_or_none(name: str) -> str | None:
        return None if pd.isna(row[name]) else str(row[name])

    marks = {part: int_or_none(f"{name}_ms") for part, name in WATERMARK_COLUMNS.items()}
    ran_in = int_or_none("ran_in")
    present_marks: dict[str, Any] = {part: mark for part, mark in marks.items() if mark is not None}
    return Entry(
        number=int(row["number"]),
        run=row["run"],
        attempt=int(row["attempt"]),
        commit=int(row["commit"]) if ran_in is None else ran_in,
        settings=row["settings"],
        versions=(int(row["left_version"]), int(row["right_version"])),
        watermarks=replace(Watermarks(sources=_parse_sources(row["sources"])), **present_marks),
        read=(row["left"]["read"], row["right"]["read"]),
        carried=(row["left"]["carried_out"], row["right"]["carried_out"]),
        drained=bool(row["drained"]),
        digest=str_or_none("digest"),
        carried_in_digest=str_or_none("carried_in_digest"),
        landing=row["landing"],
        landed=int_or_none("landed"),
        landed_from=int_or_none("landed_from"),
        waiting=tuple(map(int, row["waiting"])) if np.iterable(row["waiting"]) else None,
        counts=(Counts(**row["left"]), Counts(**row["right"])),
        filtered=None
        if (filtered := int_or_none("left_filtered")) is None
        else (filtered, int_or_none("right_filtered") or 0),
        emissions=None
        if (published := int_or_none("emissions")) is None
        else published + (int_or_none("quarantined") or 0),
        pairs=int_or_none("pairs"),
        released=None if ran_in is None else int(row["commit"]),
        left_out=str_or_none("left_out"),
        forgotten=str_or_none("forgotten"),
    )


def _mark_or_none(watermark: int | None) -> int | None:
    return None if watermark == NO_WATERMARK else watermark


def _parse_sources(stored: Any) -> tuple[SourceWatermark, ...]:
    return tuple(SourceWatermark(**source) for source in stored) if np.iterable(stored) else ()
