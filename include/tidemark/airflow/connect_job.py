"""A task's job as a process of the worker, without a JVM: the engine is a Spark Connect server's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow.sdk import Connection

from tidemark.config.cluster import CONNECT_SCHEME, CONNECT_TOKEN


def address_of(connection: Connection) -> str | None:
    """The server that a connection names, as `TIDEMARK_MASTER` has it; None where it names something else."""
    host = connection.host or ""
    if not host.startswith(CONNECT_SCHEME):
        return None
    return f"{host}:{connection.port}" if connection.port else host


class WarmJob:
    """The command `tidemark` with a session of the server; its output is the task's log."""

    def __init__(self, address: str, token: str | None, secrets: Mapping[str, str]) -> None:
        """The token and other secrets, by their variables, go to the process in its environment alone."""
        self._environment = {**os.environ, **secrets, "TIDEMARK_MASTER": address}
        if token:
            self._environment[CONNECT_TOKEN] = token
        self._process: subprocess.Popen[str] | None = None

    def run(self, arguments: Sequence[str], log: Callable[[str, str], None]) -> int:
        """Run it to its end; its exit code."""
        command = [sys.executable, str(Path(__file__).with_name("submitted.py")), *arguments]
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None, "a pipe"
        for line in self._process.stdout:
            log("%s", line.rstrip())
        return self._process.wait()

    def stop(self) -> None:
        """Let it end behind the slice at hand, as SIGTERM does in a shell."""
        if self._process is not None:
            self._process.terminate()
