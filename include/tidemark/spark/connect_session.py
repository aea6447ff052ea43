"""A session of its own on a Spark Connect server: what is set there holds for it alone, and ends with it.

docs/decisions/0037-warm-engine.md.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from pyspark import __version__
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.config.cluster import CONNECT_TOKEN_VARIABLE, Cluster
from tidemark.errors import FaultError
from tidemark.spark.local_session import SHUFFLE_PARTITIONS
from tidemark.spark.package_archive import build_package_archive

DEFAULT_PORT = 15002
_CONNECT_TIMEOUT_SECONDS = 10
"""Seconds that a server may take to accept a connection."""
_CONNECT_SETTINGS = {
    # Plans are read as texts, which leave out columns behind the 25th otherwise.
    "spark.sql.debug.maxToStringFields": "100000",
}
_CLASSIC_ONLY_SETTINGS = ("spark.python.sql.dataFrameDebugging.enabled",)
"""Of a process's own JVM, and nothing of a server's."""


def get_connect_session(
    address: str, settings: Mapping[str, str], cluster: Cluster, needed: Mapping[str, str]
) -> SparkSession:
    """The session of this process on a server, or a new one; the package goes there with it.

    `needed` are settings that only a server can have.

    Raises:
        FaultError: nobody listens there, the token is wrong, or the server is not as it has to be.
    """
    where = _check_listening(address)
    own = {name: value for name, value in settings.items() if name not in _CLASSIC_ONLY_SETTINGS} | _CONNECT_SETTINGS
    if cluster.shuffle_partitions:
        own[SHUFFLE_PARTITIONS] = str(cluster.shuffle_partitions)
    try:
        builder = SparkSession.builder.remote(address)
        for key, value in own.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        fresh = not getattr(session, "_has_tidemark", False)
        if fresh:
            # A session that is left to Python's end may wait for its channel there, for ever.
            atexit.register(session.stop)
        _check_server(session, where, needed)
        if fresh:
            session.addArtifacts(str(build_package_archive()), pyfile=True)
            session._has_tidemark = True  # type: ignore[attr-defined]  # noqa: SLF001
    except PySparkException as error:
        raise FaultError(f"{where} gives no session: {_format_refusal(error)}") from None
    return session


def _check_listening(address: str) -> str:
    """Host and port of a server that listens; gRPC would try for minutes."""
    parts = urlsplit(address)
    host, port = parts.hostname or "localhost", parts.port or DEFAULT_PORT
    try:
        socket.create_connection((host, port), _CONNECT_TIMEOUT_SECONDS).close()
    except OSError as error:
        raise FaultError(
            f"no Spark Connect server answers at {host}:{port} ({error.strerror or error}); start it ('make connect' "
            "does on this machine), or set TIDEMARK_MASTER to another one"
        ) from None
    return f"the Spark Connect server at {host}:{port}"


def _format_refusal(error: PySparkException) -> str:
    first = [*str(error).strip().splitlines(), ""][0]
    if "UNAUTHENTICATED" in str(error) or "Invalid token" in str(error):
        given = "another token" if os.environ.get(CONNECT_TOKEN_VARIABLE) else "a token"
        return f"it wants {given}; set {CONNECT_TOKEN_VARIABLE}"
    return first


def _check_server(session: SparkSession, where: str, needed: Mapping[str, str]) -> None:
    if session.version.split(".")[:2] != __version__.split(".")[:2]:
        raise FaultError(f"{where} is Spark {session.version}, and this is for {__version__}; start one of it")
    for name, value in needed.items():
        if value not in str(session.conf.get(name, None)).split(","):
            raise FaultError(
                f"{where} is not ready for Delta: start it with Delta's jars and --conf {name}={value}, as "
                "bin/spark-connect does"
            )
