"""Start, find and stop this machine's warm server: a Spark Connect server that stays between commands (`--warm`).

Each Python environment of a user has its own server. Its folder has three files with locks (`flock`), which the system
releases when their holders end, however they end:

- `start.lock`: held by a command while it finds or starts the server.
- `server.lock`: held by the server's processes.
- `commands.lock`: shared by the commands that use the server. Whoever ends the server holds it alone, so that no
  command begins to use a server that is about to end.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ValidationError
from pyspark import __version__

from tidemark.config.cluster import (
    CONNECT_SCHEME,
    CONNECT_TOKEN_VARIABLE,
    MASTER_VARIABLE,
    WARM_SERVER_IDLE_MINUTES,
)
from tidemark.errors import FaultError, UserError
from tidemark.spark.connect_server import build_server_command
from tidemark.spark.delta_jars import JARS_VARIABLE, find_delta_jars
from tidemark.spark.session_settings import LOCAL_SETTINGS

_HOST = "127.0.0.1"
_START_SECONDS = 600
_POLL_SECONDS = 0.2
_IDLE_CHECK_SECONDS = 10.0


class ServerAddress(BaseModel):
    """How commands reach a running server."""

    port: int
    token: str
    """Whoever has the token can run code as the server's user."""
    pid: int
    """Process that `run_until_idle` runs in."""


@dataclass(frozen=True)
class WarmServer:
    """The warm server of this user and Python environment, whether it runs or not."""

    folder: Path
    """Folder of its files, which only this user can read."""

    @classmethod
    def from_environment(cls) -> WarmServer:
        """Return the server of the running Python environment."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        environment = hashlib.sha256(f"{sys.prefix} {__version__}".encode()).hexdigest()[:12]
        return cls(cache / "tidemark" / f"warm-server-{environment}")

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.folder / "server.log"

    @property
    def _address_file(self) -> Path:
        return self.folder / "address.json"

    def find(self) -> ServerAddress | None:
        """Return the address of the running server; None if it does not run."""
        return self._read_address() if self._is_running() else None

    def find_or_start(self) -> ServerAddress:
        """Return the address of the running server, and start one if there is none.

        The server then stays at least until this process ends.

        Raises:
            FaultError: It does not start.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        in_use = self._open("commands.lock")
        fcntl.flock(in_use, fcntl.LOCK_SH)
        _HELD_FILES.append(in_use)
        with self._open("start.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            was_running = self._is_running()
            if not was_running:
                self._start()
            address = self._wait_for_address()
            if address is None and was_running and not self._is_running():  # it was ending when this command began
                self._start()
                address = self._wait_for_address()
        if address is None:
            raise FaultError(f"the warm server did not start. See {self.log}, or leave --warm out.")
        return address

    def stop(self) -> bool:
        """Stop the server, and return False if none runs.

        Raises:
            UserError: A command uses it.
        """
        address = self.find()
        if address is None:
            return False
        with self.claim() as is_idle:
            if not is_idle:
                raise UserError("a command uses the warm server. Wait until it ends, or stop it, and repeat this one.")
            with suppress(ProcessLookupError):
                os.kill(address.pid, signal.SIGTERM)
            with self._open("server.lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
        return True

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Lock commands out of an idle server during the block. Yield False if a command uses the server."""
        with self._open("commands.lock") as lock:
            yield _try_lock(lock, fcntl.LOCK_EX)

    def write_address(self, port: int, token: str) -> None:
        """Write the address of this process's server."""
        self._address_file.touch(mode=0o600)
        self._address_file.write_text(ServerAddress(port=port, token=token, pid=os.getpid()).model_dump_json())

    def _read_address(self) -> ServerAddress | None:
        try:
            return ServerAddress.model_validate_json(self._address_file.read_text())
        except (OSError, ValidationError):  # it is not written yet
            return None

    def _is_running(self) -> bool:
        if not self.folder.is_dir():
            return False
        with self._open("server.lock") as lock:
            return not _try_lock(lock, fcntl.LOCK_SH)

    def _start(self) -> None:
        """Start the server's processes in the background."""
        self._address_file.unlink(missing_ok=True)
        environment = os.environ | {CONNECT_TOKEN_VARIABLE: secrets.token_urlsafe(32), "SPARK_LOCAL_IP": _HOST}
        # The server has a working directory of its own, and needs this environment's spark-submit, package and jars.
        for name, folder in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", Path(__file__).parents[2])):
            environment[name] = os.pathsep.join(filter(None, (str(folder), environment.get(name))))
        environment[JARS_VARIABLE] = str(find_delta_jars()[0].parent.absolute())
        with self._open("server.lock") as lock, self.log.open("w") as log:
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.Popen(  # noqa: S603 - this module
                [sys.executable, "-m", __name__, str(self.folder)],
                env=environment,
                cwd=self.folder,  # Spark would create its warehouse here
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )

    def _wait_for_address(self) -> ServerAddress | None:
        """Wait until the server listens; return None if it ends or does not listen in time."""
        deadline = time.monotonic() + _START_SECONDS
        while self._is_running() and time.monotonic() < deadline:
            address = self._read_address()
            if address and _is_listening(address.port):
                return address
            time.sleep(_POLL_SECONDS)
        return None

    def _open(self, name: str) -> IO[str]:
        return (self.folder / name).open("a")


_HELD_FILES: list[IO[str]] = []
"""Files that this process keeps locked until it ends."""


def use_warm_server() -> None:
    """Make this process use the warm server, by Spark's variables; start it if it does not run.

    Raises:
        FaultError: It does not start.
    """
    address = WarmServer.from_environment().find_or_start()
    # Without TLS, PySpark sends a token only to the host name localhost.
    os.environ[MASTER_VARIABLE] = f"{CONNECT_SCHEME}localhost:{address.port}"
    os.environ[CONNECT_TOKEN_VARIABLE] = address.token


def run_until_idle(server: WarmServer, command: list[str], max_idle_seconds: float, check_seconds: float) -> None:
    """Run a server's command until it ends, this process is terminated, or no command has used it for some time.

    Args:
        server: The server.
        command: Command that listens.
        max_idle_seconds: Time without a command after which it ends.
        check_seconds: Time between two checks.
    """
    last_used = time.monotonic()
    with _run(command) as process:
        while process.poll() is None:
            with server.claim() as is_idle:
                if not is_idle:
                    last_used = time.monotonic()
                elif time.monotonic() - last_used > max_idle_seconds:
                    _end(process)
                    return
            with suppress(subprocess.TimeoutExpired):
                process.wait(check_seconds)


@contextmanager
def _run(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, and end it with the block or at a termination of this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # The command holds server.lock as well, so that no second server starts before it has ended.
    process = subprocess.Popen(command, close_fds=False)  # noqa: S603 - the project's own
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _try_lock(file: IO[str], operation: int) -> bool:
    """Lock a file as `flock` does, and return False if the lock of another holder excludes it."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection((_HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Run the server of a folder: `python -m tidemark.spark.warm_server FOLDER`. Its token is in the environment."""
    server = WarmServer(Path(sys.argv[1]))
    with socket.create_server((_HOST, 0)) as listener:
        port = listener.getsockname()[1]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    command = build_server_command(_HOST, port, "local[*]", LOCAL_SETTINGS["spark.driver.memory"])
    server.write_address(port, os.environ[CONNECT_TOKEN_VARIABLE])
    run_until_idle(server, command, 60 * WARM_SERVER_IDLE_MINUTES, _IDLE_CHECK_SECONDS)


if __name__ == "__main__":
    main()
