"""Tables that an earlier version wrote, taken over: docs/tables.md has what differs.

The ledger comes first, so that no earlier version goes on; then each table in one commit. Killed in between, the same
again goes on from there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.delta.pipeline_tables import PipelineTables, read_now
from tidemark.delta.staging import Staged, stage
from tidemark.delta.table import APPLICATION, CONFIGURATION, DeltaLog, OvertakenError
from tidemark.errors import SliceOrderError
from tidemark.formatting import quoted
from tidemark.ledger.ledger import FORMAT, SCHEMA, Ledger, attempts
from tidemark.spark.engine import engine_of
from tidemark.spark.engine_protocol import ChangeableSnapshot
from tidemark.tables.run_files import HELD
from tidemark.tables.table_changes import FOLLOWING
from tidemark.timegrid.slices import Grid, ranges

_RUN = "_run"
"""The column, and partition, that a row's run stood in."""


def is_of_older_format(pipeline: Pipeline, lake: str) -> bool:
    """Whether something of a pipeline's tables is as an earlier version wrote it."""
    tables = PipelineTables.of(pipeline, lake)
    log = DeltaLog.open(tables.ledger)
    if log is None:
        return False
    formats = log.read(["format"])["format"].to_pylist()
    return bool(min(formats, default=FORMAT) < FORMAT or list(_older(tables)))


def upgrade(spark: SparkSession, pipeline: Pipeline, lake: str) -> None:
    """Take the tables of a pipeline over.

    Raises:
        SliceOrderError: another process commits to them; nothing is lost, and the same again goes on.
        UserError: a later version wrote them.
    """
    tables, grid = PipelineTables.of(pipeline, lake), Grid.of(pipeline.slices)
    log = DeltaLog.open(tables.ledger)
    assert log is not None, "there is something to take over"
    for name in _older(tables):
        engine_of(spark).changeable(getattr(tables, name))  # before anything is changed
    try:
        if min(log.read(["format"])["format"].to_pylist(), default=FORMAT) < FORMAT:
            log.overwrite(pa.Table.from_pylist(list(_as_of_now(log)), SCHEMA))
    except OvertakenError:
        raise SliceOrderError(f"another process has committed slices of {tables.root}; run the command again") from None
    known = DeltaLog.open(tables.ledger)
    assert known is not None, "it has just been written"
    ledger = Ledger.of_attempts(tables, grid, attempts(known, grid))
    for name in list(_older(tables)):
        _take_over(spark, ledger, name)


def _older(tables: PipelineTables) -> Iterator[str]:
    for name in FOLLOWING:
        log = DeltaLog.open(getattr(tables, name))
        if log is not None and log.partitioned_by == [_RUN]:
            yield name


def _as_of_now(log: DeltaLog) -> Iterator[dict[str, Any]]:
    """The rows of a ledger in the present format.

    Format 1 had no numbers of commits, and did not say what the first slice of each job did: it took all rows that had
    landed.
    """
    runs: set[str] = set()
    for row in sorted(log.read(SCHEMA.names).to_pylist(), key=lambda row: (row["slice"], row["attempt"])):
        told = {**dict.fromkeys(SCHEMA.names), **row, "format": FORMAT}
        if told["commit"] is None:
            told |= {"commit": 0, "landing": "append", "landed": told["landed"] if row["run"] in runs else 0}
        runs.add(row["run"])
        yield told


def _take_over(spark: SparkSession, ledger: Ledger, name: str) -> None:
    """Let a table have the rows of committed slices alone, its files without partitions."""
    path = getattr(ledger.tables, name)
    properties = CONFIGURATION | ({"delta.enableChangeDataFeed": "true"} if name == "emissions" else {})
    told = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ({told})")
    log, snapshot = DeltaLog.open(path), engine_of(spark).changeable(path)
    assert log is not None, "it is there"
    rows = _committed(read_now(spark, path), ledger, name).withColumnRenamed(_RUN, "run")
    staged = stage(rows.repartition("run"), path, f"upgrade={uuid4().hex[:8]}", by="run")
    snapshot.replace([json.dumps(action) for action in _actions(log, snapshot, staged, ledger.number)])


def _committed(stored: DataFrame, ledger: Ledger, name: str) -> DataFrame:
    """The rows of the newest attempts; those of a checkpoint cut to the slices that their run is the newest of."""
    grid, spark = ledger.grid, stored.sparkSession
    spans = [
        (run, grid.datetime_of(span.start), grid.datetime_of(span.stop))
        for run in {entry.run for entry in ledger.entries.values()}
        for span in ranges(number for number, entry in ledger.entries.items() if entry.run == run)
    ]
    wanted = spark.createDataFrame(spans, f"{_RUN} string, _start timestamp, _stop timestamp")
    found = stored.join(F.broadcast(wanted), _RUN).select(*stored.columns, "_start", "_stop")
    first, last = HELD[name]
    if first == last:
        inside = (F.col(first) >= F.col("_start")) & (F.col(first) < F.col("_stop"))
        return found.where(inside).drop("_start", "_stop")
    if last not in found.columns:
        found = found.withColumnRenamed("evicted_in", last)
    until = F.coalesce(last, "_stop")
    found = found.where((F.col(first) < F.col("_stop")) & (until > F.col("_start")))
    return found.withColumns({first: F.greatest(first, "_start"), last: F.least(until, "_stop")}).drop(
        "_start", "_stop"
    )


def _actions(log: DeltaLog, snapshot: ChangeableSnapshot, staged: Staged, number: int) -> Iterable[dict[str, Any]]:
    """The commit of Delta's log: other columns, no partitions, other files."""
    now = int(time.time() * 1000)
    metadata = snapshot.metadata
    yield {"metaData": {**metadata, "schemaString": staged.schema.json(), "partitionColumns": []}}
    yield {"txn": {"appId": APPLICATION, "version": number, "lastUpdated": now}}
    for path, size in zip(log.files["path"], log.files["size"], strict=True):
        yield {"remove": {"path": path, "deletionTimestamp": now, "dataChange": True, "size": int(size)}}
    for one in staged.files:
        added = {"path": one.path, "partitionValues": {}, "size": one.size, "modificationTime": one.modified}
        yield {"add": {**added, "dataChange": True, "stats": one.stats}}
