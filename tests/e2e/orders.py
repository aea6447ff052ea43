"""Write two inputs hour by hour, some rows late, and the pipeline file that joins them."""

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import yaml
from deltalake import write_deltalake

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SIDES = ("left", "right")
ROWS_PER_HOUR = 120
"""Rows of each input."""
WRITE_DELAY = timedelta(minutes=5)
"""Rows of an hour are written so much later than the hour, so that the last row completes the slice."""


def create_pipeline_yaml(name, hours, *, has_quality=True, has_airflow_options=True):
    """Create the content of the pipeline file, with or without an expectation, a deadline and partition keys."""
    inputs = {
        side: {
            "table": side,
            "event_time": "happened",
            "arrival": "arrived",
            "watermark_delay": "10 minutes",
            "complete": {"by": "row"},
        }
        for side in SIDES
    }
    settings = {
        "name": name,
        "dialect": "flink-datastream",
        **inputs,
        "join": {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "10 minutes"}},
        "on_late_arriving_rows": "reprocess",
        "slices": {"every": "1 hour", "start": START.isoformat(), "end": (START + hours * HOUR).isoformat()},
        "airflow": {"retry_delay": "5 seconds", "poll_interval": "2 seconds"},
        "cluster": {"executors": 2, "executor_cores": 1, "executor_memory": "600m"},
    }
    if has_airflow_options:
        settings["airflow"] |= {"deadline": "20 seconds", "partitions": ["day"]}
    if has_quality:
        settings["quality"] = [{"type": "expect_column_values_to_be_between", "column": "left_v", "min_value": 0}]
    return yaml.safe_dump(settings, sort_keys=False)


class InputWriter:
    """Rows of both inputs by the hour in which they are written, a third of them up to an hour late.

    Each row has its own arrival time. The methods that write return the number of rows.
    """

    def __init__(self, lake, hours):
        self.lake = lake
        chance = random.Random(11)
        self.rows_by_hour = {side: defaultdict(list) for side in SIDES}
        interval = HOUR / ROWS_PER_HOUR
        for number in range(ROWS_PER_HOUR * hours + ROWS_PER_HOUR // 4):
            for offset, side in enumerate(SIDES):
                arrived = START + number * interval + timedelta(seconds=2 + 10 * offset)
                lateness = timedelta(minutes=chance.randrange(60) if chance.random() < 0.3 else chance.randrange(4))
                key, happened = chance.choice("abc"), max(START, arrived - lateness)
                row = {"k": key, "happened": happened, "arrived": arrived, "v": number}
                self.rows_by_hour[side][max(0, (arrived - WRITE_DELAY - START) // HOUR)].append(row)

    def create_tables(self):
        """Create both tables with a single row each."""
        for side in SIDES:
            self._append(side, [{"k": "z", "happened": START, "arrived": START, "v": 0}])

    def write_hour(self, side, hour):
        """Write the rows of an hour in a commit."""
        return self._append(side, self.rows_by_hour[side][hour])

    def write_late_arriving_rows(self, side, hour):
        """Write a few rows of an hour whose slice is committed."""
        times = [START + hour * HOUR + timedelta(minutes=20 + number, seconds=5) for number in range(5)]
        return self._append(side, [{"k": "a", "happened": time, "arrived": time, "v": 9000} for time in times])

    def write_invalid_row(self, side, hour):
        """Write a row with matches that fails the expectation on `left_v`."""
        time = START + hour * HOUR + timedelta(minutes=30, seconds=7)
        return self._append(side, [{"k": "a", "happened": time, "arrived": time, "v": -1}])

    def _append(self, side, rows):
        write_deltalake(f"{self.lake}/{side}", pa.Table.from_pylist(rows), mode="append")
        return len(rows)
