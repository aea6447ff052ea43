"""What work takes: seconds, processor time and memory of this process and its children, and Spark's shuffles."""

from __future__ import annotations

import json
import re
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from pyspark.sql import SparkSession

SMALL = 0.1
"""A stage that reads less than this part of all that is shuffled says nothing of skew."""


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Do some work: `seconds`, `cpu_seconds`, and `memory`, the most bytes that one of the processes has ever held."""
    before, began = _cpu_seconds(), time.monotonic()
    work()
    seconds = time.monotonic() - began
    return {"seconds": seconds, "cpu_seconds": _cpu_seconds() - before, "memory": _peak_memory()}


def _processes() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _cpu_seconds() -> float:
    """Of the processes that are there, and of the children that each has seen end."""
    return sum(sum(one.cpu_times()[:4]) for one in _processes())


def _peak_memory() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    peaks = [re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{one.pid}/status").read_text()) for one in _processes()]
    return max(ended, *(int(peak[1]) * 1024 for peak in peaks if peak))


@dataclass
class EventLog:
    """What Spark writes of its tasks, from where it was last read."""

    folder: Path
    read: int = 0

    def shuffles(self, spark: SparkSession) -> dict[str, float]:
        """`shuffled`: bytes written to shuffles since the last call; `skew`: see `skew`."""
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - it is written by a thread of its own
        with (self.folder / f"{spark.sparkContext.applicationId}.inprogress").open("rb") as file:
            file.seek(self.read)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self.read += len(lines)
        return shuffles(json.loads(line) for line in lines.splitlines() if b"SparkListenerTaskEnd" in line)


def shuffles(ended: Iterable[dict]) -> dict[str, float]:
    """What tasks that ended have shuffled.

    `shuffled` is in bytes, as written. `skew` is the largest input of a stage's tasks as a multiple of the median one,
    in bytes: of tasks that read from a shuffle at all, and of stages that read a tenth of all the worst.
    """
    written, read = 0, defaultdict(list)
    for event in ended:
        metrics = event.get("Task Metrics") or {}
        written += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
        its = metrics.get("Shuffle Read Metrics", {})
        if its_bytes := its.get("Remote Bytes Read", 0) + its.get("Local Bytes Read", 0):
            read[event["Stage ID"]].append(its_bytes)
    large = [tasks for tasks in read.values() if sum(tasks) > SMALL * written]
    return {"shuffled": written, "skew": max((max(tasks) / median(tasks) for tasks in large), default=0)}
