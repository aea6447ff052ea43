"""Measure seconds, CPU time and memory of this process and its children, and Spark's shuffles."""

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

SAMPLING_INTERVAL = 0.5
"""Seconds between two samples of the processes."""
MIN_SHARE_OF_SHUFFLE = 0.1
"""Smallest share of all shuffled bytes that a stage reads to count for skew."""


def measure(work: Callable[[], object]) -> dict[str, float]:
    """Measure a call: `seconds`, `cpu_seconds`, and `memory`, the peak in bytes of all processes."""
    monitor, began = _ResourceMonitor(), time.monotonic()
    monitor.start()
    try:
        work()
        seconds = time.monotonic() - began
    finally:
        monitor.stop()
    return {"seconds": seconds, "cpu_seconds": monitor.cpu_seconds, "memory": monitor.memory}


class _ResourceMonitor(threading.Thread):
    """Samples this process and its children periodically, because processes that have ended have no statistics."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.memory = 0
        self._ended = threading.Event()
        self._cpu: dict[int, float] = {}
        self._sample()
        self._before = sum(self._cpu.values())

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all processes since the start."""
        return sum(self._cpu.values()) - self._before

    def run(self) -> None:
        """Sample until stopped."""
        while not self._ended.wait(SAMPLING_INTERVAL):
            self._sample()

    def stop(self) -> None:
        """Take the last sample."""
        self._ended.set()
        self.join()
        self._sample()

    def _sample(self) -> None:
        own, memory = psutil.Process(), 0
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
                memory += process.memory_info().rss
        self.memory = max(self.memory, memory)


@dataclass
class EventLog:
    """Spark's event log, read incrementally."""

    folder: Path
    position: int = 0

    def read_shuffles(self, spark: SparkSession) -> dict[str, float]:
        """Summarize the shuffles of tasks that have ended since the last call."""
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - another thread writes the log
        with (self.folder / f"{spark.sparkContext.applicationId}.inprogress").open("rb") as file:
            file.seek(self.position)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self.position += len(lines)
        return summarize_shuffles(json.loads(line) for line in lines.splitlines() if b"SparkListenerTaskEnd" in line)


def summarize_shuffles(events: Iterable[dict]) -> dict[str, float]:
    """Summarize the shuffles of tasks, from their end events.

    Returns:
        `shuffled`, bytes written; `spilled`, bytes written to disk for lack of memory; and `skew`, the largest input of
        a stage's shuffle tasks as a multiple of the median one. Skew is that of the worst stage that reads at least a
        tenth of all bytes, if there is one.
    """
    written, spilled, read = 0, 0, defaultdict(list)
    for event in events:
        metrics = event.get("Task Metrics") or {}
        written += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
        spilled += metrics.get("Disk Bytes Spilled", 0)
        reads = metrics.get("Shuffle Read Metrics", {})
        if bytes_read := reads.get("Remote Bytes Read", 0) + reads.get("Local Bytes Read", 0):
            read[event["Stage ID"]].append(bytes_read)
    large = [tasks for tasks in read.values() if sum(tasks) > MIN_SHARE_OF_SHUFFLE * written]
    skew = {"skew": max(max(tasks) / median(tasks) for tasks in large)} if large else {}
    return {"shuffled": written, "spilled": spilled, **skew}
