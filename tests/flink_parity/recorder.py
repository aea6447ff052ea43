"""Streams through a real Flink, an event at a time: what a join emits at which, and its watermark behind each."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from jobs.flink_twin import FLINK

JAVA = Path(__file__).with_name("FlinkStreams.java")
OPENED = ("java.base/java.util=ALL-UNNAMED", "java.base/java.lang=ALL-UNNAMED")


@dataclass
class Answer:
    rows: list[tuple[int | str, int | None, list[str | None]]] = field(default_factory=list)
    """When each came out, its timestamp, and its fields."""
    watermarks: list[int | None] = field(default_factory=list)
    """The join's behind each event."""


def recorded(streams):
    """The answers to streams, each of settings, a join and a vector whose events and restarts it is fed."""
    told = []
    for settings, join, vector in streams:
        told += [f"set\t{name}\t{value}" for name, value in settings.items()]
        told += ["\t".join(map(str, join)), *events_of(vector), "end"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "streams").write_text("\n".join(told) + "\n")
        run_java(folder)
        lines = (folder / "answer").read_text().splitlines()
    answers = [Answer() for _ in streams]
    for kind, number, at, *told in (line.split("\t") for line in lines):
        answer, fields = answers[int(number)], [None if one == "null" else one for one in told]
        if kind == "watermark":
            answer.watermarks.append(fields[0] and int(fields[0]))
        else:
            answer.rows.append((int(at) if at.isdigit() else at, fields[0] and int(fields[0]), fields[1:]))
    return answers


def events_of(vector):
    """A vector's events, each with its side's watermark behind it, and its restarts."""
    extra = 1 if vector["watermark"]["kind"] == "datastream" else 0
    restarts = vector.get("restarts", ())
    for at, event in enumerate(vector["events"]):
        if at in restarts:
            yield "restart"
        side = {"L": "left", "R": "right"}[event["side"]]
        mark = event["ts"] - vector["watermark"][f"delay_ms_{side}"] - extra
        yield "\t".join(map(str, ("event", side, event["key"], event["ts"], mark, event["id"])))
    if len(vector["events"]) in restarts:
        yield "restart"


def run_java(folder):
    jars = f"{next(FLINK.parents[1].glob('lib/python*/site-packages/pyflink/lib'))}/*"
    subprocess.run([shutil.which("javac"), "-nowarn", "-d", folder, "-cp", jars, JAVA], check=True)
    opened = [option for package in OPENED for option in ("--add-opens", package)]
    command = [
        "java",
        "-XX:TieredStopAtLevel=1",
        *opened,
        "-cp",
        f"{folder}:{jars}",
        JAVA.stem,
        folder / "streams",
        folder / "answer",
    ]
    subprocess.run(command, check=True)
