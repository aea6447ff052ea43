"""A shadow's answer made the one that is served, and taken back: each in one commit of the ledger and of each table.

Files of the shadow are copied beside those that are served, which stay until superseded ones are vacuumed. So both ways
are commits by reference, as a rerun of all slices is: docs/decisions/0039-shadows.md.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pandas as pd
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.types import format_instant
from tidemark.delta.filesystem import file_system
from tidemark.delta.staging import Staged, described
from tidemark.delta.table import DataFile, DeltaLog, Opened
from tidemark.errors import FaultError, SliceOrderError, UserError
from tidemark.ledger.config_fingerprint import settings_of, settings_text, under_others
from tidemark.ledger.erasure_records import last_forgotten
from tidemark.ledger.ledger import WITH_SHADOWS, Entry, Ledger, attempts, newest_rows
from tidemark.ledger.prepare_commit import prepare
from tidemark.ledger.staleness import stale
from tidemark.tables.run_files import FOLDER, StagedRun, run_of
from tidemark.tables.table_changes import FOLLOWING, publish
from tidemark.timegrid.slices import ranges
from tidemark.versions.candidates import shadow_ledger

_AT_ONCE = 8
"""So many files are copied side by side."""


@dataclass(frozen=True)
class Moved:
    """What is served now."""

    pipeline: str
    shadow: str
    commit: int
    """Of the ledger."""
    slices: int
    start: str
    end: str
    """Exclusive."""
    files: int
    bytes: int
    again: tuple[tuple[str, str], ...]
    """Slices, as ranges of which the end is exclusive, that do not follow from those before them: the next run has them
    run again."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def promote(spark: SparkSession, pipeline: Pipeline, lake: str, name: str, by: str) -> Moved:
    """Serve what a shadow holds, in place of all slices that are served.

    Raises:
        UserError: there is no such shadow, it has run under other settings than the pipeline file's, some of its slices
            are stale, it lacks some that are served, or it is served already.
        SliceOrderError: another process has committed meanwhile, to either; what is served stays.
        FaultError: a copy has not the rows of its file.
    """
    shadow, served = shadow_ledger(pipeline, lake, name), Ledger.of(pipeline, lake)
    _refuse(pipeline, name, shadow, served)
    token = uuid4().hex[:8]
    staged = {one: part for one in FOLLOWING if (part := _copied(shadow, served, one, token))}
    # Among themselves the slices keep the order of their commits, of which the last is this one.
    later = served.number + 1 - shadow.number
    ran_in = {number: entry.commit + later for number, entry in shadow.entries.items()}
    rows, told = newest_rows(shadow.tables), {"promoted": name, "by": by}
    if Ledger.seen(shadow.tables, shadow.grid).number != shadow.number:
        raise SliceOrderError(f"slices of shadow {name} were committed meanwhile; run the same command again")
    return _commit(spark, pipeline, served, rows, ran_in, staged, told)


def rollback(spark: SparkSession, pipeline: Pipeline, lake: str, name: str, by: str) -> Moved:
    """Serve again what was served before a shadow was promoted.

    Raises:
        UserError: that is not the last promotion that stands, files of the answer before it were vacuumed, or rows were
            forgotten since.
        SliceOrderError: another process has committed meanwhile; what is served stays.
    """
    served = Ledger.of(pipeline, lake)
    log = DeltaLog.open(served.tables.ledger)
    stored = attempts(log, served.grid) if log else served.rows
    promoted = _promotion(stored, name) if log else None
    if promoted is None:
        raise UserError(f"no promotion of a shadow {name} of {pipeline.name} stands, so there is nothing to take back")
    was = Ledger.of_attempts(served.tables, served.grid, stored[stored["commit"] < promoted])
    if last_forgotten(served.tables) > promoted:
        raise UserError(
            f"rows were forgotten since shadow {name} was promoted, and what was served before it may have them; give "
            "the pipeline file its old settings, and run that as a shadow"
        )
    if was.last is None:
        raise UserError(f"nothing was served before shadow {name} was promoted; there is nothing to go back to")
    staged = {one: part for one in FOLLOWING if (part := _as_before(served, one, promoted, name))}
    ran_in = {number: entry.commit for number, entry in was.entries.items()}
    rows, told = newest_rows(served.tables, ds.field("commit") < promoted), {"rolled_back": name, "by": by}
    return _commit(spark, pipeline, served, rows, ran_in, staged, told)


def _refuse(pipeline: Pipeline, name: str, shadow: Ledger, served: Ledger) -> None:
    """See that a shadow can take the place of what is served."""
    grid, command = shadow.grid, f"tidemark run {pipeline.name} --shadow {name}"
    settings = settings_text(pipeline)
    if served.last and (old := settings_of(served.last.settings)["slices"]) != settings_of(settings)["slices"]:
        zone = f" in {old['time_zone']}" if "time_zone" in old else ""
        raise UserError(
            f"what {pipeline.name} serves has other slices (every {old['every']}{zone}, from {old['start']} on); a "
            "pipeline whose slices change needs a new `output`"
        )
    if other := next(under_others(shadow.entries.values(), settings, grid), None):
        first, apart = grid.name(other[0]), other[1]
        raise UserError(
            f"slices of shadow {name} from {first} on have run under other settings than those of the pipeline file "
            f"({apart}); promote it with the file that it has run with, or tidemark reprocess {pipeline.name} --shadow "
            f"{name} --from {first}"
        )
    if behind := stale(shadow):
        raise UserError(f"slices of shadow {name} are stale, from {grid.name(min(behind))} on; {command} mends them")
    if lacking := list(ranges(number for number in served.entries if number not in shadow.entries)):
        first, end = grid.name(lacking[0].start), grid.name(lacking[-1].stop)
        raise UserError(
            f"shadow {name} lacks slices that are served, from {first} to {end} (exclusive); {command} --to {end}"
        )
    if all((now := served.entry(number)) and now.run == entry.run for number, entry in shadow.entries.items()):
        raise UserError(f"shadow {name} is what {pipeline.name} serves already")


def _promotion(stored: pd.DataFrame, name: str) -> int | None:
    """The commit that has promoted a shadow, if that is the last promotion that was not taken back.

    Raises:
        UserError: another one is.
    """
    standing: list[tuple[str, int]] = []
    brought = stored[["commit", "brought"]].dropna().drop_duplicates().sort_values("commit")
    for commit, text in brought.itertuples(index=False):
        told = json.loads(text)
        if "promoted" in told:
            standing.append((told["promoted"], int(commit)))
        else:
            standing.pop()
    if standing and standing[-1][0] != name and name in dict(standing):
        raise UserError(f"shadow {standing[-1][0]} was promoted after {name}; roll that back first")
    return standing[-1][1] if standing and standing[-1][0] == name else None


def _copied(shadow: Ledger, served: Ledger, name: str, token: str) -> Staged | None:
    """The files of a shadow's table once more, in the folder of the one that is served, whose log has none of them."""
    log, table = DeltaLog.open(getattr(shadow.tables, name)), getattr(served.tables, name)
    if log is None or log.files.empty:
        return None
    target = file_system(table)
    paths = {path: f"{FOLDER}{run_of(path)}/{token}/{n}.parquet" for n, path in enumerate(log.files["path"])}
    for folder in {path.rpartition("/")[0] for path in paths.values()}:
        target.create_dir(folder)

    def copy(path: str) -> None:
        with log.folder.open_input_stream(path) as source, target.open_output_stream(paths[path]) as written:
            shutil.copyfileobj(source, written)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(copy, paths))
    files = tuple(described(table, log.schema, paths.values()))
    if (rows := sum(file.rows for file in files)) != log.files["rows"].sum():
        raise FaultError(
            f"{table} has {rows:,} rows in copies of files of {log.path}, and those have others; run it again"
        )
    return Staged(table, log.schema, files)


def _as_before(served: Ledger, name: str, promoted: int, shadow: str) -> Staged | None:
    """The files that a table had until a commit of the ledger."""
    log = DeltaLog.open(getattr(served.tables, name))
    if log is None:
        return None
    try:
        before = log.before(promoted)
        files = tuple(described(log.path, log.schema, before.files["path"] if before else ()))
    except FileNotFoundError as error:
        raise UserError(
            f"{log.path} no longer has files of the answer before shadow {shadow} was promoted ({error}): they were "
            "vacuumed; give the pipeline file its old settings, and run that as a shadow"
        ) from None
    return Staged(log.path, log.schema, files)


def _commit(
    spark: SparkSession,
    pipeline: Pipeline,
    served: Ledger,
    rows: Mapping[datetime, dict[str, Any]],
    ran_in: Mapping[int, int],
    staged: Mapping[str, Staged],
    told: Mapping[str, str],
) -> Moved:
    """Let files be those of slices, by ledger rows that say in which commit each ran; other files of these go."""
    commit, now = served.number + 1, datetime.now(UTC)
    grid, opened = served.grid, Opened()
    start, end = min(ran_in), max(ran_in) + 1
    run = StagedRun(uuid4().hex, range(start, end), staged)
    again = [number for number in ran_in if served.entry(number)]
    ready = prepare(spark, served.tables, grid, [run], again, opened)
    brought = json.dumps({**told, "at": format_instant(now)})
    new = {"commit": commit, "committed_at": now, "format": WITH_SHADOWS, "brought": brought}
    taken = [
        {**rows[grid.datetime_of(number)], **new, "attempt": _attempt(served.entry(number)), "ran_in": ran}
        for number, ran in ran_in.items()
    ]
    served.commit(taken, commit, ready.references, ready.before, opened)
    publish(served.tables, grid, commit, ready.references, opened)
    files: list[DataFile] = [file for one in staged.values() for file in one.files]
    behind = ranges(stale(Ledger.read(served.tables, grid)))
    return Moved(
        pipeline.name,
        next(iter(told.values())),
        commit,
        len(ran_in),
        grid.name(start),
        grid.name(end),
        len(files),
        sum(file.size for file in files),
        tuple((grid.name(one.start), grid.name(one.stop)) for one in behind),
    )


def _attempt(before: Entry | None) -> int:
    return before.attempt + 1 if before else 1
