"""What a job takes of a cluster; no answer depends on it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from tidemark.config.base import Settings

Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}[mg]$", description="as Spark has it: 900m, 4g")]
Count = Annotated[int, Field(ge=1, le=10_000)]
SECRET = "_SPARK_AUTH_SECRET"  # noqa: S105 - a name
"""The environment variable from which Spark itself takes the secret of a standalone cluster."""
CONNECT_SCHEME = "sc://"
"""How the address of a Spark Connect server begins."""
CONNECT_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - a name
"""The environment variable from which Spark itself takes the token of a server."""
_TASKS_PER_CORE = 4
"""Of a shuffle: when the last ones run, few cores wait, and Spark merges what is small."""


class Executors(Settings):
    """As many executors as there is work for (dynamic allocation)."""

    least: int = Field(default=0, ge=0, le=10_000)
    """How many are kept while there is none."""
    most: Count

    @model_validator(mode="after")
    def _in_order(self) -> Executors:
        if self.least > self.most:
            raise ValueError(f"least ({self.least}) is more than most ({self.most})")
        return self


class Cluster(Settings):
    """What a job takes of a cluster, and what it leaves there; a session on one machine takes that machine."""

    executors: Count | Executors = 2
    """How many, or `{least: 1, most: 8}` for as many as there is work for."""
    executor_cores: Annotated[int, Field(ge=1, le=1_000)] = 2
    executor_memory: Memory = "2g"
    """The heap of each executor."""
    shuffle_partitions: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Four for each core by default."""
    event_log: bool = True
    """Whether the job is kept for Spark's history server, where the operator has a place for it
    (`TIDEMARK_EVENT_LOGS`)."""

    def spark_settings(self) -> dict[str, str]:
        """Spark's settings of a job on a cluster."""
        most = self.executors if isinstance(self.executors, int) else self.executors.most
        cores = most * self.executor_cores
        settings = {
            "spark.executor.cores": str(self.executor_cores),
            "spark.executor.memory": self.executor_memory,
            "spark.cores.max": str(cores),  # a standalone master gives all that it has otherwise
            "spark.sql.shuffle.partitions": str(self.shuffle_partitions or _TASKS_PER_CORE * cores),
            "spark.dynamicAllocation.enabled": str(not isinstance(self.executors, int)).lower(),
        }
        if isinstance(self.executors, int):
            return {**settings, "spark.executor.instances": str(self.executors)}
        return {
            **settings,
            "spark.dynamicAllocation.minExecutors": str(self.executors.least),
            "spark.dynamicAllocation.maxExecutors": str(most),
            # Nobody else keeps an executor's shuffle files for it.
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        }
