"""Find free ports and wait for conditions, for tests that start processes."""

import socket
import time
from contextlib import suppress


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
