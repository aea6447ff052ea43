"""Find free ports, run scripts that start servers, and wait for conditions, for tests that start processes."""

import os
import shlex
import socket
import subprocess
import time
from contextlib import contextmanager, suppress

import psutil

from tests.conftest import PROJECT


def find_free_ports(number):
    """Find so many free ports on loopback; return them as text."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [str(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def wait_for(get_result, seconds, failure="the condition was not met", every=0.5):
    """Call a function until its result is true, and return the result.

    Args:
        get_result: Function without arguments; an `OSError` counts as false.
        seconds: Longest time to wait.
        failure: Beginning of the assertion's message after that time.
        every: Seconds between calls.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError):
            if result := get_result():
                return result
        time.sleep(every)
    raise AssertionError(f"{failure} in {seconds} s")


@contextmanager
def run_script(name, settings):
    """Run a script of `bin/` for the block, end it, and check that all its processes end; yield the process."""
    process = subprocess.Popen([PROJECT / "bin" / name], env=os.environ | settings, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.communicate(timeout=60)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert alive == []


def read_client_env(home):
    """Return the environment of a client from the private file that a script has written."""
    assert (home / "env").stat().st_mode & 0o077 == 0
    exported = (line.removeprefix("export ") for line in (home / "env").read_text().splitlines())
    return dict(pair.split("=", 1) for line in exported for pair in shlex.split(line))
