"""Check vectors of restarted jobs against a real Flink whose jobs fail: `make flink-vectors`.

A job fails at the steps in its vector, and Flink resumes from the checkpoint after the previous event.
"""

import gzip
import json
import sys
from pathlib import Path

from rich.console import Console

from tests.flink_parity.recorder import record_streams

VECTORS = Path(__file__).parents[1] / "semantics" / "vectors"


def main() -> None:
    console, failures = Console(soft_wrap=True), 0
    for name, stream in STREAMS.items():
        path = VECTORS / f"{name}_restarted.jsonl.gz"
        with gzip.open(path, "rt") as lines:
            vectors = [json.loads(line) for line in lines]
        answers = record_streams([(*stream(vector["params"]), vector) for vector in vectors])
        differing = [
            (vector, answer)
            for vector, answer in zip(vectors, answers, strict=True)
            if to_comparable(vector, answer) != to_expected(vector)
        ]
        for vector, answer in differing:
            console.print(
                f"{vector['name']}: Flink gives {to_comparable(vector, answer)} instead of {to_expected(vector)}"
            )
        console.print(f"{path.name}: {len(vectors) - len(differing)} of {len(vectors)} vectors agree with Flink")
        failures += len(differing)
    sys.exit(bool(failures))


def create_sql_interval(params):
    kind, bounds = (
        params["join_type"].upper(),
        f"r.ts + {format_interval(params['lower'])} AND r.ts + {format_interval(params['upper'])}",
    )
    query = f"SELECT l.id, r.id FROM left_rows l {kind} JOIN right_rows r ON l.k = r.k AND l.ts BETWEEN {bounds}"
    cleanup = f"{params['min_cleanup_interval']} ms"
    return {"table.local-time-zone": "UTC", "table.exec.interval-join.min-cleanup-interval": cleanup}, ("query", query)


def format_interval(ms):
    return f"INTERVAL '{ms / 1000:.3f}' SECOND(3)"


def create_datastream_interval(params):
    return {}, ("interval", params["lower"], params["upper"])


def create_datastream_window(params):
    return {}, (params["mode"], params["size"])


STREAMS = {
    "flink_sql_interval": create_sql_interval,
    "flink_datastream_interval": create_datastream_interval,
    "flink_datastream_window": create_datastream_window,
}
"""Functions that return settings and join for a vector's parameters, by vector file."""


def to_comparable(vector, answer):
    """Return Flink's rows with their steps, and the join's watermarks if the vector contains them."""
    rows = [(str(step), ts, ids) for step, ts, ids in answer.rows if vector["drain"] or step != "drain"]
    return sorted(rows, key=str), answer.watermarks if "watermark_out" in vector["expected"] else None


def to_expected(vector):
    """Return the vector's rows and watermarks in the same form, with dropped rows unless they are of windows."""
    expected = vector["expected"]
    rows = [(str(row["at"]), row["ts"], [get_ids(row, side) for side in ("left", "right")]) for row in expected["rows"]]
    if vector["dialect"] != "datastream_window":
        rows += [
            (str(row["at"]), vector["events"][row["at"]]["ts"], ["late", row["id"]]) for row in expected["dropped"]
        ]
    return sorted(rows, key=str), expected.get("watermark_out")


def get_ids(row, side):
    """Return an id, or those of a group in the recorder's form."""
    return row[f"{side}_id"] if f"{side}_id" in row else ",".join(row[f"{side}_ids"])


if __name__ == "__main__":
    main()
