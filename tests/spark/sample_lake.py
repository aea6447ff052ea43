"""Write a small lake without Spark, and read tables that jobs in other processes have written."""

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

START = datetime(2024, 1, 1, tzinfo=UTC)
SETTINGS = {"slices": {"every": "1 hour", "start": START.isoformat()}} | {
    f"{side}__{name}": value
    for side in ("left", "right")
    for name, value in (("table", side), ("event_time", "happened"), ("arrival", "arrived"))
}
"""Settings of a pipeline over the lake of `write_two_hours`, as arguments of `write_pipeline`."""


def write_two_hours(lake, rows_per_input):
    """Write two hours of both inputs, with a third of the rows up to an hour late; return the lake."""
    chance, interval = random.Random(7), 7200 // rows_per_input
    for side in ("left", "right"):
        rows = []
        for number in range(rows_per_input):
            arrived = START + timedelta(seconds=interval * number + chance.randrange(interval * 5 // 6))
            lateness = timedelta(minutes=chance.randrange(60) if chance.random() < 0.3 else chance.randrange(4))
            key, happened = chance.choice("ab"), max(START, arrived - lateness)
            rows.append({"k": key, "happened": happened, "arrived": arrived, "v": number})
        write_deltalake(str(lake / side), pa.Table.from_pylist(rows))
    return lake


def read_rows(table):
    """Count the rows of a table by their content, without Spark."""
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in rows)
