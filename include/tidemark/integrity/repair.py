"""What can be put right of a damaged lake: a plan as data, and its references carried out.

References are put right from the ledger, which has every file that it has committed; what no file has any more is for
the slices to be run again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidemark.config import Pipeline
from tidemark.config.types import micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DataFile, DeltaLog, OvertakenError
from tidemark.errors import FaultError
from tidemark.integrity.check import Finding, Soundness, committed_files, expected
from tidemark.integrity.files import RowsOfSlices, check_files, copies, is_whole, rows_of_slices
from tidemark.ledger.erasure_records import forgotten_of
from tidemark.ledger.ledger import Ledger
from tidemark.tables.run_files import HELD, merged_at, run_of, spans
from tidemark.tables.table_changes import FOLLOWING
from tidemark.timegrid.slices import Grid

_BEYOND = {"table gone", "table ahead", "ledger row gone", "input behind"}
"""Damages of which the ledger does not say what was there, or that are none of the pipeline's tables."""
_AGAIN = {"state does not follow", "watermark went back"}


@dataclass(frozen=True)
class Mending:
    """One commit of a table."""

    log: DeltaLog
    table: str
    come: tuple[DataFile, ...]
    """Files that were committed, are whole, and are not referred to."""
    gone: tuple[str, ...]
    """References to files that are damaged, doubled, or of no committed run."""


@dataclass(frozen=True)
class Repair:
    """What is done about findings, in this order: tables brought up, references put right, slices run again."""

    behind: bool
    mendings: tuple[Mending, ...]
    again: tuple[int, ...]
    """Slices whose rows are in no file any more, or do not follow."""
    lost: tuple[Finding, ...]
    """What is left as it is; where there is any, nothing else is done either."""


def plan_repair(pipeline: Pipeline, lake: str, found: Soundness, *, content: bool) -> Repair:
    """What can be done about findings; nothing is written.

    Raises:
        FaultError: another process has committed since the findings.
    """
    lost = [one for one in found.damages if one.damage in _BEYOND or (one.table == "ledger" and one.file)]
    if lost:
        return Repair(behind=False, mendings=(), again=(), lost=tuple(lost))
    tables, grid = PipelineTables.of(pipeline, lake), Grid.of(pipeline.slices)
    ledger = Ledger.seen(tables, grid)
    again = {number for one in found.damages if one.damage in _AGAIN for number in _numbers(grid, one)}
    behind = {one.table for one in found.damages if one.damage == "table behind"}
    damaged = {one.table for one in found.damages} - behind
    committed = committed_files(tables)
    mendings = []
    for name in FOLLOWING:
        log = DeltaLog.open(getattr(tables, name)) if name in damaged else None
        if log is not None and log.commit_number > ledger.number:
            raise FaultError(f"another process has committed to {log.path} meanwhile; run the command again")
        if log is not None:
            mending, more = _mending(log, name, ledger, committed, content=content)
            again |= more
            mendings += [mending] if mending.come or mending.gone else []
    return Repair(bool(behind), tuple(mendings), tuple(sorted(again)), ())


def put_right(pipeline: Pipeline, lake: str, repair: Repair) -> None:
    """Bring tables up to the ledger, and their references to what it has committed.

    Raises:
        FaultError: another process has committed to a table meanwhile.
    """
    for one in repair.mendings:
        try:
            one.log.commit(one.come, one.gone)
        except OvertakenError:
            raise FaultError(f"another process has written to {one.log.path}; run the command again") from None
    Ledger.of(pipeline, lake)


def _mending(
    log: DeltaLog, name: str, ledger: Ledger, all_committed: Mapping[str, Sequence[DataFile]], *, content: bool
) -> tuple[Mending, set[int]]:
    """The commit that puts a table right as far as files have its rows, and the slices that are not right then."""
    checked, committed = check_files(log, content=content), all_committed[name]
    known = spans(log, name, ledger.grid)
    originals = {file.path for file in committed}
    gone = {one.path for one in checked.bad}
    gone |= {copy for _, copy in copies(log, name, ledger.grid, checked.paths, originals)}
    gone |= {path for path, span in known.items() if not _counts(ledger, run_of(path), span)}
    kept = set(log.files["path"]) - gone
    rows = rows_of_slices(log, name, ledger, kept)
    come = []
    for file in committed:
        span = _span(file, name, ledger.grid)
        current = all(one and one.run == run_of(file.path) for one in map(ledger.entry, span))
        if (
            span
            and current
            and not _forgotten(ledger, name, span)
            and file.path not in kept
            and not any(n in rows for n in span)
            and is_whole(log, file)
        ):
            come.append(file)
    there = _sum(rows, rows_of_slices(log, name, ledger, (file.path for file in come)))
    back = {number for file in come for number in _span(file, name, ledger.grid)}
    again = {number for path in gone for number in known[path] or () if ledger.entry(number)} - back - set(rows)
    again -= _without_rows(ledger, name, all_committed)
    for number, wanted in expected(ledger, name).items():
        right = Counter({ledger.entries[number].run: wanted} if wanted else {})
        may_expire = name == "checkpoint" and number not in there
        if wanted is not None and not may_expire and there.get(number, Counter()) != right:
            again.add(number)
    newest = ledger.last
    if name == "checkpoint" and newest and any(newest.carried) and newest.number not in there:
        again.add(newest.number)
    return Mending(log, name, tuple(come), tuple(sorted(gone))), again


def _forgotten(ledger: Ledger, name: str, span: range) -> bool:
    """Whether rows of a table were forgotten in some slices: files of before have them."""
    told = (one for number in span for one in forgotten_of(ledger.entries[number].forgotten))
    return any(one.rows.get(name) for one in told)


def _without_rows(ledger: Ledger, name: str, committed: Mapping[str, Sequence[DataFile]]) -> set[int]:
    """Slices that have no row in a table, as files of their runs are committed to others and none to it."""
    runs = {run_of(file.path) for files in committed.values() for file in files}
    held = {(number, run_of(file.path)) for file in committed[name] for number in _span(file, name, ledger.grid)}
    return {n for n, entry in ledger.entries.items() if entry.run in runs and (n, entry.run) not in held}


def _counts(ledger: Ledger, run: str, span: range | None) -> bool:
    """Whether a file of a run may have rows of a slice that stands in that run."""
    known = run in ledger.runs or merged_at(run) is not None
    return known and (span is None or any(ledger.holds(run, number) for number in span))


def _span(file: DataFile, name: str, grid: Grid) -> range:
    """The slices that a file has rows of, as the ledger tells."""
    first, last = HELD[name]
    stats = json.loads(file.stats)
    low, high = stats["minValues"].get(first), stats["maxValues"].get(last)
    if low is None or high is None:
        return range(0)
    start, stop = (grid.number_at(micros(datetime.fromisoformat(one))) for one in (low, high))
    return range(start, stop + (1 if first == last else 0))


def _sum(*parts: RowsOfSlices) -> RowsOfSlices:
    found: RowsOfSlices = {}
    for part in parts:
        for number, by_run in part.items():
            found[number] = found.get(number, Counter()) + by_run
    return found


def _numbers(grid: Grid, finding: Finding) -> Iterator[int]:
    for start, end in finding.slices:
        first, stop = (grid.number_at(micros(datetime.fromisoformat(one))) for one in (start, end))
        yield from range(first, stop)
