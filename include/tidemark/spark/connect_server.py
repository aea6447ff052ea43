"""Start a Spark Connect server that is ready for pipelines: `python -m tidemark.spark.connect_server`.

The process becomes spark-submit. Clients need the token in the environment variable `SPARK_CONNECT_AUTHENTICATE_TOKEN`;
anybody who has it can run code on the server.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from tidemark.config.cluster import CONNECT_TOKEN_VARIABLE
from tidemark.errors import TidemarkError, UserError
from tidemark.spark.connect_session import DEFAULT_PORT
from tidemark.spark.delta_jars import find_delta_jars
from tidemark.spark.s3_settings import get_s3_settings
from tidemark.spark.session_settings import (
    DELTA_SETTINGS,
    LOCAL_SETTINGS,
    SHUFFLE_PARTITIONS,
    SUBMITTED_SETTINGS,
    TIMEOUT_SETTINGS,
    create_java_options,
)

_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SERVER_SETTINGS = {
    # The client prints an error in one line; the server's log would quote the rows that caused it.
    "spark.log.level": "OFF",
    # No client reconnects to the session of a killed task.
    "spark.connect.session.manager.defaultSessionTimeout": "15m",
    # Hourly slices have few rows. A pipeline file can set more partitions (`cluster.shuffle_partitions`).
    SHUFFLE_PARTITIONS: LOCAL_SETTINGS[SHUFFLE_PARTITIONS],
}


def build_server_command(host: str, port: int, master: str, memory: str) -> list[str]:
    """Build the spark-submit command of a server; `memory` is the heap of its JVM, such as `2g`.

    Raises:
        FaultError: Delta's jars are missing.
        UserError: The environment has no token.
    """
    if not os.environ.get(CONNECT_TOKEN_VARIABLE):
        raise UserError(
            f"A server without a token runs anybody's code. Set {CONNECT_TOKEN_VARIABLE}, or use bin/spark-connect."
        )
    jars = find_delta_jars()
    settings = {**SUBMITTED_SETTINGS, **DELTA_SETTINGS, **_SERVER_SETTINGS, **get_s3_settings()}
    settings |= {"spark.connect.grpc.binding.address": host, "spark.connect.grpc.binding.port": str(port)}
    if master.startswith("local"):
        settings |= {**TIMEOUT_SETTINGS, "spark.ui.enabled": "false"}
        settings |= {"spark.driver.defaultJavaOptions": create_java_options(jars[0].parent, brief=False)}
    conf_options = (argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}"))
    resource_options = ["--master", master, "--driver-memory", memory, "--jars", ",".join(map(str, jars))]
    return ["spark-submit", *resource_options, *conf_options, "--class", _SERVER_CLASS]


def main() -> None:
    """Replace this process by the server, or exit with an error message."""
    parser = argparse.ArgumentParser(prog="python -m tidemark.spark.connect_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on (default: %(default)s)")
    parser.add_argument("--master", default="local[*]", help="Spark master (default: %(default)s)")
    parser.add_argument("--memory", default="2g", help="heap of the server's JVM (default: %(default)s)")
    options = parser.parse_args()
    try:
        command = build_server_command(options.host, options.port, options.master, options.memory)
    except TidemarkError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.execv(shutil.which(command[0]) or command[0], command)  # noqa: S606 - a fixed command


if __name__ == "__main__":
    main()
