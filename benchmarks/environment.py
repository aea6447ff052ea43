"""The machine and the versions that something was measured with."""

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

from jobs.flink_twin import FLINK, PROJECT

PACKAGES = ("pyspark", "delta-spark", "deltalake", "polars")


def environment() -> dict[str, Any]:
    """Facts as JSON has them; `load` is the machine's average load of the last minute: what others were doing."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _said("git", "-C", str(PROJECT), "describe", "--always", "--dirty"),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory": psutil.virtual_memory().total,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "java": _said("java", "-version").partition("\n")[0],
        **{name: version(name) for name in PACKAGES},
        "apache-flink": _flink(),
    }


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    return (done.stdout or done.stderr).strip()


def _processor() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return found[1] if found else platform.machine()


def _flink() -> str | None:
    found = [path.name for path in FLINK.parents[1].glob("lib/python3*/site-packages/apache_flink-*.dist-info")]
    return found[0].split("-")[1].removesuffix(".dist") if found else None
