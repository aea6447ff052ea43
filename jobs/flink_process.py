"""Run the statements of one query to its end, in the virtual environment of Flink; started by `jobs.flink_reference`.

Usage: python flink_process.py FILE, a JSON object of `settings` and `statements`, the last of which is the query.
"""

import json
import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment


def main() -> None:
    """Run the query; as a stream, over inputs that end."""
    query = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    batch = query.get("mode") == "batch"
    mode = EnvironmentSettings.in_batch_mode if batch else EnvironmentSettings.in_streaming_mode
    tables = TableEnvironment.create(mode())
    for name, value in query["settings"].items():
        tables.get_config().set(name, value)
    for statement in query["statements"]:
        running = tables.execute_sql(statement)
    running.wait()


if __name__ == "__main__":
    main()
