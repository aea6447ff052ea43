"""Run the full scenario and print its steps (`make e2e`)."""

import signal
import sys
import tempfile
from pathlib import Path

from tests.e2e.scenario import create_step_printer, run_full
from tests.e2e.services import find_postgres_programs

if __name__ == "__main__":
    if find_postgres_programs() is None:
        sys.exit("e2e: Postgres is missing: install Debian's package postgresql, then run make e2e again")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # lets context managers end all processes
    home = Path(tempfile.mkdtemp(prefix="tidemark-e2e-"))
    sys.stdout.write(f"logs, tables and event logs: {home}\n")
    run_full(home, create_step_printer())
