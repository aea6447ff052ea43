"""The ledger: one row per committed slice run. A slice counts only when its ledger row says so.

It is a sequence of commits, each numbered one above those that its process knew of: who does not know the last one
cannot commit.
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
from tidemark.delta.table import CommitConflictError, DeltaTableHandle, OpenTables, create_arrow_table
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
"""After so many commits their files, of a few rows each, become one: each plan reads them all."""
WATERMARK_COLUMNS = {
    "left": "left_watermark",
    "right": "right_watermark",
    "batch": "batch_watermark",
    "advanced": "advanced_watermark",
    "left_last_cleanup": "left_swept",
    "right_last_cleanup": "right_swept",
}
"""The ledger's names, in ms, of the fields of `Watermarks`; null where they are not known."""

_TIME, _TEXT, _LONG = pa.timestamp("us", "UTC"), pa.string(), pa.int64()


def _struct(names: str, kind: pa.DataType = _LONG) -> pa.StructType:
    return pa.struct([(name, kind) for name in names.split()])


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
"""The ledger's columns. On the first row of a commit, `tables_before` has the versions of the tables that hold what was
committed before it, `files` those that it adds to them (`references`), and `dropped` those that it lets go by name."""
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
        """The counts, with what is left over as evicted."""
        return cls(read, carried_in, late, rejected, read + carried_in - late - rejected - carried_out, carried_out)


@dataclass(frozen=True)
class Entry:
    """A committed slice run, as other slices need it."""

    number: int
    run: str
    attempt: int
    commit: int
    """Number of the ledger's commit in which it ran; 0 in ledgers of format 1, which did not count."""
    settings: str
    """`Pipeline.output_affecting_settings` as JSON."""
    versions: tuple[int, int]
    """Versions of the left and right input that the slice read."""
    watermarks: Watermarks
    """The watermarks at the slice's end."""
    read: tuple[int, int]
    """How many left and right rows it read."""
    carried: tuple[int, int]
    """How many left and right rows are in its checkpoint."""
    drained: bool
    digest: str | None = None
    """The digest of its checkpoint; None in format 1."""
    carried_in_digest: str | None = None
    """The digest of the checkpoint that it continued, None for empty state."""
    landing: Landing = "append"
    """What its job did with rows of earlier slices that had landed since: took them, left them to `reprocess`, or left
    them out for good, having started from empty state."""
    landed: int | None = None
    """How many rows of earlier slices, or of none, it took; None where it is not the first slice of its job."""
    landed_from: int | None = None
    """The earliest slice that those rows belong to; 0 for rows without a usable clock."""
    waiting: tuple[int, ...] | None = None
    """Under `reprocess`: slices that rows had landed for when its job was planned, and not been taken."""
    counts: tuple[Counts, Counts] | None = None
    """Where its left and right rows went."""
    filtered: tuple[int, int] | None = None
    """How many left and right rows `where` has left out, which are not among those read; None where none was asked
    for, or at the source, where nobody sees them."""
    emissions: int | None = None
    """How many there were, those in quarantine among them."""
    pairs: int | None = None
    """Of how many pairs `explode` made them; None without it, where each is one."""
    released: int | None = None
    """Number of the last commit that has released quarantined rows of it, has had rows of it forgotten, or brought it
    from a shadow or back; None where none has."""

    left_out: str | None = None
    """What was forgotten when it ran, so that it has read no such row: `forgotten.as_text`."""
    forgotten: str | None = None
    """What was taken out of it since, a JSON list: `forgotten.Forgotten`."""

    @property
    def output_version(self) -> str:
        """What tells its emissions from those that it has had, or will have: the run, and what was released since."""
        return self.run if self.released is None else f"{self.run}+{self.released}"

    @property
    def consumes_late_arrivals(self) -> bool:
        """Whether no row of an earlier slice that was in the inputs then is left for a later slice."""
        return self.landed is not None and self.landing != "reprocess"


@dataclass(frozen=True)
class Ledger:
    """The ledger of one pipeline, as it stood when read, or as it stands after further commits."""

    tables: PipelineTables
    grid: Grid
    rows: pd.DataFrame = field(repr=False, compare=False)
    """The newest attempt of each slice, in order, as stored when the ledger was read."""
    entries: dict[int, Entry]
    """The newest attempt of each slice, by its number, in order."""
    runs: frozenset[str]
    """Every run that has been committed, of whatever attempt."""
    number: int
    """The number of the last commit, 0 before the first."""

    @classmethod
    def from_pipeline(cls, pipeline: Pipeline, lake: str) -> Ledger:
        """The ledger of a pipeline in a lake, as `read`.

        Raises:
            UserError: it is that of another pipeline.
        """
        ledger = cls.read(PipelineTables.from_config(pipeline, lake), Grid.of(pipeline.slices))
        owners = set(ledger.rows["pipeline"].dropna()) if len(ledger.rows) else set()
        if owners - {pipeline.name}:
            raise UserError(
                f"output {pipeline.output} is that of pipeline {', '.join(sorted(owners))}, as its ledger says; give "
                f"{pipeline.name} an output of its own, or its old name back"
            )
        return ledger

    @classmethod
    def read(cls, tables: PipelineTables, grid: Grid) -> Ledger:
        """The ledger as it stands now, with the tables brought up to it; empty where there is none.

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
        """As `read`, with the tables left as they are: for who only looks, while others run."""
        log = DeltaTableHandle.open(tables.ledger)
        if log is None:
            return cls.empty(tables, grid)
        stored = read_attempts(log, grid)
        require_supported_format(tables, stored)
        return cls.from_attempts(tables, grid, stored)

    @classmethod
    def empty(cls, tables: PipelineTables, grid: Grid) -> Ledger:
        """The ledger before the first commit."""
        return cls(tables, grid, pd.DataFrame({"number": pd.Series(dtype="int64")}), {}, frozenset(), 0)

    @classmethod
    def from_attempts(cls, tables: PipelineTables, grid: Grid, stored: pd.DataFrame) -> Ledger:
        """The ledger that has these rows (`attempts`)."""
        rows = stored.drop_duplicates("number", keep="last").reset_index(drop=True)
        entries = {int(row["number"]): _create_entry(row) for row in rows.to_dict("records")}
        number = int(stored["commit"].max()) if len(stored) else 0
        return cls(tables, grid, rows, entries, frozenset(stored["run"]), number)

    @property
    def last(self) -> Entry | None:
        """The last committed slice."""
        return next(reversed(self.entries.values()), None)

    def entry(self, number: int) -> Entry | None:
        """The newest committed run of a slice, None where there is none."""
        return self.entries.get(number)

    def resolve_run(self, run: str, number: int) -> str:
        """The run whose rows of a slice a file of a run has: of one in which runs were merged, that of the slice then.

        Of a slice that has run again since, it is what was merged itself.
        """
        entry, merged = self.entry(number), merged_at(run)
        return entry.run if entry and merged is not None and entry.commit <= merged else run

    def is_current(self, run: str, number: int) -> bool:
        """Whether the rows that a file of a run has of a slice are those that are committed."""
        entry = self.entry(number)
        return entry is not None and entry.run == self.resolve_run(run, number)

    def with_entries(self, entries: Iterable[Entry]) -> Ledger:
        """The ledger once these are committed too."""
        added = {entry.number: entry for entry in entries}
        runs = self.runs | {entry.run for entry in added.values()}
        number = max([self.number, *(entry.commit for entry in added.values())])
        return replace(self, entries=dict(sorted({**self.entries, **added}.items())), runs=runs, number=number)

    def row(self, entry: Entry) -> dict[str, Any]:
        """The columns of the ledger that an entry tells, for `commit`."""
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
        """The error of a process that has looked before another one committed; `first` is its slice."""
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
        """Append rows (`row`, and what else the ledger holds) as commit `number`: they count from then on, all or none.

        Every commit of a pipeline is a transaction of one Delta application, with its number as the version, on top of
        what it has seen. `references` is what it makes of the tables, and `before` has their versions until then.

        Raises:
            SliceOrderError: another process has committed since this ledger was read.
        """
        first, *more = rows
        records = [{**first, "files": to_file_rows(references), "tables_before": dict(before)}, *more]
        if references.dropped is not None:
            records[0]["dropped"] = [
                {"table": name, "path": path} for name, all_ in references.dropped.items() for path in all_
            ]
        path = self.tables.ledger
        log = opened.pop(path, None) or DeltaTableHandle.open(path) or create_arrow_table(path, SCHEMA)
        create_conflict_error = self.create_conflict_error(self.grid.number_at(to_micros(first["slice"])))
        # The id alone does not keep out who opens the table after another has committed.
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
    """The row that counts of a committed slice, as it is stored, without its files."""
    return newest_rows(tables, ds.field("slice") == pa.scalar(slice_, _TIME))[slice_]


def newest_rows(tables: PipelineTables, where: ds.Expression | None = None) -> dict[datetime, dict[str, Any]]:
    """The same of all slices, by their starts in order: of those that a filter lets through the newest counts."""
    log = DeltaTableHandle.open(tables.ledger)
    assert log is not None, "something is committed"
    columns = [name for name in SCHEMA.names if name not in {"files", "tables_before", "dropped"}]
    rows = sorted(
        log.read(columns, where).to_pylist(), key=lambda row: (row["slice"], row["attempt"], row["commit"] or 0)
    )
    return {row["slice"]: row for row in rows}


def read_attempts(log: DeltaTableHandle, grid: Grid) -> pd.DataFrame:
    """What a ledger's table holds, all attempts in order of slice and attempt, without `files`.

    Adds `number`, of the slice; `landed_from` and `waiting` are numbers too.
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
    """What each commit behind one makes of the tables, in order."""
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
    """The files that a commit lets go by name, by their table; None where it is none of that kind."""
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

    def text_or_none(name: str) -> str | None:
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
        digest=text_or_none("digest"),
        carried_in_digest=text_or_none("carried_in_digest"),
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
        left_out=text_or_none("left_out"),
        forgotten=text_or_none("forgotten"),
    )


def _mark_or_none(watermark: int | None) -> int | None:
    return None if watermark == NO_WATERMARK else watermark


def _parse_sources(stored: Any) -> tuple[SourceWatermark, ...]:
    return tuple(SourceWatermark(**source) for source in stored) if np.iterable(stored) else ()
