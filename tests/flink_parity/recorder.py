"""Run streams in a real Flink event by event, and record the join's output and watermark after each."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from jobs.flink_java import run_java

SIDES = {"L": "left", "R": "right"}


@dataclass
class Answer:
    rows: list[tuple[int | str, int | None, list[str | None]]] = field(default_factory=list)
    """Step at which a row was emitted, its timestamp and its fields."""
    watermarks: list[int | None] = field(default_factory=list)
    """Watermark of the join after each event."""


def record_streams(streams):
    """Run streams in Flink and return their answers.

    Each stream consists of settings, a join, and a vector with the events and restarts. A vector may have other inputs
    than left and right, and views of them.
    """
    commands = []
    for settings, join, vector in streams:
        commands += [f"set\t{name}\t{value}" for name, value in settings.items()]
        commands += ["\t".join(["inputs", *vector["inputs"]])] if "inputs" in vector else []
        commands += [f"view\t{name}\t{query}" for name, query in vector.get("views", {}).items()]
        commands += ["\t".join(map(str, join)), *list_commands(vector), "end"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "streams").write_text("\n".join(commands) + "\n")
        run_java("FlinkStreams", folder, folder / "streams", folder / "answer")
        lines = (folder / "answer").read_text().splitlines()
    answers = [Answer() for _ in streams]
    for kind, number, step, *values in (line.split("\t") for line in lines):
        answer, fields = answers[int(number)], [None if value == "null" else value for value in values]
        if kind == "watermark":
            answer.watermarks.append(fields[0] and int(fields[0]))
        else:
            answer.rows.append((int(step) if step.isdigit() else step, fields[0] and int(fields[0]), fields[1:]))
    return answers


def list_commands(vector):
    """Yield commands for a vector's events, each with its side's watermark, for idle sides, and for restarts."""
    extra = 1 if vector["watermark"]["kind"] == "datastream" else 0
    restarts = vector.get("restarts", ())
    for step, event in enumerate(vector["events"]):
        if step in restarts:
            yield "restart"
        if "idle" in event:
            yield f"idle\t{SIDES[event['idle']]}"
            continue
        side = SIDES.get(event["side"], event["side"])
        mark = event["ts"] - vector["watermark"][f"delay_ms_{side}"] - extra
        second_key = [event["key2"]] if "key2" in event else []
        yield "\t".join(map(str, ("event", side, event["key"], event["ts"], mark, event["id"], *second_key)))
    if len(vector["events"]) in restarts:
        yield "restart"
