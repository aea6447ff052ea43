"""Start a Spark Connect server that is ready for pipelines: `python -m tidemark.spark.connect_server`.

It becomes spark-submit. The token of those who may connect is in the environment, `SPARK_CONNECT_AUTHENTICATE_TOKEN`:
whoever has it may have code run here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from tidemark.config.cluster import CONNECT_TOKEN_VARIABLE
from tidemark.errors import TidemarkError, UserError
from tidemark.spark.connect_session import DEFAULT_PORT
from tidemark.spark.local_session import (
    LOCAL_SETTINGS,
    SHUFFLE_PARTITIONS,
    SUBMITTED_SETTINGS,
    TIMEOUT_SETTINGS,
    create_java_options,
)
from tidemark.spark.s3_settings import get_s3_settings
from tidemark.spark.session import DELTA_SETTINGS, find_delta_jars

_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SERVER_SETTINGS = {
    # What fails is told to the client in a line; the log would quote the rows that it failed on.
    "spark.log.level": "OFF",
    # Nobody else comes back to a session whose task was killed.
    "spark.connect.session.manager.defaultSessionTimeout": "15m",
    # A server of hourly slices has few rows at hand; a pipeline file may ask for more (`cluster.shuffle_partitions`).
    SHUFFLE_PARTITIONS: LOCAL_SETTINGS[SHUFFLE_PARTITIONS],
}


def build_server_command(host: str, port: int, master: str, memory: str) -> list[str]:
    """The spark-submit command of a server.

    Raises:
        FaultError: Delta's jars are missing.
        UserError: there is no token.
    """
    if not os.environ.get(CONNECT_TOKEN_VARIABLE):
        raise UserError(
            f"a server without a token runs anybody's code; set {CONNECT_TOKEN_VARIABLE}, or use bin/spark-connect"
        )
    jars = find_delta_jars()
    settings = {**SUBMITTED_SETTINGS, **DELTA_SETTINGS, **_SERVER_SETTINGS, **get_s3_settings()}
    settings |= {"spark.connect.grpc.binding.address": host, "spark.connect.grpc.binding.port": str(port)}
    if master.startswith("local"):
        settings |= {**TIMEOUT_SETTINGS, "spark.ui.enabled": "false"}
        settings |= {"spark.driver.defaultJavaOptions": create_java_options(jars[0].parent, brief=False)}
    shown = (argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}"))
    where = ["--master", master, "--driver-memory", memory, "--jars", ",".join(map(str, jars))]
    return ["spark-submit", *where, *shown, "--class", _SERVER_CLASS]


def main() -> None:
    """Become the server, or end with a line that says why not."""
    parser = argparse.ArgumentParser(prog="python -m tidemark.spark.connect_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine alone)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--master", default="local[*]", help="where executors are, as spark-submit has it")
    parser.add_argument("--memory", default="2g", help="of the server's JVM")
    given = parser.parse_args()
    try:
        command = build_server_command(given.host, given.port, given.master, given.memory)
    except TidemarkError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.execv(shutil.which(command[0]) or command[0], command)  # noqa: S606 - a fixed command


if __name__ == "__main__":
    main()
