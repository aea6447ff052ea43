"""Output rows that were taken out of a slice since they break an expectation: looked at, and published after all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.types import format_instant
from tidemark.delta.staging import Staged
from tidemark.delta.table import DeltaLog, Opened
from tidemark.errors import UserError
from tidemark.formatting import quoted
from tidemark.ledger.ledger import WITH_QUARANTINE, Entry, Ledger, newest_row
from tidemark.ledger.prepare_commit import prepare
from tidemark.tables.run_files import StagedRun, read_slices, stage_run
from tidemark.tables.table_changes import QUARANTINED, publish

RUN, EXPECTATIONS = "_run", "_expectations"
"""What the table has beside the columns of emissions: the run that took the row out, and what it breaks."""
EXAMPLES = 3
"""So many rows are shown of a slice and expectation, by their keys."""


@dataclass(frozen=True)
class Quarantined:
    """The rows of a slice that break one expectation; those that break several are in the figures of each."""

    slice: str
    expectation: str
    rows: int
    run: str
    examples: tuple[dict[str, Any], ...]
    """The keys of some; empty unless the pipeline file lets rows be shown."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class Released:
    """What was published after all."""

    pipeline: str
    slice: str
    expectations: tuple[str, ...]
    rows: int
    """How many rows are among the emissions now that were not."""
    left: int
    """How many are in quarantine still, for they break other expectations."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def quarantined(pipeline: Pipeline, lake: str) -> list[Quarantined]:
    """What is in quarantine, by slice and expectation, in order."""
    ledger = Ledger.of(pipeline, lake)
    keys = pipeline.join.telling_columns
    found: dict[tuple[datetime, str, str], list[dict[str, Any]]] = {}
    for row in _stored(ledger, keys if pipeline.show_rows else []):
        shown = {name: _plain(row[name]) for name in keys if name in row}
        for expectation in row[EXPECTATIONS]:
            found.setdefault((row["_slice"], expectation, row[RUN]), []).append(shown)
    return [
        Quarantined(format_instant(slice_), expectation, len(rows), run, tuple(row for row in rows[:EXAMPLES] if row))
        for (slice_, expectation, run), rows in sorted(found.items())
    ]


def release(
    spark: SparkSession, pipeline: Pipeline, lake: str, start: datetime, expectation: str | None, by: str
) -> Released:
    """Publish the quarantined rows of the slice that starts then, or those that break no other expectation than one.

    One commit of the ledger: the rows come to the emissions of the slice beside those that are there. What breaks other
    expectations too stays in quarantine for these.

    Raises:
        UserError: there are none.
        SliceOrderError: another process has committed meanwhile; nothing was released.
    """
    ledger = Ledger.of(pipeline, lake)
    number = ledger.grid.boundary(start, "--slice")
    entry, held = ledger.entry(number), _stored(ledger, [], start)
    if entry is None or not held:
        raise UserError(
            f"--slice {format_instant(start)}: no row of that slice is in quarantine; tidemark quarantine list "
            f"{pipeline.name} shows which are"
        )
    known = sorted({name for row in held for name in row[EXPECTATIONS]})
    names = known if expectation is None else [chosen(expectation, known)]
    rows = sum(set(row[EXPECTATIONS]) <= set(names) for row in held)
    told = Released(pipeline.name, ledger.grid.name(number), tuple(names), rows, len(held) - rows)
    tables = {} if expectation is None and not rows else _parted(spark, ledger, number, entry.run, names)
    _commit(spark, ledger, entry, StagedRun(entry.run, range(number, number + 1), tables), told, by)
    return told


def chosen(name: str, known: Iterable[str]) -> str:
    """The one expectation that is meant: by all of what findings call it, or by a part that no other has.

    Raises:
        UserError: none, or several are meant.
    """
    names = list(known)
    if name in names:
        return name
    fitting = [one for one in names if name in one]
    if len(fitting) == 1:
        return fitting[0]
    which = "is several" if fitting else "is none"
    raise UserError(f"--expectation {name} {which} of: {'; '.join(fitting or names)}")


def _stored(ledger: Ledger, columns: Iterable[str], start: datetime | None = None) -> list[dict[str, Any]]:
    log = DeltaLog.open(ledger.tables.quarantined)
    if log is None:
        return []
    where = None if start is None else ds.field("_slice") == start
    rows: list[dict[str, Any]] = log.read({"_slice", RUN, EXPECTATIONS, *columns}, where).to_pylist()
    return rows


def _parted(spark: SparkSession, ledger: Ledger, number: int, run: str, names: list[str]) -> dict[str, Staged]:
    """The quarantined rows of a slice as files: of emissions, and of what stays where it is."""
    tables = ledger.tables
    rows = read_slices(spark, tables, QUARANTINED, ledger.grid, range(number, number + 1))
    assert rows is not None, "some were found in it"
    others = F.array_except(EXPECTATIONS, F.array(*map(F.lit, names)))
    free = F.size(others) == 0
    stays = rows.where(~free).withColumn(EXPECTATIONS, others)
    return {
        "emissions": stage_run(_as_emissions(rows.where(free), tables.emissions), tables.emissions, run),
        QUARANTINED: stage_run(stays, tables.quarantined, run),
    }


def _as_emissions(rows: DataFrame, path: str) -> DataFrame:
    """Rows in the types that the table of emissions has by now."""
    log = DeltaLog.open(path)
    assert log is not None, "it was made with the first slice"
    kinds = {one.name: one.dataType for one in log.schema}
    names = [name for name in rows.columns if name not in {RUN, EXPECTATIONS}]
    return rows.select(*(F.col(quoted(name)).cast(kinds[name]).alias(name) for name in names)).coalesce(1)


def _commit(spark: SparkSession, ledger: Ledger, entry: Entry, staged: StagedRun, told: Released, by: str) -> None:
    opened: Opened = {}
    slice_ = ledger.grid.datetime_of(entry.number)
    ready = prepare(spark, ledger.tables, ledger.grid, [staged], (), opened, released=[entry.number])
    before, now, commit = newest_row(ledger.tables, slice_), datetime.now(UTC), ledger.number + 1
    release_ = {"rows": told.rows, "expectations": told.expectations, "by": by, "at": format_instant(now)}
    row = before | {
        "commit": commit,
        "committed_at": now,
        "format": WITH_QUARANTINE,
        "emissions": before["emissions"] + told.rows,
        "quarantined": told.left,
        "quality": "quarantined" if told.left else "released",
        "released": json.dumps([*json.loads(before["released"] or "[]"), release_]),
        "ran_in": entry.commit,
        "brought": None,
    }
    ledger.commit([row], commit, ready.references, ready.before, opened)
    publish(ledger.tables, ledger.grid, commit, ready.references, opened)


def _plain(value: Any) -> Any:
    return format_instant(value) if isinstance(value, datetime) else value
