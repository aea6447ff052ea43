"""How Airflow runs a pipeline."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from tidemark.config.base import Settings
from tidemark.config.types import PositiveDuration


class AirflowSettings(Settings):
    """How Airflow runs the pipeline; no row depends on it."""

    owner: str = Field(default="tidemark", pattern=r"^[\w.@-]+$")
    """Whose DAGs they are, as Airflow's list shows it: letters, digits, _, -, . and @."""
    retries: int = Field(default=2, ge=0, le=100)
    """How often a fault is tried again; mistakes and failed checks are not."""
    retry_delay: PositiveDuration = timedelta(minutes=1)
    execution_timeout: PositiveDuration | None = None
    """A job that takes longer is ended, and tried again."""
    poll: PositiveDuration = timedelta(minutes=1)
    """How often a waiting slice looks whether its inputs are complete."""
    wait_at_most: PositiveDuration | None = None
    """A slice that has waited longer fails; by default it waits on."""
    deadline: PositiveDuration | None = None
    """A run that is not over so long after it was queued is told of, by a call back; it goes on."""
    pool: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    """The pool of its jobs; by default one of the pipeline's own, where the project makes them (`TIDEMARK_POOLS`)."""
    connection: str = Field(default="spark_default", pattern=r"^[\w.-]+$")
    """The connection that names the Spark to submit to."""
