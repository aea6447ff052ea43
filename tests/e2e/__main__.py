"""The long story, told on the terminal: `make e2e`."""

import signal
import sys
import tempfile
from pathlib import Path

from tests.e2e.scenario import long, teller
from tests.e2e.services import postgres_programs

if __name__ == "__main__":
    if postgres_programs() is None:
        sys.exit("e2e: Postgres is missing: install Debian's package postgresql, then run make e2e again")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started is ended
    home = Path(tempfile.mkdtemp(prefix="tidemark-e2e-"))
    sys.stdout.write(f"logs, tables and event logs: {home}\n")
    long(home, teller())
