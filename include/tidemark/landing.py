"""Which rows of an input landed between two of its versions, read from the table's own log."""

from __future__ import annotations

from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.errors import InputError
from tidemark.lake import DeltaInput

_COMMIT = "add struct<path: string, dataChange: boolean>, remove struct<path: string, dataChange: boolean>"


def landed_since(table: DeltaInput, seen: int) -> DataFrame:
    """Rows that landed after version `seen`, up to `table.version`; rewrites such as OPTIMIZE are not new rows.

    Raises:
        InputError: rows that were there have been deleted or changed since, or the log no longer reaches back.
    """
    if table.version == seen:
        return table.read().limit(0)
    if table.version < seen:
        raise InputError(
            f"input {table.name} is at version {table.version}, but the ledger has read version {seen}: the table was "
            "replaced or restored from a copy; give the pipeline a new `output`, or restore the table"
        )
    files = _data_files(table, seen)
    live = {unquote(path).rsplit("/", 1)[-1] for path in table.read().inputFiles()}
    gone = {version: sorted(names - live) for version, names in files.items() if names - live}
    parts = [_only(table.read(), sorted(set().union(*files.values()) & live))]
    # Files that a later rewrite replaced are read from the version that added them.
    parts += [_only(table.read(version), names) for version, names in gone.items()]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part, allowMissingColumns=True)
    return rows


def _data_files(table: DeltaInput, seen: int) -> dict[int, set[str]]:
    versions = range(seen + 1, table.version + 1)
    paths = [f"{table.path}/_delta_log/{version:020d}.json" for version in versions]
    try:
        actions = (
            table.spark.read.schema(_COMMIT)
            .json(paths)
            .where("add.dataChange OR remove.dataChange")
            .select(
                F.regexp_extract("_metadata.file_name", r"^(\d+)\.json$", 1).cast("int").alias("version"),
                F.col("add.path").alias("added"),
                F.col("remove.path").alias("removed"),
            )
            .collect()
        )
    except AnalysisException:
        raise InputError(
            f"the log of input {table.name} no longer has versions {seen + 1} to {table.version}, so new rows cannot "
            "be told from old ones; keep delta.logRetentionDuration longer than the pause between runs, and give the "
            "pipeline a new `output` to start over"
        ) from None
    changed = sorted({row["version"] for row in actions if row["removed"] is not None})
    if changed:
        raise InputError(
            f"input {table.name} is not append-only: version {', '.join(map(str, changed))} deleted or changed rows "
            f"that slices up to version {seen} have read; give the pipeline a new `output` to start over"
        )
    files: dict[int, set[str]] = {}
    for row in actions:
        files.setdefault(row["version"], set()).add(unquote(row["added"]).rsplit("/", 1)[-1])
    return files


def _only(rows: DataFrame, file_names: list[str]) -> DataFrame:
    return rows.where(F.col("_metadata.file_name").isin(file_names))
