"""Create this process's session on a Spark Connect server: docs/decisions/0011-where-spark-runs.md.

Settings apply to this session only, and end with it.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pkgutil import resolve_name
from urllib.parse import urlsplit

from pyspark import __version__
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.config.cluster import CONNECT_TOKEN_VARIABLE, Cluster
from tidemark.errors import FaultError
from tidemark.spark.package_archive import build_package_archive
from tidemark.spark.session_settings import SHUFFLE_PARTITIONS

DEFAULT_PORT = 15002
_CONNECT_TIMEOUT_SECONDS = 10
"""Seconds that a server may take to accept a connection."""
_CONNECT_SETTINGS = {
    # Plans are read as text, which by default omits columns after the 25th.
    "spark.sql.debug.maxToStringFields": "100000",
}
_CLASSIC_ONLY_SETTINGS = ("spark.python.sql.dataFrameDebugging.enabled",)
"""Settings that a server does not have."""


def get_connect_session(
    address: str, settings: Mapping[str, str], cluster: Cluster, server_settings: Mapping[str, str]
) -> SparkSession:
    """Return this process's session on a server, or create it and send this package to the server.

    `server_settings` are required settings that can only be set when a server starts.

    Raises:
        FaultError: No server listens, the token is wrong, or the server has another version or other settings.
    """
    _allow_deep_plans()
    server = _check_listening(address)
    session_settings = {
        name: value for name, value in settings.items() if name not in _CLASSIC_ONLY_SETTINGS
    } | _CONNECT_SETTINGS
    if cluster.shuffle_partitions:
        session_settings[SHUFFLE_PARTITIONS] = str(cluster.shuffle_partitions)
    try:
        builder = SparkSession.builder.remote(address)
        for key, value in session_settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        is_new = not getattr(session, "_has_tidemark", False)
        if is_new:
            # A session that is still open when Python exits can wait for its channel forever.
            atexit.register(session.stop)
        _check_server(session, server, server_settings)
        if is_new:
            session.addArtifacts(str(build_package_archive()), pyfile=True)
            session._has_tidemark = True  # type: ignore[attr-defined]  # noqa: SLF001
    except PySparkException as error:
        raise FaultError(f"{server} does not create a session: {_format_refusal(error)}") from None
    return session


def _allow_deep_plans() -> None:
    """Let protobuf copy plans of more than 100 operators, such as those of large jobs. The server accepts 1,024."""
    with suppress(ImportError, AttributeError):  # other implementations of protobuf
        resolve_name("google._upb._message:SetAllowOversizeProtos")(True)


def _check_listening(address: str) -> str:
    """Check that a server listens, and return its description; gRPC would retry for minutes."""
    parts = urlsplit(address)
    host, port = parts.hostname or "localhost", parts.port or DEFAULT_PORT
    try:
        socket.create_connection((host, port), _CONNECT_TIMEOUT_SECONDS).close()
    except OSError as error:
        raise FaultError(
            f"No Spark Connect server listens at {host}:{port} ({error.strerror or error}). Start it, on this machine "
            "with 'make connect', or set TIDEMARK_MASTER to another one."
        ) from None
    return f"The Spark Connect server at {host}:{port}"


def _format_refusal(error: PySparkException) -> str:
    if "UNAUTHENTICATED" in str(error) or "Invalid token" in str(error):
        required = "another token" if os.environ.get(CONNECT_TOKEN_VARIABLE) else "a token"
        return f"it requires {required}. Set {CONNECT_TOKEN_VARIABLE}."
    return [*str(error).strip().splitlines(), ""][0]


def _check_server(session: SparkSession, server: str, server_settings: Mapping[str, str]) -> None:
    if session.version.split(".")[:2] != __version__.split(".")[:2]:
        raise FaultError(f"{server} has Spark {session.version}. Start one with Spark {__version__}.")
    for name, value in server_settings.items():
        if value not in str(session.conf.get(name, None)).split(","):
            raise FaultError(
                f"{server} is not configured for Delta. Start it with Delta's jars and --conf {name}={value}, as "
                "bin/spark-connect does."
            )
