"""Vectors of jobs that have restarted, against a real Flink whose jobs fail: `make flink-vectors`.

A job fails where its vector says it, and Flink goes on by itself from the checkpoint behind the event before.
"""

import gzip
import json
import sys
from pathlib import Path

from rich.console import Console

from tests.flink_parity.recorder import recorded

VECTORS = Path(__file__).parents[1] / "semantics" / "vectors"


def main() -> None:
    console, wrong = Console(soft_wrap=True), 0
    for name, stream in STREAMS.items():
        path = VECTORS / f"{name}_restarted.jsonl.gz"
        with gzip.open(path, "rt") as lines:
            vectors = [json.loads(line) for line in lines]
        answers = recorded([(*stream(vector["params"]), vector) for vector in vectors])
        unlike = [one for one in zip(vectors, answers, strict=True) if given(*one) != expected(one[0])]
        for vector, answer in unlike:
            console.print(f"{vector['name']}: Flink gives {given(vector, answer)} in place of {expected(vector)}")
        console.print(f"{path.name}: {len(vectors) - len(unlike)} of {len(vectors)} vectors are what Flink gives")
        wrong += len(unlike)
    sys.exit(bool(wrong))


def sql_interval(params):
    kind, bounds = params["join_type"].upper(), f"r.ts + {span(params['lower'])} AND r.ts + {span(params['upper'])}"
    query = f"SELECT l.id, r.id FROM left_rows l {kind} JOIN right_rows r ON l.k = r.k AND l.ts BETWEEN {bounds}"
    cleanup = f"{params['min_cleanup_interval']} ms"
    return {"table.local-time-zone": "UTC", "table.exec.interval-join.min-cleanup-interval": cleanup}, ("query", query)


def span(ms):
    return f"INTERVAL '{ms / 1000:.3f}' SECOND(3)"


def datastream_interval(params):
    return {}, ("interval", params["lower"], params["upper"])


def datastream_window(params):
    return {}, (params["mode"], params["size"])


STREAMS = {
    "flink_sql_interval": sql_interval,
    "flink_datastream_interval": datastream_interval,
    "flink_datastream_window": datastream_window,
}
"""The settings and the join of vectors, by the file in which they are."""


def given(vector, answer):
    """Rows with the events at which they came, and the watermarks of the join where the vector has them."""
    rows = [(str(at), ts, ids) for at, ts, ids in answer.rows if vector["drain"] or at != "drain"]
    return sorted(rows, key=str), answer.watermarks if "watermark_out" in vector["expected"] else None


def expected(vector):
    """The same, with rows that are dropped, but for those of windows, of which Flink does not tell."""
    known = vector["expected"]
    rows = [(str(row["at"]), row["ts"], [ids_of(row, side) for side in ("left", "right")]) for row in known["rows"]]
    if vector["dialect"] != "datastream_window":
        rows += [(str(row["at"]), vector["events"][row["at"]]["ts"], ["late", row["id"]]) for row in known["dropped"]]
    return sorted(rows, key=str), known.get("watermark_out")


def ids_of(row, side):
    """An id, or those of a group as the recorder tells them."""
    return row[f"{side}_id"] if f"{side}_id" in row else ",".join(row[f"{side}_ids"])


if __name__ == "__main__":
    main()
