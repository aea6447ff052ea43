"""Select the engine for a session: classic Spark or Spark Connect."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidemark.errors import UserError
from tidemark.spark.classic_engine import ClassicEngine
from tidemark.spark.connect_engine import ConnectEngine
from tidemark.spark.engine_protocol import Engine
from tidemark.spark.lazy_session import resolve_session


def get_engine(spark: SparkSession) -> Engine:
    """Return the engine for a session, which is started if it is lazy."""
    session = resolve_session(spark)
    return ClassicEngine(session) if _is_classic(session) else ConnectEngine(session)


def require_classic_session(spark: SparkSession, feature: str) -> None:
    """Refuse a feature that needs a JVM in a Spark Connect session.

    Raises:
        UserError: The session belongs to a Spark Connect server.
    """
    if not _is_classic(resolve_session(spark)):
        raise UserError(
            f"{feature} does not run through Spark Connect. Omit --warm, and unset TIDEMARK_MASTER or set it to "
            "local[*]."
        )


def _is_classic(session: object) -> bool:
    return isinstance(session, SparkSession)  # Spark Connect's session class is not a subclass of it
