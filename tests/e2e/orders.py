"""Two inputs of which an hour's rows land at a time, some of them late, and the pipeline that joins them."""

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import yaml
from deltalake import write_deltalake

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SIDES = ("left", "right")
ROWS = 120
"""Of an hour and side."""
INTO = timedelta(minutes=5)
"""What lands for an hour begins and ends that much behind it, so that its last row completes the slice."""


def pipeline(name, hours, *, judged=True):
    """The settings of the pipeline file."""
    inputs = {
        side: {
            "table": side,
            "event_time": "at",
            "arrival": "seen",
            "watermark_delay": "10 minutes",
            "complete": {"by": "row"},
        }
        for side in SIDES
    }
    found = {
        "name": name,
        "dialect": "flink-datastream",
        **inputs,
        "join": {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "10 minutes"}},
        "on_late_arriving_rows": "reprocess",
        "slices": {"every": "1 hour", "start": START.isoformat(), "end": (START + hours * HOUR).isoformat()},
        "airflow": {"retry_delay": "5 seconds", "poll_interval": "2 seconds", "deadline": "20 seconds"},
        "cluster": {"executors": 2, "executor_cores": 1, "executor_memory": "600m"},
    }
    if judged:
        found["quality"] = [{"type": "expect_column_values_to_be_between", "column": "left_v", "min_value": 0}]
    return yaml.safe_dump(found, sort_keys=False)


class Feed:
    """Rows by the hour that they land for, each seen at an instant of its own, a third of them up to an hour late."""

    def __init__(self, lake, hours):
        self.lake = lake
        chance = random.Random(11)
        self.due = {side: defaultdict(list) for side in SIDES}
        apart = HOUR / ROWS
        for number in range(ROWS * hours + ROWS // 4):
            for offset, side in enumerate(SIDES):
                seen = START + number * apart + timedelta(seconds=2 + 10 * offset)
                late = timedelta(minutes=chance.randrange(60) if chance.random() < 0.3 else chance.randrange(4))
                row = {"k": chance.choice("abc"), "at": max(START, seen - late), "seen": seen, "v": number}
                self.due[side][max(0, (seen - INTO - START) // HOUR)].append(row)

    def begin(self):
        """A row each, so that the tables are there."""
        for side in SIDES:
            self._append(side, [{"k": "z", "at": START, "seen": START, "v": 0}])

    def land(self, side, hour):
        """What is due for an hour, in a commit of its own; how many rows."""
        return self._append(side, self.due[side][hour])

    def straggle(self, side, hour):
        """A few rows that were seen in an hour whose slice is committed; how many."""
        seen = [START + hour * HOUR + timedelta(minutes=20 + number, seconds=5) for number in range(5)]
        return self._append(side, [{"k": "a", "at": one, "seen": one, "v": 9000} for one in seen])

    def spoil(self, side, hour):
        """A row that breaks the expectation on `left_v`, and that has partners."""
        seen = START + hour * HOUR + timedelta(minutes=30, seconds=7)
        return self._append(side, [{"k": "a", "at": seen, "seen": seen, "v": -1}])

    def _append(self, side, rows):
        write_deltalake(f"{self.lake}/{side}", pa.Table.from_pylist(rows), mode="append")
        return len(rows)
