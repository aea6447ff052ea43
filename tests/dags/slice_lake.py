"""Write the tables of a pipeline's slices without Spark, for the pages in Airflow's UI.

As a program it writes a year of hours: `python -m tests.dags.slice_lake PIPELINES LAKE`.
"""

import json
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from tidemark.config import Pipeline, load_pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle, create_internal_table
from tidemark.ledger.config_fingerprint import serialize_settings
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger_table import SCHEMA
from tidemark.quality import results_table, waivers
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.values import Watermarks

PIPELINE = """
name: {name}
dialect: flink-datastream
left: {{table: clicks, event_time: at, watermark_delay: 10 minutes}}
right: {{table: views, event_time: at, watermark_delay: 0 seconds}}
join:
  keys: [user]
  interval: {{lower: -10 minutes, upper: 0 seconds}}
slices: {{every: {every}, start: "2025-01-01T00:00:00Z", end: "{end}"}}
quality: [{{type: expect_column_values_to_not_be_null, column: right_user}}]
compare: {{table: streamed}}
expose_row_values: true
"""
NOT_NULL = "expect_column_values_to_not_be_null(column right_user)"
TIME = pa.timestamp("us", "UTC")
LATE = pa.schema(
    {
        "_slice": TIME,
        "side": pa.string(),
        "reason": pa.string(),
        "lateness_ms": pa.int64(),
        "would_match": pa.bool_(),
    }
)
QUARANTINED = pa.schema(
    {
        "_slice": TIME,
        "left_user": pa.string(),
        "right_user": pa.string(),
        "_run": pa.string(),
        "_failed_expectations": pa.list_(pa.string()),
    }
)
AGREEMENT = pa.schema(
    {
        "slice": TIME,
        "compared_with": pa.string(),
        "reference": pa.string(),
        "compared_at": TIME,
        "run": pa.string(),
        **dict.fromkeys(("same", "only_batch", "only_stream", "unexplained", "pending"), pa.int64()),
        "causes": pa.map_(pa.string(), pa.int64()),
    }
)


@dataclass
class SliceLake:
    """A lake with the tables of one pipeline."""

    file: Path
    lake: Path
    rows: dict[int, dict] = field(default_factory=dict)
    """Ledger rows by number of the slice."""

    @classmethod
    def create(
        cls,
        pipelines: Path,
        lake: Path,
        name: str = "orders",
        every: str = "1 hour",
        end: str = "2025-01-03T00:00:00Z",
    ) -> "SliceLake":
        """Write the pipeline file into a folder."""
        file = pipelines / f"{name}.yaml"
        pipelines.mkdir(parents=True, exist_ok=True)
        lake.mkdir(parents=True, exist_ok=True)
        file.write_text(PIPELINE.format(name=name, every=every, end=end))
        return cls(file, lake)

    @cached_property
    def pipeline(self) -> Pipeline:
        return load_pipeline(self.file)

    @cached_property
    def settings(self) -> str:
        return serialize_settings(self.pipeline)

    @property
    def tables(self) -> PipelineTables:
        return PipelineTables.from_config(self.pipeline, str(self.lake))

    @cached_property
    def grid(self) -> Grid:
        return Grid.from_config(self.pipeline.slices)

    def add(self, numbers: range, *, late: int = 0, is_stale: bool = False, **columns) -> None:
        """Add committed slices. Stale ones continue a state that the slice before them no longer has."""
        for number in numbers:
            before = "another state" if is_stale else f"after {number - 1}"
            entry = Entry(
                number=number, run=f"run {number}", attempt=1, commit=number + 1, settings=self.settings,
                versions=(3, 4), watermarks=Watermarks(), read=(1000, 1000), carried=(10, 10), drained=False,
                fingerprint=f"after {number}", carried_in_fingerprint=before if number else None,
            )  # fmt: skip
            left = {"read": 1000, "carried_in": 10, "late": late, "rejected": 0, "evicted": 995, "carried_out": 10}
            self.rows[number] = {
                **entry.to_row(self.grid),
                "left": left, "right": left | {"late": 0}, "pipeline": self.pipeline.name,
                "emissions": 900, "quality": "passed", "quality_results": "[]", "job_slices": 1, "job_seconds": 3.25,
                "committed_at": self.grid.datetime_of(number + 1), "left_watermark_ms": 1_735_689_600_000, **columns,
            }  # fmt: skip

    def write(self) -> None:
        """Write the ledger."""
        rows = list(self.rows.values())
        log = create_internal_table(self.tables.ledger, SCHEMA)
        for start in range(0, len(rows), 100):
            log = log.append(pa.Table.from_pylist(rows[start : start + 100], SCHEMA), start + 1)

    def amend(self, number: int, **columns) -> None:
        """Commit the row of a slice again, as a release or an erasure does."""
        row, commit = self.rows[number], max(row["commit"] for row in self.rows.values()) + 1
        again = {
            "commit": commit,
            "original_commit": number + 1,
            "committed_at": row["committed_at"] + timedelta(days=9),
        }
        self.rows[number] = row | again | columns
        log = DeltaTableHandle.open(self.tables.ledger)
        log.append(pa.Table.from_pylist([self.rows[number]], SCHEMA), commit)

    def write_table(self, name: str, rows: list[dict], schema: pa.Schema) -> None:
        """Write one of the other tables."""
        create_internal_table(getattr(self.tables, name), schema).append(pa.Table.from_pylist(rows, schema), 1)

    def write_details(self, number: int, text: str = "a fault of the sensor") -> None:
        """Write late rows, results, a quarantined row, a waiver and an agreement of a committed slice.

        Args:
            number: The slice.
            text: Text for values that come from users and rows.
        """
        start, run = self.grid.datetime_of(number), f"run {number}"
        late = {"_slice": start, "side": "left", "reason": "late", "lateness_ms": 61_000, "would_match": True}
        rejected = late | {"reason": "null_event_time", "lateness_ms": None, "would_match": None}
        self.write_table("late", [late, late | {"lateness_ms": 5_000, "would_match": False}, rejected], LATE)
        result = {
            "slice": start, "run": run, "expectation": NOT_NULL, "severity": "critical", "value": 0.25,
            "min_value": None, "max_value": 0.01, "outcome": "quarantined",
        }  # fmt: skip
        self.write_table("quality", [result], results_table.SCHEMA)
        row = {"_slice": start, "left_user": text, "right_user": None, "_run": run, "_failed_expectations": [NOT_NULL]}
        self.write_table("quarantined", [row], QUARANTINED)
        waiver = {
            "slice": start, "attempt": 2, "expectation": NOT_NULL, "reason": text, "user": "ann", "waived_at": start,
        }  # fmt: skip
        self.write_table("waivers", [waiver], waivers.SCHEMA)

    def write_agreement(self, numbers: range, **counts) -> None:
        """Write the agreement of slices; without counts their rows are equal. `counts` has those of every fifth one."""
        equal = {"same": 900, "only_batch": 0, "only_stream": 0, "unexplained": 0, "pending": 0, "causes": []}
        rows = [
            {"slice": self.grid.datetime_of(number), "compared_with": "streamed", "run": f"run {number}",
             "compared_at": self.grid.datetime_of(number + 2), **equal, **(counts if number % 5 == 0 else {})}
            for number in numbers
        ]  # fmt: skip
        self.write_table("agreement", rows, AGREEMENT)

    def reject(self, *numbers: int, expectation: str = NOT_NULL) -> None:
        """Write a rejected run of each slice."""
        rows = [
            {
                "slice": self.grid.datetime_of(number), "run": f"rejected run {number}", "expectation": expectation,
                "severity": "critical", "value": 0.5, "max_value": 0.01, "outcome": "failed",
                "rejected_at": self.grid.datetime_of(number + 1) + timedelta(days=1),
            }
            for number in numbers
        ]  # fmt: skip
        self.write_table("rejection_results", rows, results_table.SCHEMA.append(results_table.REJECTED_AT))


def write_year(pipelines: Path, lake: Path, name: str = "orders") -> SliceLake:
    """Write a year of hours with slices in every state."""
    year = SliceLake.create(pipelines, lake, name, end="2026-01-01T00:00:00Z")
    year.add(range(8_756), late=3)
    year.add(range(0, 8_756, 7), late=0)
    year.add(range(3, 8_756, 31), late=120)
    year.add(range(7_400, 7_440), late=350)
    year.add(range(8_100, 8_140), quality="warned")
    year.add(range(8_500, 8_503), quality="waived", late=40)
    year.add(
        range(8_400, 8_401), late=40, quality="quarantined", quarantined=1,
        quality_results=json.dumps([{"expectation": NOT_NULL, "severity": "critical", "detail": "25% are null",
                                     "on_failure": "quarantine"}]),
    )  # fmt: skip
    year.add(range(8_600, 8_601), late=9, is_stale=True)
    year.write()
    year.write_details(8_400)
    year.write_agreement(range(8_000, 8_700), only_batch=2, only_stream=1, causes=[("late in one of them", 3)])
    year.reject(8_756)
    return year


if __name__ == "__main__":
    write_year(*map(Path, sys.argv[1:3]))
