"""Record the watermark of joins whose inputs fall idle from a real Flink: `make flink-vectors`."""

import json
import random
from pathlib import Path

from rich.console import Console

from tests.flink_parity.recorder import record_streams

VECTORS = Path(__file__).parents[1] / "semantics" / "idle_inputs.jsonl"
MINUTE = 60_000
STREAMS_PER_JOIN = 40
SQL_WINDOW = """
    SELECT l.id, r.id
    FROM (SELECT * FROM TABLE(TUMBLE(TABLE left_rows, DESCRIPTOR(ts), INTERVAL '5' MINUTE))) l
    JOIN (SELECT * FROM TABLE(TUMBLE(TABLE right_rows, DESCRIPTOR(ts), INTERVAL '5' MINUTE))) r
    ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end
"""
JOINS = {
    "datastream_interval": ({}, ("interval", -MINUTE, MINUTE)),
    "datastream_window": ({}, ("join", 5 * MINUTE)),
    "sql_window": ({"table.local-time-zone": "UTC"}, ("query", " ".join(SQL_WINDOW.split()))),
}
"""Settings and join of each operator that shows its combined watermark unchanged."""
ALL_IDLE = "L30 R10 idle-L idle-R R20 L25 R40 L50"
LAGGING_AFTER_IDLENESS = "L30 R10 idle-R L35 R20 L45 R40 L50 R46 L55 R70"
NEVER_A_ROW = "L30 idle-R idle-L R20 R25 L26 L45"


def main() -> None:
    streams = [
        (name, list(parse_events(text)))
        for name in JOINS
        for text in (ALL_IDLE, LAGGING_AFTER_IDLENESS, NEVER_A_ROW, *create_random_streams())
    ]
    watermark = {"kind": "datastream", "delay_ms_left": 0, "delay_ms_right": 0}
    answers = record_streams([(*JOINS[name], {"events": events, "watermark": watermark}) for name, events in streams])
    lines = [
        json.dumps({"join": name, "events": events, "watermarks": answer.watermarks})
        for (name, events), answer in zip(streams, answers, strict=True)
    ]
    VECTORS.write_text("\n".join(lines) + "\n")
    Console(soft_wrap=True).print(f"{VECTORS.name}: {len(lines)} streams recorded")


def create_random_streams():
    """Yield streams in which each side falls idle now and then, and lags afterwards."""
    generator = random.Random(55)
    for _ in range(STREAMS_PER_JOIN):
        words, active, minute = [], {"L", "R"}, 10
        for _ in range(20):
            side = generator.choice("LR")
            if side in active and generator.random() < 0.3:
                words.append(f"idle-{side}")
                active.discard(side)
            else:
                minute += generator.randint(0, 4)
                words.append(f"{side}{max(1, minute - generator.choice([0, 0, 0, 3, 10]))}")
                active.add(side)
        yield " ".join(words)


def parse_events(text):
    for number, word in enumerate(text.split()):
        if word.startswith("idle-"):
            yield {"idle": word.removeprefix("idle-")}
        else:
            yield {"side": word[0], "key": "a", "ts": int(word[1:]) * MINUTE, "id": f"{word[0]}{number}"}


if __name__ == "__main__":
    main()
