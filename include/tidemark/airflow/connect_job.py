"""Run a task's job in a process of the worker, with a Spark Connect server as engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from airflow.sdk import Connection

from tidemark.config.cluster import CONNECT_SCHEME, CONNECT_TOKEN_VARIABLE

SPARK_CONNECT_TYPE = "spark_connect"
"""Type of a connection whose host is a Spark Connect server, by Airflow's Spark provider."""
STOP_SECONDS = 3.0
"""Time that a job has to end by itself. Airflow kills the task 5 s after the signal that stops it."""
_MAX_LAST_LINES = 20


def connect_address(connection: Connection) -> str | None:
    """Return the address of a connection's Spark Connect server, as in `TIDEMARK_MASTER`; None if it names none."""
    host = connection.host or ""
    if host.startswith(CONNECT_SCHEME):
        return f"{host}:{connection.port}" if connection.port else host
    return _spark_connect_address(connection) if connection.conn_type == SPARK_CONNECT_TYPE else None


def _spark_connect_address(connection: Connection) -> str:
    """Return the address in a connection of the type `spark_connect`. The token is not part of it."""
    port = f":{connection.port}" if connection.port else ""
    use_ssl = connection.extra_dejson.get("use_ssl")
    parameters = {"user_id": connection.login, "use_ssl": use_ssl if use_ssl is None else str(use_ssl).lower()}
    given = "".join(f";{name}={quote(value)}" for name, value in parameters.items() if value is not None)
    return f"{CONNECT_SCHEME}{connection.host or 'localhost'}{port}" + (f"/{given}" if given else "")


class ConnectJob:
    """Process of the command `tidemark` with a session on a Spark Connect server."""

    def __init__(self, address: str, token: str | None, secrets: Mapping[str, str]) -> None:
        """Prepare the environment of the process. Secrets are passed only there.

        Args:
            address: Address of the server, `sc://HOST:PORT`.
            token: Token of the server, if it needs one.
            secrets: Further environment variables.
        """
        self._environment = {**os.environ, **secrets, "TIDEMARK_MASTER": address}
        if token:
            self._environment[CONNECT_TOKEN_VARIABLE] = token
        self._process: subprocess.Popen[str] | None = None
        self._last_lines: deque[str] = deque(maxlen=_MAX_LAST_LINES)

    @property
    def last_output(self) -> str:
        """The last lines of the command's output, which have its error."""
        return "\n".join(self._last_lines)

    def run(self, arguments: Sequence[str], log: Callable[[str, str], None]) -> int:
        """Run the command, send its output to `log` line by line, and return its exit code."""
        command = [sys.executable, str(Path(__file__).with_name("spark_application.py")), *arguments]
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None, "a pipe"
        for line in self._process.stdout:
            log("%s", line.rstrip())
            self._last_lines.append(line.rstrip())
        return self._process.wait()

    def stop(self) -> None:
        """Let the process end after the current job, by SIGTERM, and kill it if it has not ended in `STOP_SECONDS`.

        Otherwise it would commit slices next to the task's next try.
        """
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
