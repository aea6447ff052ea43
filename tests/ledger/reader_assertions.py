"""What anyone sees who reads a pipeline's tables plainly, at any version, by whatever reader."""

from collections import Counter

import pandas as pd
import polars as pl
import pyarrow.parquet as pq

from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.ledger.ledger import read_attempts
from tidemark.tables.run_files import SLICE_COLUMNS, merged_at, run_of
from tidemark.tables.table_changes import FOLLOWING
from tidemark.timegrid.slices import Grid

STORED = ("emissions", "late", "checkpoint")


def every_version_is_whole(tables: PipelineTables, grid: Grid) -> int:
    """See that each version of each table has the rows of committed slices, each in one attempt; how many there are."""
    ledger = read_attempts(DeltaTableHandle.open(tables.ledger), grid)
    seen = 0
    for name in there(tables):
        path = getattr(tables, name)
        for version in range(DeltaTableHandle.open(path).version + 1):
            log = DeltaTableHandle.open(path, version)
            then = ledger[ledger["commit"] <= log.txn_version].drop_duplicates("number", keep="last")
            told = {row["number"]: (row["run"], expected(name, row)) for row in then.to_dict("records")}
            found = rows_by_slice(log, name, grid)
            for number, stored in found.items():
                run, count = told.get(number, (None, 0))
                by_run = of_the_time(stored, ledger, number)
                assert set(by_run) == {run}, f"{name} version {version}, slice {number}: {by_run}, the ledger has {run}"
                assert count is None or by_run[run] == count, f"{name} version {version}, slice {number}"
            absent = {number: count for number, (_, count) in told.items() if count and number not in found}
            assert not absent, f"{name} version {version} lacks slices {absent}"
            seen += 1
    return seen


def of_the_time(by_run: Counter, ledger: pd.DataFrame, number: int) -> Counter:
    """Rows of a slice by their run: in a merged file of that which stood when it was merged."""
    found: Counter = Counter()
    for run, count in by_run.items():
        if (merged := merged_at(run)) is None:
            found[run] += count
        else:
            stood = ledger[(ledger["number"] == number) & (ledger["commit"] <= merged)]
            found[stood["run"].iloc[-1]] += count
    return found


def there(tables: PipelineTables) -> list[str]:
    """The tables that there are: `quality` only where something is expected, `quarantined` where something was."""
    return [name for name in FOLLOWING if DeltaTableHandle.open(getattr(tables, name))]


def expected(name: str, row: dict) -> int | None:
    """How many rows the ledger has for a slice; of the side output it does not tell all."""
    match name:
        case "emissions":
            return row["emissions"]
        case "quarantined":
            return row["quarantined"] or 0
        case "checkpoint":
            return row["left"]["carried_out"] + row["right"]["carried_out"]
    return None


def rows_by_slice(log: DeltaTableHandle, name: str, grid: Grid) -> dict[int, Counter]:
    """How many rows of each run belong to each slice, by the files of a version."""
    found: dict[int, Counter] = {}
    columns = list(dict.fromkeys(SLICE_COLUMNS[name]))
    for path in log.files["path"]:
        for row in pq.read_table(f"{log.path}/{path}", columns=columns, partitioning=None).to_pylist():
            first, *until = (grid.number_at(to_micros(row[column])) for column in columns)
            for number in range(first, until[0] if until else first + 1):
                found.setdefault(number, Counter())[run_of(path)] += 1
    return found


def readers_agree(spark, tables: PipelineTables, grid: Grid) -> int:
    """See that Spark, delta-rs and Polars count the committed emissions, by a plain read."""
    ledger = read_attempts(DeltaTableHandle.open(tables.ledger), grid).drop_duplicates("number", keep="last")
    committed = int(ledger["emissions"].sum())
    for name in there(tables):
        path = getattr(tables, name)
        counts = {
            "Spark": spark.read.format("delta").load(path).count(),
            "delta-rs": DeltaTableHandle.open(path).table.count(),
            "Polars": pl.scan_delta(path).select(pl.len()).collect().item(),
        }
        assert len(set(counts.values())) == 1, (name, counts)
        assert name != "emissions" or counts["Spark"] == committed
    return committed
