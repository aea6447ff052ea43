"""A lake for jobs that run elsewhere than in the test's own session, and a look at what they have written."""

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
    for name, value in (("table", side), ("event_time", "at"), ("arrival", "seen"))
}
"""Of a pipeline file over what `land_two_hours` lands, as `write_pipeline` takes them."""


def land_two_hours(lake, rows_an_input):
    """Two hours of both inputs, a third of the rows up to an hour late."""
    chance, apart = random.Random(7), 7200 // rows_an_input
    for side in ("left", "right"):
        rows = []
        for number in range(rows_an_input):
            seen = START + timedelta(seconds=apart * number + chance.randrange(apart * 5 // 6))
            late = timedelta(minutes=chance.randrange(60) if chance.random() < 0.3 else chance.randrange(4))
            rows.append({"k": chance.choice("ab"), "at": max(START, seen - late), "seen": seen, "v": number})
        write_deltalake(str(lake / side), pa.Table.from_pylist(rows))
    return lake


def read(table):
    """The rows of a table by a plain read."""
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in rows)
