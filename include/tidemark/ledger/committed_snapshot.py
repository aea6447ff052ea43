"""What readers see of a pipeline's answer, now and as it was."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Literal

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import read_newest
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import UserError
from tidemark.formatting import quote_identifier
from tidemark.ledger.ledger import Ledger, read_attempts

TableName = Literal["emissions", "late"]


def read_committed_rows(
    spark: SparkSession, ledger: Ledger, name: TableName, as_of: datetime | int | None = None
) -> DataFrame:
    """The rows of a table, as they stand now: a plain read, once the table has come to the ledger.

    With `as_of`, a combined watermark (an instant, or ms since 1970 UTC), what readers saw while it stood there: the
    slices at whose end it was at most that (inclusive), each in its newest attempt among the ledger's commits up to
    the one that took it further. What was reprocessed after that is left out.

    Raises:
        UserError: the table has not been kept as it was then.
    """
    path = getattr(ledger.tables, name)
    if as_of is None:
        return read_newest(spark, path)
    log = DeltaTableHandle.open(ledger.tables.ledger)
    assert log is not None, "something is committed"
    stored = read_attempts(log, ledger.grid)
    beyond = _combined_watermarks(stored) > (to_micros(as_of) // 1000 if isinstance(as_of, datetime) else as_of)
    if not beyond.any():
        return read_newest(spark, path)
    passed = int(stored["commit"][beyond].min())
    standing = attempts_visible_before(stored, beyond)
    late = standing["commit"] == passed
    before, after = (
        _version_before_commit(ledger, stored, name, passed),
        _version_before_commit(ledger, stored, name, passed + 1),
    )
    parts = [
        _rows_of_slices(spark, ledger, _read_version(spark, path, version), standing["number"][chosen])
        for version, chosen in ((before, ~late), (after, late))
    ]
    return parts[0].unionByName(parts[1], allowMissingColumns=True)


def attempts_visible_before(stored: pd.DataFrame, beyond: pd.Series[bool]) -> pd.DataFrame:
    """Of attempts those that readers saw before the first one beyond a watermark, which its commit may have had too.

    Where a job has restarted, watermarks are lower again behind that one.
    """
    passed = stored["commit"][beyond].min()
    first = stored["number"][beyond & (stored["commit"] == passed)].min()
    before = (stored["commit"] < passed) | ((stored["commit"] == passed) & (stored["number"] < first))
    visible: pd.DataFrame = stored[~beyond & before].drop_duplicates("number", keep="last")
    return visible


def _combined_watermarks(stored: pd.DataFrame) -> pd.Series[float]:
    """The combined watermark at the end of each slice; NaN where it is not known."""
    left, right = (pd.to_numeric(stored[f"{side}_watermark_ms"]) for side in ("left", "right"))
    both = pd.concat([left, right], axis=1).min(axis=1, skipna=False)
    batch_watermarks = pd.to_numeric(stored["batch_watermark_ms"])
    return batch_watermarks.fillna(pd.to_numeric(stored["advanced_watermark_ms"])).fillna(both)


def _version_before_commit(ledger: Ledger, stored: pd.DataFrame, name: str, commit: int) -> int | None:
    """The version of a table that held the answer before a commit; None for how it stands now.

    Raises:
        UserError: it is of before the tables were taken over.
    """
    versions = stored["tables_before"][(stored["commit"] == commit)].dropna()
    if versions.empty and commit <= ledger.number:
        raise UserError(
            f"{getattr(ledger.tables, name)} has not been kept as it was before commit {commit}: the tables were taken "
            "over from an earlier format since; choose a later as_of"
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
