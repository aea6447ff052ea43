"""What tests of real processes share: ports that nobody has, and waiting for what is to come."""

import socket
import time
from contextlib import suppress


def free_ports(number):
    """So many ports of loopback that nobody listens on, as text."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    found = [str(one.getsockname()[1]) for one in listeners]
    for one in listeners:
        one.close()
    return found


def until(wanted, seconds, told="nothing came", every=0.5):
    """What is wanted, once it is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError):
            if found := wanted():
                return found
        time.sleep(every)
    raise AssertionError(f"{told} in {seconds} s")
