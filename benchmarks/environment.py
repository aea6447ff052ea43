"""Describe the machine and the software versions of a measurement."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from jobs.flink_java import FLINK, PROJECT

PACKAGES = ("pyspark", "delta-spark", "deltalake", "polars")


def describe_environment() -> dict[str, Any]:
    """Return a JSON-ready description; `load` is the mean load of the last minute before the measurement."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _read_output("git", "-C", str(PROJECT), "describe", "--always", "--dirty"),
        "cores": os.cpu_count(),
        "processor": _read_processor(),
        "memory": psutil.virtual_memory().total,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "java": _read_output("java", "-version").partition("\n")[0],
        **{name: version(name) for name in PACKAGES},
        "apache-flink": _read_flink_version(),
    }


def _read_output(*command: str) -> str:
    process = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    return (process.stdout or process.stderr).strip()


def _read_processor() -> str:
    match = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return match[1] if match else platform.machine()


def _read_flink_version() -> str | None:
    names = [path.name for path in FLINK.parents[1].glob("lib/python3*/site-packages/apache_flink-*.dist-info")]
    return names[0].split("-")[1].removesuffix(".dist") if names else None
