"""Read a pipeline's committed rows, current or as of an earlier watermark."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Literal

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config.types import parse_instant, to_micros
from tidemark.delta.table import DeltaTableHandle
from tidemark.delta.table_reader import read_newest
from tidemark.errors import UserError
from tidemark.formatting import quote_identifier
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import read_attempts

TableName = Literal["emissions", "late"]


def read_committed_rows(
    spark: SparkSession, ledger: Ledger, name: TableName, as_of: datetime | int | None = None
) -> DataFrame:
    """Read the committed rows of a table, current or as readers saw them at an earlier watermark.

    Args:
        spark: A session.
        ledger: The ledger, which the tables have to follow.
        name: Name of the table.
        as_of: Combined watermark: an instant, in UTC if it has no zone, or ms since 1970 UTC. The result has the slices
            at whose end the watermark was at most that (inclusive), each in its newest attempt among the commits up to
            the one that passed it. Later reprocessing is excluded.

    Raises:
        UserError: The ledger does not record the table's version at that time.
    """
    path = getattr(ledger.tables, name)
    if as_of is None:
        return read_newest(spark, path)
    log = DeltaTableHandle.open(ledger.tables.ledger)
    assert log is not None, "something is committed"
    stored = read_attempts(log, ledger.grid)
    limit = to_micros(parse_instant(as_of)) // 1000 if isinstance(as_of, datetime) else as_of
    beyond = _combined_watermarks(stored) > limit
    if not beyond.any():
        return read_newest(spark, path)
    passed = int(stored["commit"][beyond].min())
    visible = select_visible_attempts(stored, beyond)
    is_of_passing_commit = visible["commit"] == passed
    before, after = (
        _version_before_commit(ledger, stored, name, passed),
        _version_before_commit(ledger, stored, name, passed + 1),
    )
    parts = [
        _rows_of_slices(spark, ledger, _read_version(spark, path, version), visible["number"][chosen])
        for version, chosen in ((before, ~is_of_passing_commit), (after, is_of_passing_commit))
    ]
    return parts[0].unionByName(parts[1], allowMissingColumns=True)


def select_visible_attempts(stored: pd.DataFrame, beyond: pd.Series[bool]) -> pd.DataFrame:
    """Select the attempts that readers saw before the first attempt beyond a watermark.

    The commit of that attempt may also have earlier slices, which are included. After a job restart watermarks are
    lower again, so later attempts may not be beyond the watermark; they are excluded.

    Args:
        stored: All attempts.
        beyond: True for attempts beyond the watermark, at least one.
    """
    passed = stored["commit"][beyond].min()
    first = stored["number"][beyond & (stored["commit"] == passed)].min()
    before = (stored["commit"] < passed) | ((stored["commit"] == passed) & (stored["number"] < first))
    visible: pd.DataFrame = stored[~beyond & before].drop_duplicates("number", keep="last")
    return visible


def _combined_watermarks(stored: pd.DataFrame) -> pd.Series[float]:
    """Return the combined watermark at the end of each slice, in ms; NaN if unknown."""
    left, right = (pd.to_numeric(stored[f"{side}_watermark_ms"]) for side in ("left", "right"))
    both = pd.concat([left, right], axis=1).min(axis=1, skipna=False)
    batch_watermarks = pd.to_numeric(stored["batch_watermark_ms"])
    return batch_watermarks.fillna(pd.to_numeric(stored["sources_watermark_ms"])).fillna(both)


def _version_before_commit(ledger: Ledger, stored: pd.DataFrame, name: str, commit: int) -> int | None:
    """Return a table's version before a commit of the ledger; None for the current version.

    Raises:
        UserError: The ledger does not record the version.
    """
    versions = stored["table_versions_before"][(stored["commit"] == commit)].dropna()
    if versions.empty and commit <= ledger.last_commit:
        raise UserError(
            f"the ledger has no version of {getattr(ledger.tables, name)} before commit {commit}. Choose a later as_of."
        )
    return None if versions.empty else versions.iloc[0][name]


def _read_version(spark: SparkSession, path: str, version: int | None) -> DataFrame:
    if version is None:
        return read_newest(spark, path)
    return spark.read.format("delta").option("versionAsOf", version).load(path)


def _rows_of_slices(spark: SparkSession, ledger: Ledger, rows: DataFrame, numbers: Collection[int]) -> DataFrame:
    starts = [(ledger.grid.datetime_of(int(number)),) for number in numbers]
    slices = spark.createDataFrame(starts, "_slice timestamp")
    return rows.join(F.broadcast(slices), "_slice", "semi").select(*map(quote_identifier, rows.columns))
