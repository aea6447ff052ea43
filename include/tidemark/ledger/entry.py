"""Represent a committed run of a slice, and convert it to and from a ledger row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from tidemark.config.types import format_micros
from tidemark.ledger.ledger_table import FORMAT, WATERMARK_COLUMNS
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.values import END_OF_INPUT, NO_WATERMARK, SourceWatermark, Watermarks

LateArrivalPolicy = Literal["append", "reprocess", "exclude"]


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
    """Number of the slice in the pipeline's grid, from 0. It is not stored: the ledger stores `slice`, the slice's
    start."""
    run: str
    attempt: int
    commit: int
    """Number of the ledger's commit in which the slice ran. The ledger's column `commit` differs in rows that a
    release, promotion, rollback or erasure wrote: there it is that commit, and `original_commit` is this one."""
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
    """True if the inputs ended with the slice (`--drain`)."""
    table_ids: tuple[str, str] | None = None
    """Ids of the tables of the left and right input, which Delta gives to each new table; None in rows of earlier
    versions of Tidemark."""
    fingerprint: str | None = None
    """Fingerprint of the checkpoint."""
    carried_in_fingerprint: str | None = None
    """Fingerprint of the checkpoint that the slice continued; None for empty state."""
    late_arrival_policy: LateArrivalPolicy = "append"
    """Policy of the job for late-arriving rows of earlier slices: `append` reads them, `reprocess` leaves them to a
    reprocess, `exclude` never reads them, because the job began with empty state."""
    late_arriving_rows: int | None = None
    """Number of late-arriving rows read, with rows without a usable clock; None unless it is its job's first slice."""
    late_arriving_from: int | None = None
    """Earliest slice of the late-arriving rows; 0 for rows without a usable clock."""
    slices_to_reprocess: tuple[int, ...] | None = None
    """Under `reprocess`: slices with late-arriving rows that were unread when the job was planned."""
    counts: tuple[Counts, Counts] | None = None
    """Counts of left and right rows."""
    filtered: tuple[int, int] | None = None
    """Number of left and right rows that `where` excluded, which are not in `read`; None without a filter, or if rows
    are filtered before the watermark, where they are not counted."""
    rows_ahead: tuple[int, int] | None = None
    """Number of left and right rows far ahead of their arrival; None if no row of either input can be ahead."""
    emissions: int | None = None
    """Number of emissions, with quarantined ones; None for an adopted slice, which publishes none."""
    pairs: int | None = None
    """Number of rows of the join, padded ones included, from which `explode` made the emissions; None without it."""
    last_change_commit: int | None = None
    """Number of the last commit that released quarantined rows of the slice, erased rows of it, or promoted or rolled
    it back; None without any."""

    excluded_predicates: str | None = None
    """Predicates of erased rows that the run excluded, as JSON (`erasure_records.predicates_to_json`)."""
    erasures: str | None = None
    """Erasures since the run, as a JSON list of `erasure_records.ErasureRecord`."""
    adopted_from: str | None = None
    """Table with the output of an adopted slice, as JSON (`adoption.AdoptedTable`); None for other slices."""

    @property
    def is_end_of_input(self) -> bool:
        """True if no slice can follow, because the inputs ended. A drained Spark query can continue."""
        return self.watermarks.combined == END_OF_INPUT

    @property
    def output_version(self) -> str:
        """Identifier of the slice's current emissions: the run, and the last commit that changed its rows since."""
        return self.run if self.last_change_commit is None else f"{self.run}+{self.last_change_commit}"

    @property
    def consumes_late_arrivals(self) -> bool:
        """True if the job read all late-arriving rows that its input versions had."""
        return self.late_arriving_rows is not None and self.late_arrival_policy != "reprocess"

    def to_row(self, grid: Grid) -> dict[str, Any]:
        """Convert to ledger columns, without those that only a commit has (`ledger_table.SCHEMA`)."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NOT_COLUMNS}
        watermarks = {
            f"{column}_ms": _replace_no_watermark(getattr(self.watermarks, name))
            for name, column in WATERMARK_COLUMNS.items()
        }
        earliest, unread = self.late_arriving_from, self.slices_to_reprocess
        return {
            "slice": grid.datetime_of(self.number),
            "slice_end": grid.datetime_of(self.number + 1),
            "format": FORMAT,
            **plain,
            **watermarks,
            "sources": [asdict(source) for source in self.watermarks.sources],
            "left_version": self.versions[0],
            "right_version": self.versions[1],
            "left_table_id": self.table_ids[0] if self.table_ids else None,
            "right_table_id": self.table_ids[1] if self.table_ids else None,
            "left_filtered": self.filtered[0] if self.filtered else None,
            "right_filtered": self.filtered[1] if self.filtered else None,
            "left_rows_ahead": self.rows_ahead[0] if self.rows_ahead else None,
            "right_rows_ahead": self.rows_ahead[1] if self.rows_ahead else None,
            "late_arriving_from": None if earliest is None else grid.datetime_of(earliest),
            "slices_to_reprocess": None if unread is None else [grid.datetime_of(number) for number in unread],
        }


_NOT_COLUMNS = {
    *("number", "versions", "table_ids", "watermarks", "read", "carried", "late_arriving_from", "slices_to_reprocess"),
    *("counts", "filtered", "rows_ahead", "emissions", "last_change_commit"),
}
"""Fields of `Entry` that are no ledger column, or one of another type."""


def parse_entry(row: Mapping[str, Any]) -> Entry:
    """Parse a ledger row of `ledger_table.read_attempts`."""

    def int_or_none(name: str) -> int | None:
        return None if pd.isna(row[name]) else int(row[name])

    def str_or_none(name: str) -> str | None:
        return None if pd.isna(row[name]) else str(row[name])

    watermarks = {name: int_or_none(f"{column}_ms") for name, column in WATERMARK_COLUMNS.items()}
    watermarks_without_null: dict[str, Any] = {name: value for name, value in watermarks.items() if value is not None}
    left_table_id, right_table_id = str_or_none("left_table_id"), str_or_none("right_table_id")
    row_commit = int(row["commit"])
    # Set only if another commit wrote the row again since the slice ran.
    original_commit = int_or_none("original_commit")
    adopted_from = str_or_none("adopted_from")

    def pair_or_none(name: str) -> tuple[int, int] | None:
        left = int_or_none(f"left_{name}")
        return None if left is None else (left, int_or_none(f"right_{name}") or 0)

    return Entry(
        number=int(row["number"]),
        run=row["run"],
        attempt=int(row["attempt"]),
        commit=row_commit if original_commit is None else original_commit,
        settings=row["settings"],
        versions=(int(row["left_version"]), int(row["right_version"])),
        table_ids=(left_table_id, right_table_id) if left_table_id and right_table_id else None,
        watermarks=replace(Watermarks(sources=_parse_sources(row["sources"])), **watermarks_without_null),
        read=(row["left"]["read"], row["right"]["read"]),
        carried=(row["left"]["carried_out"], row["right"]["carried_out"]),
        drained=bool(row["drained"]),
        fingerprint=str_or_none("fingerprint"),
        carried_in_fingerprint=str_or_none("carried_in_fingerprint"),
        late_arrival_policy=row["late_arrival_policy"],
        late_arriving_rows=int_or_none("late_arriving_rows"),
        late_arriving_from=int_or_none("late_arriving_from"),
        slices_to_reprocess=tuple(map(int, unread)) if np.iterable(unread := row["slices_to_reprocess"]) else None,
        counts=(Counts(**row["left"]), Counts(**row["right"])),
        filtered=pair_or_none("filtered"),
        rows_ahead=pair_or_none("rows_ahead"),
        emissions=None
        if (published := int_or_none("emissions")) is None or adopted_from is not None
        else published + (int_or_none("quarantined") or 0),
        pairs=int_or_none("pairs"),
        last_change_commit=None if original_commit is None else row_commit,
        excluded_predicates=str_or_none("excluded_predicates"),
        erasures=str_or_none("erasures"),
        adopted_from=adopted_from,
    )


def format_watermark(watermark: int) -> str | None:
    """Format a watermark (ms UTC) for people and JSON; None before the first row."""
    if watermark == END_OF_INPUT:
        return "end of input"
    return None if watermark == NO_WATERMARK else format_micros(watermark * 1000)


def _replace_no_watermark(watermark: int | None) -> int | None:
    return None if watermark == NO_WATERMARK else watermark


def _parse_sources(stored: Any) -> tuple[SourceWatermark, ...]:
    return tuple(SourceWatermark(**source) for source in stored) if np.iterable(stored) else ()
