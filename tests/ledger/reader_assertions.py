"""Assert that plain reads of a pipeline's tables give committed rows, at every version and with every reader."""

from collections import Counter

import pandas as pd
import polars as pl
import pyarrow.parquet as pq

from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.ledger.ledger_table import read_attempts
from tidemark.tables.run_files import SLICE_COLUMNS, parse_merge_commit, parse_run
from tidemark.tables.table_changes import LEDGER_MANAGED_TABLES
from tidemark.timegrid.slices import Grid


def check_every_version(tables: PipelineTables, grid: Grid) -> int:
    """Assert that each version of each table has the rows of one attempt per committed slice.

    Returns:
        The number of versions of all tables.
    """
    ledger_log = DeltaTableHandle.open(tables.ledger)
    ledger = read_attempts(ledger_log, grid) if ledger_log else pd.DataFrame(columns=["commit", "number", "run"])
    versions = 0
    for name in list_existing_tables(tables):
        path = getattr(tables, name)
        for version in range(DeltaTableHandle.open(path).version + 1):
            log = DeltaTableHandle.open(path, version)
            attempts = ledger[ledger["commit"] <= log.txn_version].drop_duplicates("number", keep="last")
            expected = {
                row["number"]: (row["run"], get_expected_count(name, row)) for row in attempts.to_dict("records")
            }
            counts_by_slice = count_rows_by_slice(log, name, grid)
            for number, stored in counts_by_slice.items():
                run, count = expected.get(number, (None, 0))
                counts = assign_merged_rows_to_runs(stored, ledger, number)
                assert set(counts) == {run}, f"{name} version {version}, slice {number}: {counts}, the ledger has {run}"
                assert count is None or counts[run] == count, f"{name} version {version}, slice {number}"
            missing = {
                number: count for number, (_, count) in expected.items() if count and number not in counts_by_slice
            }
            assert not missing, f"{name} version {version} lacks slices {missing}"
            versions += 1
    return versions


def assign_merged_rows_to_runs(counts: Counter, ledger: pd.DataFrame, number: int) -> Counter:
    """Count the rows of a slice by run; rows in a merged file belong to the newest run before the merge."""
    assigned: Counter = Counter()
    for run, count in counts.items():
        if (merged := parse_merge_commit(run)) is None:
            assigned[run] += count
        else:
            visible = ledger[(ledger["number"] == number) & (ledger["commit"] <= merged)]
            assigned[visible["run"].iloc[-1]] += count
    return assigned


def list_existing_tables(tables: PipelineTables) -> list[str]:
    """List the tables that exist: `quality` needs expectations, `quarantined` needs quarantined rows."""
    return [name for name in LEDGER_MANAGED_TABLES if DeltaTableHandle.open(getattr(tables, name))]


def get_expected_count(name: str, row: dict) -> int | None:
    """Return the number of rows that the ledger records for a slice; None for a table that it does not count."""
    match name:
        case "emissions":
            return row["emissions"]
        case "quarantined":
            return row["quarantined"] or 0
        case "checkpoint":
            return row["left"]["carried_out"] + row["right"]["carried_out"]
    return None


def count_rows_by_slice(log: DeltaTableHandle, name: str, grid: Grid) -> dict[int, Counter]:
    """Count the rows of each slice by run, from the files of a version."""
    counts: dict[int, Counter] = {}
    columns = list(dict.fromkeys(SLICE_COLUMNS[name]))
    for path in log.files["path"]:
        for row in pq.read_table(f"{log.path}/{path}", columns=columns, partitioning=None).to_pylist():
            first, *until = (grid.number_at(to_micros(row[column])) for column in columns)
            for number in range(first, until[0] if until else first + 1):
                counts.setdefault(number, Counter())[parse_run(path)] += 1
    return counts


def check_readers_agree(spark, tables: PipelineTables, grid: Grid) -> int:
    """Assert that plain reads by Spark, delta-rs and Polars count the same rows; return the committed emissions."""
    ledger = read_attempts(DeltaTableHandle.open(tables.ledger), grid).drop_duplicates("number", keep="last")
    committed = int(ledger["emissions"].sum())
    for name in list_existing_tables(tables):
        path = getattr(tables, name)
        counts = {
            "Spark": spark.read.format("delta").load(path).count(),
            "delta-rs": DeltaTableHandle.open(path).table.count(),
            "Polars": pl.scan_delta(path).select(pl.len()).collect().item(),
        }
        assert len(set(counts.values())) == 1, (name, counts)
        assert name != "emissions" or counts["Spark"] == committed
    return committed
