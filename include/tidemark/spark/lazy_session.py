"""A session that starts once something is asked of it: what reads only metadata never waits for a JVM."""

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

    def _start_in_background(self, **how: Any) -> Future[SparkSession]:
        with self._lock:
            if self._starting is None:
                pool = ThreadPoolExecutor(1)
                self._starting = pool.submit(self._start, **how)
                pool.shutdown(wait=False)
            return self._starting

    def _resolve(self) -> SparkSession:
        return self._start_in_background().result()


def create_lazy_session(start: Callable[..., SparkSession]) -> SparkSession:
    """A session in all that is asked of it, which `start` gives when the first thing is."""
    return cast(SparkSession, _LazySession(start))


def start_in_background(spark: SparkSession, **how: Any) -> None:
    """Start a session, in the background, as `how` says to its `start`; one that has started is left alone."""
    if isinstance(spark, _LazySession):
        spark._start_in_background(**how)  # noqa: SLF001


def is_started(spark: SparkSession) -> bool:
    """Whether a session has started, or is about to."""
    return not isinstance(spark, _LazySession) or spark._starting is not None  # noqa: SLF001


def resolve_session(spark: SparkSession) -> SparkSession:
    """The session itself, started if need be: columns can be named from then on."""
    return spark._resolve() if isinstance(spark, _LazySession) else spark  # noqa: SLF001
