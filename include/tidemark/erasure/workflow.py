"""Rows that stem from some input rows taken out of all that a pipeline has, its shadows among it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.allowed_functions import ColumnsOf
from tidemark.config.candidate_version import called, shadow_of
from tidemark.config.sides import SideName
from tidemark.delta.filesystem import file_system, files_under
from tidemark.delta.log_files import Removed
from tidemark.erasure.logical import Forgetting, forget_rows, plan_forgetting
from tidemark.erasure.physical import erase, forget_aside, leftovers, removable, rows_aside
from tidemark.errors import PipelineFileError, UserError
from tidemark.joins import Join, join_of
from tidemark.ledger.config_fingerprint import under_others
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx import project
from tidemark.sources.stored_input import schemas_of, stored_inputs
from tidemark.spark.engine import engine_of
from tidemark.spark.expression_sandbox import confined, in_one_line
from tidemark.spark.lazy_session import awake
from tidemark.timegrid.slices import ranges
from tidemark.versions.candidates import as_served, shadows


@dataclass(frozen=True)
class Forgot:
    """What was forgotten of a pipeline's tables, or of a shadow's, or would be."""

    pipeline: str
    rows: dict[str, int]
    """How many rows went, by table."""
    slices: tuple[tuple[str, str], ...]
    """The slices that have lost some, as ranges: the first one's start, the last one's end."""
    erased: Removed
    """Files with such rows that no table has, removed."""
    docs: Removed
    """Results of Great Expectations, and their pages, removed."""
    left: int
    """How many files with such rows are left on disk, as was asked for."""
    dry_run: bool

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class _Planned:
    pipeline: Pipeline
    """As it has run."""
    join: Join
    forgetting: Forgetting
    aside: int
    """How many rows of output that was refused."""


def forget(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str,
    where: Mapping[SideName, str],
    by: str,
    *,
    dry_run: bool = False,
    leave_files: bool = False,
) -> list[Forgot]:
    """Forget the input rows that meet a predicate of their side, SQL over the input's own columns.

    They go from the tables of the pipeline and of its shadows, no run reads them again, and then their bytes go:
    unless the files are left, so that change feeds can still tell of them. Killed, the same again goes on.

    Raises:
        UserError: a predicate is none, a table does not tell which rows these are, or there are some that stay.
        SliceOrderError: another process has committed meanwhile.
        FaultError: what was written anew is not what stays, or other processes never let go of a table.
    """
    session = awake(spark)
    versions = [pipeline, *(shadow_of(pipeline, one.name) for one in shadows(pipeline, lake))]
    planned = [_planned(session, one, lake, where) for one in versions if Ledger.of(one, lake).last]
    if not planned:
        raise UserError(f"{pipeline.name} has committed no slice, so that there is nothing to forget")
    return [_carried_out(session, one, where, by, dry_run=dry_run, leave_files=leave_files) for one in planned]


def _planned(spark: SparkSession, pipeline: Pipeline, lake: str, where: Mapping[SideName, str]) -> _Planned:
    ran = as_served(pipeline, lake)
    ledger = Ledger.of(ran, lake)
    settings = ledger.last.settings if ledger.last else ""
    if other := next(under_others(ledger.entries.values(), settings, ledger.grid), None):
        first = ledger.grid.name(other[0])
        raise UserError(
            f"slices of {called(ran)} from {first} on have run under other settings than the last one; tidemark "
            f"reprocess {called(ran)} --from {first} first"
        )
    if ran.join.api == "cogroup":
        raise UserError(
            f"{called(ran)} emits groups of rows (api: cogroup), of which none can be taken out; delete the rows in "
            "the input, and reprocess the slices that they are in"
        )
    if files_under(file_system(ledger.tables.twin)):
        raise UserError(
            f"{called(ran)} has a streaming twin, whose tables and checkpoint stay; remove the folder "
            f"{ledger.tables.twin} and run the same command again"
        )
    inputs = stored_inputs(spark, ran, lake)
    for source in inputs:
        if (text := where.get(source.side.name)) is not None:
            _check(spark, source.side.name, text, source.side.schema)
    aside = rows_aside(spark, ran, ledger.tables, where)
    join = join_of(ran, spark, schemas_of(inputs))
    return _Planned(ran, join, plan_forgetting(spark, ran, ledger, where), sum(aside.values()))


def _check(spark: SparkSession, side: SideName, text: str, schema: T.StructType) -> None:
    """See that a predicate is one, over an input's columns, and the same in every run.

    Raises:
        UserError: it is not.
    """
    rows = engine_of(spark).empty(schema)
    try:
        filtered = rows.where(confined(spark, text, ColumnsOf(tuple(schema.names))).column)
        varies = engine_of(spark).depends_on_the_run(filtered)
    except PipelineFileError as error:
        raise UserError(f"--{side}: {error}") from None
    except PySparkException as error:
        raise UserError(f"--{side}: {in_one_line(error)}") from None
    if varies:
        raise UserError(f"--{side}: {text} depends on the time of the run; write the value itself")


def _carried_out(
    spark: SparkSession,
    planned: _Planned,
    where: Mapping[SideName, str],
    by: str,
    *,
    dry_run: bool,
    leave_files: bool,
) -> Forgot:
    what, tables, grid = planned.forgetting, planned.forgetting.ledger.tables, planned.forgetting.ledger.grid
    rows = what.rows | ({"rejected_output": planned.aside} if planned.aside else {})
    slices = tuple((grid.name(one.start), grid.name(one.stop)) for one in ranges(what.numbers))
    erased, docs, left = Removed(), Removed(), 0
    if dry_run:
        now = datetime.now(UTC)
        erased = removable(leftovers(spark, planned.pipeline, tables, where, now))
        docs = project.forget(tables, now, dry_run=True)
    else:
        told = forget_rows(spark, what, planned.join, by)
        forget_aside(spark, planned.pipeline, tables, where)
        at = datetime.fromisoformat(told.at)
        docs = project.forget(tables, at, dry_run=False)
        files = leftovers(spark, planned.pipeline, tables, where, at)
        if leave_files:
            left = len(removable(files).files)
        else:
            erased = erase(tables, files, told)
    return Forgot(called(planned.pipeline), rows, slices, erased, docs, left, dry_run)
