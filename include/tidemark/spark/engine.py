"""Which of the two ways a session answers what DataFrames do not."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidemark.errors import UserError
from tidemark.spark.classic_engine import ClassicEngine
from tidemark.spark.connect_engine import ConnectEngine
from tidemark.spark.engine_protocol import Engine
from tidemark.spark.lazy_session import resolve_session


def get_engine(spark: SparkSession) -> Engine:
    """The engine behind a session, which starts if need be."""
    session = resolve_session(spark)
    return ClassicEngine(session) if _is_classic(session) else ConnectEngine(session)


def require_classic(spark: SparkSession, what: str) -> None:
    """See that a session is no Spark Connect server's.

    Raises:
        UserError: it is; names what asks for another, and the remedy.
    """
    if not _is_classic(resolve_session(spark)):
        raise UserError(f"{what} does not run through Spark Connect; unset TIDEMARK_MASTER, or set it to local[*]")


def _is_classic(session: object) -> bool:
    return isinstance(session, SparkSession)  # a session of Connect is no subclass of that
