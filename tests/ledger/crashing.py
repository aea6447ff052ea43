"""Run a command of Tidemark and kill it before or after one of its steps.

A step is a call that reads or writes tables. Point 2n - 1 is before the n-th step, point 2n after it. Point 0 kills
nothing and writes the names of the steps to a file.

Usage: python -m tests.ledger.crashing POINT FILE ARGUMENT...
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrameWriter
from pyspark.sql.classic.dataframe import DataFrame

from tidemark.cli.app import main
from tidemark.delta.table import DeltaTableHandle

STEPS = (
    (DataFrame, ("collect", "toPandas", "first", "isEmpty", "count")),
    (DataFrameWriter, ("parquet",)),
    (DeltaTableHandle, ("append", "commit", "compact", "add_missing_columns")),
)
steps: list[str] = []
lock, inside = threading.Lock(), threading.local()


def kill_at_point(step: Callable[..., Any], name: str, point: int) -> Callable[..., Any]:
    """Wrap a step so that it kills this process and its JVM if the point is before or after it."""

    @wraps(step)
    def call(*arguments: Any, **options: Any) -> Any:
        if getattr(inside, "step", False):
            return step(*arguments, **options)
        with lock:
            steps.append(name)
            number = len(steps)
            if point == 2 * number - 1:
                os.killpg(0, signal.SIGKILL)
        inside.step = True
        try:
            return step(*arguments, **options)
        finally:
            inside.step = False
            if point == 2 * number:
                os.killpg(0, signal.SIGKILL)

    return call


if __name__ == "__main__":
    for owner, names in STEPS:
        for name in names:
            setattr(owner, name, kill_at_point(getattr(owner, name), f"{owner.__name__}.{name}", int(sys.argv[1])))
    code = main(sys.argv[3:])
    Path(sys.argv[2]).write_text("\n".join(steps))
    sys.exit(code)
