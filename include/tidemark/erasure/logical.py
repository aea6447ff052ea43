"""Rows that stem from some input rows taken out of a pipeline's tables, in one commit of the ledger and of each table.

A file with such rows and others is written again as two beforehand, without data change; then those with such rows
go. So change feeds tell of these as deletes, and of nothing else: docs/decisions/0047-forgetting.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.allowed_functions import ColumnsOf
from tidemark.config.expressions import columns_of, fields_told, over_row, renamed
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_instant
from tidemark.delta.staging import PRUNED_BY, read_files
from tidemark.delta.table import DataFile, DeltaLog, Opened, OvertakenError
from tidemark.errors import FaultError, SliceOrderError, UserError
from tidemark.formatting import quoted
from tidemark.joins import Join
from tidemark.joins.window_output import HALVES
from tidemark.ledger.checkpoint_files import numbered
from tidemark.ledger.erasure_records import Forgotten, LeftOut, forgets, forgotten_of
from tidemark.ledger.ledger import WITH_FORGOTTEN, Counts, Entry, Ledger, newest_rows
from tidemark.ledger.rewrite_verification import prove
from tidemark.ledger.state_fingerprint import digests, state_parts
from tidemark.spark.dataframe_utils import of_file
from tidemark.spark.expression_sandbox import confined
from tidemark.tables.run_files import HELD, run_of, spans, stage_run
from tidemark.tables.table_changes import QUARANTINED, TRIES, References, publish
from tidemark.timegrid.slices import Grid, ranges

TABLES = ("emissions", "late", "checkpoint", QUARANTINED)
"""The tables that follow the ledger and have rows of the inputs."""
_OF_INPUTS = ("late", "checkpoint")
"""Those that have a row of one input as it was; others have what was emitted."""
_ALONE: Mapping[SideName, str] = {"left": "padded_right", "right": "padded_left"}
"""What is emitted without a row of that side."""


@dataclass(frozen=True)
class Forgetting:
    """What there is to forget in the tables that follow a ledger."""

    pipeline: Pipeline
    ledger: Ledger = field(repr=False)
    where: Mapping[SideName, str]
    """Predicates by side, over the input's own columns."""
    files: Mapping[str, Mapping[str, int]] = field(repr=False)
    """The files that have such rows, and how many, by table."""
    slices: Mapping[str, Mapping[int, int]] = field(repr=False)
    """How many each slice has, by table; of `checkpoint`: how many are in the buffers at its end."""
    carried: Mapping[int, Counter[SideName]] = field(repr=False)
    """The last, by side."""

    @property
    def rows(self) -> dict[str, int]:
        """How many rows of each table go."""
        return {name: sum(files.values()) for name, files in self.files.items()}

    @property
    def numbers(self) -> list[int]:
        """The slices that lose rows, in order."""
        return sorted({number for of_table in self.slices.values() for number in of_table})


def rows_forgotten(entry: Entry) -> int:
    """How many rows of the state after a slice were forgotten since it ran."""
    return sum(one.rows.get("checkpoint", 0) for one in forgotten_of(entry.forgotten))


def without(carried: DataFrame, left_out: LeftOut) -> DataFrame:
    """Rows of one side each, in columns `side`, `left` and `right`, that meet none of some predicates."""
    for side, texts in left_out.items():
        for text in texts:
            carried = carried.where(~_of_input(carried.sparkSession, side, text))
    return carried


def meets(spark: SparkSession, pipeline: Pipeline, where: Mapping[SideName, str], log: DeltaLog, name: str) -> Column:
    """Whether a row of a table stems from an input row that meets a predicate; never null.

    Raises:
        UserError: the table has not the columns that tell.
    """
    found = [F.lit(False)]
    for side, text in where.items():
        if name in _OF_INPUTS:
            _refuse_unknown_fields(log, side, text)
            found.append(_of_input(spark, side, text))
        elif _emits(pipeline, side):
            names = {one: quoted(name) for one, name in _emitted_as(pipeline, side, text, log).items()}
            told = confined(spark, renamed(text, names.__getitem__), ColumnsOf(tuple(log.schema.names)))
            found.append(_met(told.column) & (F.col("_emission") != _ALONE[side]))
    return reduce(Column.__or__, found)


def columns_told(pipeline: Pipeline, where: Mapping[SideName, str], log: DeltaLog, name: str) -> set[str]:
    """The columns of a table that tell whether a row is among those of `meets`.

    Raises:
        UserError: it lacks one.
    """
    if name in _OF_INPUTS:
        return {"side", *where}
    told = (_emitted_as(pipeline, side, text, log).values() for side, text in where.items() if _emits(pipeline, side))
    return {"_emission"}.union(*told)


def plan_forgetting(
    spark: SparkSession, pipeline: Pipeline, ledger: Ledger, where: Mapping[SideName, str]
) -> Forgetting:
    """What there is to forget; no file is written.

    Raises:
        UserError: a table has not the columns that tell which rows these are.
    """
    files: dict[str, dict[str, int]] = {}
    slices: dict[str, Counter[int]] = {}
    carried: dict[int, Counter[SideName]] = {}
    for name in TABLES:
        log = DeltaLog.open(getattr(ledger.tables, name))
        if log is None or log.files.empty:
            continue
        for path, numbers, side, rows in _found(
            spark, log, name, ledger.grid, meets(spark, pipeline, where, log, name)
        ):
            files.setdefault(name, {}).setdefault(path, 0)
            files[name][path] += rows
            for number in numbers:
                slices.setdefault(name, Counter())[number] += rows
                if name == "checkpoint":
                    carried.setdefault(number, Counter())[side] += rows
    return Forgetting(pipeline, ledger, where, files, slices, carried)


def forget_rows(spark: SparkSession, planned: Forgetting, join: Join, by: str) -> Forgotten:
    """Take the rows out of the tables, and tell it in the ledger; what was forgotten before is told once.

    Raises:
        SliceOrderError: another process has committed meanwhile; nothing is forgotten.
        FaultError: what was written anew has not the rows that stay.
    """
    known = next((one for one in forgets(planned.ledger.tables) if one.where == planned.where), None)
    if known and not planned.files:
        return known
    ledger, commit, opened = planned.ledger, planned.ledger.number + 1, Opened()
    dropped = {name: _apart(spark, planned, name) for name in planned.files}
    logs = {name: DeltaLog.open(getattr(ledger.tables, name)) for name in ("emissions", "late", "checkpoint")}
    before = {name: log.version for name, log in logs.items() if log}
    told = Forgotten(dict(planned.where), by, format_instant(datetime.now(UTC)), planned.rows, {})
    rows = list(_ledger_rows(planned, told, commit, _digests_without(spark, planned, join)))
    references = References({}, dropped=dropped)
    ledger.commit(rows, commit, references, before, opened)
    publish(ledger.tables, ledger.grid, commit, references, opened)
    return told


def _emits(pipeline: Pipeline, side: SideName) -> bool:
    """Whether what is emitted has rows of a side."""
    return side == "left" or pipeline.join.type not in HALVES


def _of_input(spark: SparkSession, side: SideName, text: str) -> Column:
    told = confined(spark, over_row(text, side), ColumnsOf(SIDES)).column
    return _met(told) & (F.col("side") == side)


def _met(predicate: Column) -> Column:
    return F.coalesce(predicate, F.lit(False))


def _refuse_unknown_fields(log: DeltaLog, side: SideName, text: str) -> None:
    kind = log.schema[side].dataType if side in log.schema.names else T.StructType()
    known = {one.lower() for one in kind.names} if isinstance(kind, T.StructType) else set()
    if lacking := [one for one in columns_of(text) if one.lower() not in known]:
        raise UserError(
            f"--{side} {text}: {log.path} was written before the input had a column {lacking[0]}, so that it does not "
            "tell which rows these are; take another column"
        )


def _emitted_as(pipeline: Pipeline, side: SideName, text: str, log: DeltaLog) -> dict[str, str]:
    """What a table of emissions calls the columns of an input that a predicate reads.

    Raises:
        UserError: it lacks one, or some of its files do.
    """
    if pipeline.flatten is not None:
        known = {column.lower(): name for name, column in fields_told(pipeline.flatten).items()}
    elif isinstance(pipeline.select, dict):
        known = {expression.strip().strip("`").lower(): name for name, expression in pipeline.select.items()}
    else:
        known = {name.lower(): name for name in log.schema.names}
    names: dict[str, str] = {}
    for one in columns_of(text):
        name = known.get(f"{side}_{one}".lower())
        if name is None or name not in log.schema.names or not _is_in_all_files(log, name):
            raise UserError(
                f"--{side} {text}: {log.path} has not the column {side}_{one} of all its rows, so that it does not "
                f"tell which these are; let the output have it and tidemark reprocess {pipeline.name} from the first "
                "slice, or take another column"
            )
        names[one] = name
    return names


def _is_in_all_files(log: DeltaLog, column: str) -> bool:
    """Whether all files of a table have a column: it is null in those that were written before it was there."""
    for path, nulls in zip(log.files["path"], log.nulls(column), strict=True):
        if nulls is None:  # the log does not tell of it
            with log.folder.open_input_file(unquote(path)) as file:
                if column not in pq.read_schema(file).names:
                    return False
    return True


def _found(
    spark: SparkSession, log: DeltaLog, name: str, grid: Grid, met: Column
) -> Iterator[tuple[str, range, SideName, int]]:
    """The rows that meet a predicate: by file, the slices that they belong to, and, of a checkpoint, side."""
    first, last = HELD[name]
    side = F.col("side") if name == "checkpoint" else F.lit("left")
    rows = read_files(spark, log.path, log.schema, log.files["path"]).where(met)
    start, stop = (grid.number_column(F.unix_micros(one)).alias(to) for one, to in ((first, "start"), (last, "stop")))
    told = rows.select(of_file(rows, "file_path").alias("file"), side.alias("of"), start, stop)
    place = places_of(log.files["path"])
    for row in told.groupBy(*told.columns).count().collect():
        stop = row["stop"] + (first == last)
        yield place(row["file"]), range(row["start"], stop), row["of"], row["count"]


def places_of(paths: Iterable[str]) -> Callable[[str], str]:
    """A function that gives, of the files of a table, the path of the one that Spark names by an address."""
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(unquote(path).rpartition("/")[2], []).append(path)

    def place(address: str) -> str:
        plain = unquote(address)
        return next(one for one in by_name[plain.rpartition("/")[2]] if plain.endswith(f"/{unquote(one)}"))

    return place


def _apart(spark: SparkSession, planned: Forgetting, name: str) -> tuple[str, ...]:
    """The files of a table that have the rows to forget and no others, once there are such.

    Raises:
        SliceOrderError: another process has changed the files meanwhile.
    """
    path, found = getattr(planned.ledger.tables, name), planned.files[name]
    log = _having(DeltaLog.open(path), path, found)
    rows = dict(zip(log.files["path"], log.files["rows"], strict=True))
    mixed = [file for file, count in found.items() if rows[file] != count]
    met = meets(spark, planned.pipeline, planned.where, log, name)
    come: list[DataFile] = []
    goes: list[DataFile] = []
    for run in sorted(set(map(run_of, mixed))):
        mine = [file for file in mixed if run_of(file) == run]
        source = read_files(spark, log.path, log.schema, mine)
        stays, parted = source.where(~met), source.where(met).coalesce(1)
        kept, gone = stage_run(stays, log.path, run), stage_run(parted, log.path, run)
        prove(stays, kept, HELD[name][0])
        if sum(one.rows for one in (*kept.files, *gone.files)) != sum(rows[file] for file in mine):
            raise FaultError(f"{log.path}: files of run {run} have other rows than they had; run the command again")
        come += kept.files
        goes += (replace(one, stats=bare(one.stats)) for one in gone.files)
    if mixed:
        _commit(path, [*come, *goes], mixed)
    return (*(file for file in found if file not in mixed), *(one.path for one in goes))


def _commit(path: str, come: Sequence[DataFile], gone: Sequence[str]) -> None:
    for _ in range(TRIES):
        try:
            _having(DeltaLog.open(path), path, gone).commit(come, gone, changes_data=False)
        except OvertakenError:
            continue
        return
    raise FaultError(f"other processes keep writing to {path}; run the command again")


def _having(log: DeltaLog | None, path: str, files: Iterable[str]) -> DeltaLog:
    if log is None or not set(files) <= set(log.files["path"]):
        raise SliceOrderError(
            f"another process has changed files of {path} meanwhile, so that nothing is forgotten; run the same "
            "command again"
        )
    return log


def bare(stats: str) -> str:
    """What a log says of a file's rows, but for their values: how many, and of which slices."""
    told = json.loads(stats)
    kinds = ("minValues", "maxValues", "nullCount")
    known = {kind: {name: one for name, one in told.get(kind, {}).items() if name in PRUNED_BY} for kind in kinds}
    return json.dumps({"numRecords": told["numRecords"], **known})


def _digests_without(spark: SparkSession, planned: Forgetting, join: Join) -> dict[int, str]:
    """The digest of each state that loses rows, once it has lost them."""
    ledger, log = planned.ledger, DeltaLog.open(planned.ledger.tables.checkpoint)
    if log is None or not planned.carried:
        return {}
    known = spans(log, "checkpoint", ledger.grid)
    wanted = set(planned.carried)
    paths = [path for path, span in known.items() if span is None or wanted.intersection(span)]
    held = {number for path in paths for number in known[path] or ledger.entries}
    rows = read_files(spark, log.path, log.schema, paths)
    left = rows.where(~meets(spark, planned.pipeline, planned.where, log, "checkpoint"))
    parts = state_parts(numbered(left, ledger.grid), join).toPandas()
    lost = {n: rows_forgotten(ledger.entries[n]) + sum(of.values()) for n, of in planned.carried.items()}
    found: dict[int, str] = {}
    for slices in ranges(held.intersection(ledger.entries)):
        ends = {number: ledger.entries[number].watermarks for number in slices}
        mine = parts[(parts["since"] >= slices.start) & (parts["since"] < slices.stop)]
        found |= digests(mine, ends, lost)
    return {number: found[number] for number in wanted}


def _ledger_rows(
    planned: Forgetting, told: Forgotten, commit: int, digest_of: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    """The rows of slices that lose rows, of those that have continued their states, and of the last one."""
    ledger = planned.ledger
    stored, last = newest_rows(ledger.tables), ledger.last
    assert last is not None, "something is committed"
    continued = {n + 1 for n in digest_of if _continues(ledger, n + 1)}
    for number in sorted({*planned.numbers, *continued, last.number}):
        entry, before = ledger.entries[number], stored[ledger.grid.datetime_of(number)]
        mine = {name: of_table[number] for name, of_table in planned.slices.items() if of_table.get(number)}
        list_ = [*map(asdict, forgotten_of(entry.forgotten)), asdict(replace(told, rows=mine))]
        came = planned.carried[number - 1] if number in continued else Counter[SideName]()
        quarantined, gone = before.get("quarantined"), planned.carried.get(number, Counter[SideName]())
        counts = {str(side): _counts(before[side], came[side], gone[side]) for side in SIDES}
        yield before | {
            "commit": commit,
            "committed_at": datetime.now(UTC),
            "format": WITH_FORGOTTEN,
            "emissions": before["emissions"] - mine.get("emissions", 0),
            "quarantined": quarantined and quarantined - mine.get(QUARANTINED, 0),
            **counts,
            "digest": entry.digest and digest_of.get(number, entry.digest),
            "carried_in_digest": digest_of[number - 1] if number in continued else entry.carried_in_digest,
            "ran_in": entry.commit,
            "brought": None,
            "forgotten": json.dumps(list_),
        }


def _continues(ledger: Ledger, number: int) -> bool:
    """Whether a slice has continued the state of the one before as that stands."""
    entry, before = ledger.entry(number), ledger.entry(number - 1)
    return bool(entry and before and entry.carried_in_digest and entry.carried_in_digest == before.digest)


def _counts(row: Mapping[str, int], came: int, out: int) -> dict[str, int]:
    """Where an input's rows went without so many in the buffers: those that were read were read, and were evicted."""
    was = Counts(**row)
    return asdict(Counts.of(was.read, was.carried_in - came, was.late, was.rejected, was.carried_out - out))
