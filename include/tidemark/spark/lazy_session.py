"""Start Spark only when it is needed, so that commands that read only metadata do not wait for a JVM."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, cast

from pyspark.sql import SparkSession


class _LazySession:
    def __init__(self, start: Callable[..., SparkSession]) -> None:
        self._start = start
        self._starting: Future[SparkSession] | None = None
        self._lock = Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resolve(), name)

    def _start_in_background(self, **options: Any) -> Future[SparkSession]:
        with self._lock:
            if self._starting is None:
                pool = ThreadPoolExecutor(1)
                self._starting = pool.submit(self._start, **options)
                pool.shutdown(wait=False)
            return self._starting

    def _resolve(self) -> SparkSession:
        return self._start_in_background().result()


def create_lazy_session(start: Callable[..., SparkSession]) -> SparkSession:
    """Create a proxy of a session that calls `start` at its first use."""
    return cast(SparkSession, _LazySession(start))


class SparkNeededError(Exception):
    """A session was needed that may not start."""


def create_refusing_session() -> SparkSession:
    """Create a proxy of a session that raises `SparkNeededError` instead of starting."""

    def refuse(**_: Any) -> SparkSession:
        raise SparkNeededError

    return create_lazy_session(refuse)


def start_in_background(spark: SparkSession, **options: Any) -> None:
    """Start a lazy session in a background thread, unless it has started; `options` are passed to its `start`."""
    if isinstance(spark, _LazySession):
        spark._start_in_background(**options)  # noqa: SLF001


def is_started(spark: SparkSession) -> bool:
    """Return True if a session has started or is starting."""
    return not isinstance(spark, _LazySession) or spark._starting is not None  # noqa: SLF001


def resolve_session(spark: SparkSession) -> SparkSession:
    """Return the real session, started if necessary. `pyspark.sql.functions` need one that runs."""
    return spark._resolve() if isinstance(spark, _LazySession) else spark  # noqa: SLF001
