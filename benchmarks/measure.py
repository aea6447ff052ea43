"""What work takes: seconds, processor time and memory of this process and its children, and Spark's shuffles."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from pyspark.sql import SparkSession

EVERY = 0.5
"""Seconds between two looks at what processes take."""
SMALL = 0.1
"""A stage that reads less than this part of all that is shuffled says nothing of skew."""


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Do some work: `seconds`, `cpu_seconds`, and `memory`, the most bytes that its processes have held at a time."""
    watch, began = _Watch(), time.monotonic()
    watch.start()
    try:
        work()
        seconds = time.monotonic() - began
    finally:
        watch.end()
    return {"seconds": seconds, "cpu_seconds": watch.cpu_seconds, "memory": watch.memory}


class _Watch(threading.Thread):
    """Looks at this process and its children now and then: who has ended cannot be asked any more."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.memory = 0
        self._ended = threading.Event()
        self._cpu: dict[int, float] = {}
        self._look()
        self._before = sum(self._cpu.values())

    @property
    def cpu_seconds(self) -> float:
        """Of all processes, since the watch began."""
        return sum(self._cpu.values()) - self._before

    def run(self) -> None:
        """Look until the end."""
        while not self._ended.wait(EVERY):
            self._look()

    def end(self) -> None:
        """Look for the last time."""
        self._ended.set()
        self.join()
        self._look()

    def _look(self) -> None:
        own, held = psutil.Process(), 0
        for one in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):
                times = one.cpu_times()
                self._cpu[one.pid] = times.user + times.system
                held += one.memory_info().rss
        self.memory = max(self.memory, held)


@dataclass
class EventLog:
    """What Spark writes of its tasks, from where it was last read."""

    folder: Path
    read: int = 0

    def shuffles(self, spark: SparkSession) -> dict[str, float]:
        """What `shuffles` tells of the tasks that have ended since the last call."""
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - it is written by a thread of its own
        with (self.folder / f"{spark.sparkContext.applicationId}.inprogress").open("rb") as file:
            file.seek(self.read)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self.read += len(lines)
        return shuffles(json.loads(line) for line in lines.splitlines() if b"SparkListenerTaskEnd" in line)


def shuffles(ended: Iterable[dict]) -> dict[str, float]:
    """What tasks that ended have shuffled.

    `shuffled` is in bytes, as written, and `spilled` what went to disk for want of memory. `skew` is the largest input
    of a stage's tasks as a multiple of the median one, in bytes: of tasks that read from a shuffle at all, and of the
    stages that read a tenth of all the worst, if any does.
    """
    written, spilled, read = 0, 0, defaultdict(list)
    for event in ended:
        metrics = event.get("Task Metrics") or {}
        written += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
        spilled += metrics.get("Disk Bytes Spilled", 0)
        its = metrics.get("Shuffle Read Metrics", {})
        if its_bytes := its.get("Remote Bytes Read", 0) + its.get("Local Bytes Read", 0):
            read[event["Stage ID"]].append(its_bytes)
    large = [tasks for tasks in read.values() if sum(tasks) > SMALL * written]
    skew = {"skew": max(max(tasks) / median(tasks) for tasks in large)} if large else {}
    return {"shuffled": written, "spilled": spilled, **skew}
