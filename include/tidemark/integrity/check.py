"""Whether a pipeline's ledger, tables and files still agree: what somebody, or a disk, has done to them since.

Nothing is written, and no JVM takes part: docs/lasting.md has the damages that are told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import pandas as pd
from deltalake.exceptions import DeltaError

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant
from tidemark.delta.paths import place
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DataFile, DeltaLog
from tidemark.errors import InputError
from tidemark.integrity.files import BadFile, FileDamage, RowsOfSlices, check_files, copies, rows_of_slices
from tidemark.ledger.config_fingerprint import settings_up_to
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import stale
from tidemark.tables.run_files import merged_at, spans
from tidemark.tables.table_changes import FOLLOWING, TRIES, files_from_rows
from tidemark.timegrid.slices import Grid, ranges

Damage = (
    FileDamage
    | Literal[
        "rows doubled", "rows missing", "rows unknown", "ledger row gone", "table gone", "table ahead", "table behind",
        "foreign commit", "state does not follow", "watermark went back", "input behind",
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it was committed."""

    damage: Damage
    table: str
    """`ledger`, the name of a table that follows it, or that of an input."""
    detail: str
    file: str | None = None
    slices: tuple[tuple[str, str], ...] = ()
    """The slices concerned, as ranges: the first one's start, the last one's end."""


@dataclass(frozen=True)
class Soundness:
    """What a pipeline's tables came to."""

    pipeline: str
    slices: int
    files: int
    """How many were looked at."""
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def damages(self) -> tuple[Finding, ...]:
        """The findings without foreign commits, which are history where all rows are right."""
        return tuple(one for one in self.findings if one.damage != "foreign commit")

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self) | {"sound": not self.damages}


def check(pipeline: Pipeline, lake: str, *, content: bool = False) -> Soundness:
    """Hold a pipeline's ledger, its tables and their files against each other; `content` reads every page.

    Where slices were committed meanwhile, what looks damaged is looked at again.
    """
    path = PipelineTables.of(pipeline, lake).ledger
    for _ in range(TRIES):
        before = DeltaLog.open(path)
        found = _look(pipeline, lake, before, content=content)
        now = DeltaLog.open(path)
        if not found.damages or (now and now.version) == (before and before.version):
            break
    return found


def _look(pipeline: Pipeline, lake: str, log: DeltaLog | None, *, content: bool) -> Soundness:
    tables, grid = PipelineTables.of(pipeline, lake), Grid.of(pipeline.slices)
    if log is None:
        there = [name for name in FOLLOWING if DeltaLog.open(getattr(tables, name))]
        gone = [Finding("table gone", "ledger", f"{tables.ledger} is gone, and {', '.join(there)} are there")]
        return Soundness(pipeline.name, 0, 0, 0, tuple(gone if there else ()))
    found = check_files(log, content=content)
    findings = [_of_file("ledger", grid, {}, one) for one in found.bad] + list(_foreign("ledger", log))
    files, size = found.checked, found.bytes
    if found.bad:
        return Soundness(pipeline.name, 0, files, size, tuple(findings))
    ledger = Ledger.seen(tables, grid)
    findings += [*_chain(ledger), *_inputs(pipeline, lake, ledger)]
    originals = {name: {file.path for file in came} for name, came in committed_files(tables).items()}
    for name in FOLLOWING:
        table = DeltaLog.open(getattr(tables, name))
        if table is None:
            findings += _absent(ledger, name)
            continue
        checked = check_files(table, content=content)
        files, size = files + checked.checked, size + checked.bytes
        known = spans(table, name, grid)
        findings += [_of_file(name, grid, known, one) for one in checked.bad]
        foreign = list(_foreign(name, table))
        findings += [*foreign, *_come_to(name, table, ledger)]
        twice = dict(copies(table, name, grid, checked.paths, originals[name]))
        findings += [
            _of_file(name, grid, known, BadFile(copy, "reference doubled", f"it has the rows of {first}"))
            for first, copy in twice.items()
        ]
        aside = [one.path for one in checked.bad] + [*twice, *twice.values()]
        told_of = {number for path in aside for number in known.get(path) or ()}
        if table.commit_number >= ledger.number:
            rows = rows_of_slices(table, name, ledger, checked.paths)
            findings += _rows(ledger, name, rows, told_of, may_expire=name == "checkpoint" and not foreign)
    return Soundness(pipeline.name, len(ledger.entries), files, size, tuple(findings))


def committed_files(tables: PipelineTables) -> dict[str, tuple[DataFile, ...]]:
    """Every file that the ledger has committed, by the name of its table."""
    log = DeltaLog.open(tables.ledger)
    assert log is not None, "something is committed"
    found = (file for row in log.read(["files"]).to_pylist() for file in row["files"] or ())
    # What was rolled back to was committed twice.
    return files_from_rows({(file["table"], file["path"]): file for file in found}.values())


def _of_file(name: str, grid: Grid, known: dict[str, range | None], bad: BadFile) -> Finding:
    return Finding(bad.damage, name, bad.detail, bad.path, _named(grid, known.get(bad.path) or ()))


def _named(grid: Grid, numbers: Any) -> tuple[tuple[str, str], ...]:
    return tuple((grid.name(one.start), grid.name(one.stop)) for one in ranges(numbers))


def _foreign(name: str, log: DeltaLog) -> Iterator[Finding]:
    for one in log.foreign():
        yield Finding("foreign commit", name, f"version {one.version}: {one.operation} at {format_instant(one.at)}")


def _absent(ledger: Ledger, name: str) -> Iterator[Finding]:
    lost = [number for number, rows in expected(ledger, name).items() if rows]
    if lost:
        path = getattr(ledger.tables, name)
        yield Finding("table gone", name, f"{path} is gone", slices=_named(ledger.grid, lost))


def _come_to(name: str, log: DeltaLog, ledger: Ledger) -> Iterator[Finding]:
    come, last = log.commit_number, ledger.number
    if come > last:
        yield Finding("table ahead", name, f"it follows commit {come}, and the ledger ends with {last}")
    elif come < last and (come or name not in {"quarantined", "quality"}):
        yield Finding("table behind", name, f"it follows commit {come} of {last}; the next command brings it up")


def _chain(ledger: Ledger) -> Iterator[Finding]:
    """What committed slices say about those before them."""
    for number, why in stale(ledger).items():
        if why == "another state":
            detail = "it has continued a state that the slice before it does not end with"
            yield Finding("state does not follow", "ledger", detail, slices=_named(ledger.grid, [number]))
    for number, entry in ledger.entries.items():
        if entry.carried_in_digest is not None and ledger.entry(number - 1) is None:
            detail = f"slice {ledger.grid.name(number)} has continued one that the ledger does not have"
            yield Finding("ledger row gone", "ledger", detail, slices=_named(ledger.grid, [number - 1]))
    for before, entry in pairwise(ledger.entries.values()):
        restarted = settings_up_to(entry.settings, ledger.grid, before.number) != entry.settings
        follows = entry.number == before.number + 1 and entry.carried_in_digest == before.digest and not restarted
        for side in SIDES:
            was, now = getattr(before.watermarks, side), getattr(entry.watermarks, side)
            if follows and now < was:
                detail = f"the {side} watermark stands {was - now:,} ms behind that of the slice before"
                yield Finding("watermark went back", "ledger", detail, slices=_named(ledger.grid, [entry.number]))


def _inputs(pipeline: Pipeline, lake: str, ledger: Ledger) -> Iterator[Finding]:
    """Inputs that are no longer at, or behind, the versions that slices have read."""
    for place_of, side in enumerate(SIDES):
        name = getattr(pipeline, side).table
        log = None
        with suppress(DeltaError, InputError):
            log = DeltaLog.open(place(lake, name))
        if log is None:
            continue  # a table of the catalog, or one that delta-rs does not read
        ahead = [number for number, entry in ledger.entries.items() if entry.versions[place_of] > log.version]
        if ahead:
            newest = max(ledger.entries[number].versions[place_of] for number in ahead)
            detail = f"version {newest} was read, and the table ends with {log.version}"
            yield Finding("input behind", name, detail, slices=_named(ledger.grid, ahead))


def expected(ledger: Ledger, name: str) -> dict[int, int | None]:
    """How many rows a table has of each slice; None where the ledger does not tell."""
    if name == "checkpoint":
        return {number: sum(entry.carried) for number, entry in ledger.entries.items()}
    if name not in {"emissions", "quarantined"}:
        return dict.fromkeys(ledger.entries)
    rows = pd.to_numeric(ledger.rows[name]).fillna(0).astype("int64")
    return dict(zip(ledger.rows["number"].astype(int), rows, strict=True))


def _rows(ledger: Ledger, name: str, rows: RowsOfSlices, told_of: set[int], *, may_expire: bool) -> Iterator[Finding]:
    """Slices with more or fewer rows than they were committed with, or with those of another run.

    Where they may expire, as checkpoints do, all of a run's may be gone: but for those that the next slice continues.
    """
    wanted = expected(ledger, name)
    if may_expire:
        last = max(ledger.entries, default=None)
        told_of = told_of | {number for number in wanted if number != last and number not in rows}
    groups: dict[tuple[Damage, str], list[int]] = {}
    for number in sorted({*wanted, *rows} - told_of):
        if found := _of_slice(ledger, number, rows.get(number, Counter()), wanted.get(number)):
            groups.setdefault(found, []).append(number)
    for (damage, detail), numbers in groups.items():
        yield Finding(damage, name, detail, slices=_named(ledger.grid, numbers))


def _of_slice(ledger: Ledger, number: int, found: Counter[str], wanted: int | None) -> tuple[Damage, str] | None:
    entry = ledger.entry(number)
    mine = found[entry.run] if entry else 0
    if others := sorted(set(found) - ({entry.run} if entry else set())):
        known = all(one in ledger.runs or merged_at(one) is not None for one in others)
        kind = "superseded" if known else "never committed"
        return "rows unknown", f"{sum(found.values()) - mine} rows are of runs that were {kind}: {', '.join(others)}"
    if wanted is None or mine == wanted:
        return None
    damage: Damage = "rows doubled" if mine > wanted else "rows missing"
    return damage, f"{mine:,} rows where {wanted:,} were committed"
