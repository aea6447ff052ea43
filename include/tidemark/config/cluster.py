"""Settings of the Spark cluster resources of a job."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from tidemark.config.base import Settings

MemorySize = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}[mg]$")]
ExecutorCount = Annotated[int, Field(ge=1, le=10_000)]
SPARK_SECRET_VARIABLE = "_SPARK_AUTH_SECRET"  # noqa: S105 - a name
"""Environment variable from which Spark reads the authentication secret of a standalone cluster."""
AUTHENTICATION_SETTINGS = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
"""Settings of a client of a standalone cluster with a secret."""
MASTER_VARIABLE = "TIDEMARK_MASTER"
"""Environment variable with the Spark master."""
WARM_MASTER = "warm"
"""Master that stands for this machine's warm server (`spark.warm_server`)."""
WARM_SERVER_IDLE_MINUTES = 30
"""Minutes without a command after which the warm server ends."""
CONNECT_SCHEME = "sc://"
"""URL scheme of Spark Connect servers."""
CONNECT_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - a name
"""Environment variable from which Spark reads the authentication token of a Spark Connect server."""
_TASKS_PER_CORE = 4
"""Shuffle partitions per core. Small tasks keep cores busy at the end of a stage; AQE coalesces tiny partitions."""


class Executors(Settings):
    """Bounds on the number of executors under dynamic allocation."""

    min: int = Field(default=0, ge=0, le=10_000)
    """Number of executors that stay allocated when idle."""
    max: ExecutorCount
    """Maximum number of executors."""

    @model_validator(mode="after")
    def _check_order(self) -> Executors:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max}). Swap them.")
        return self


class Cluster(Settings):
    """Cluster resources of a job. Ignored for local sessions. They do not affect output rows."""

    executors: ExecutorCount | Executors = 2
    """Number of executors, or `{min: 1, max: 8}` for dynamic allocation."""
    executor_cores: Annotated[int, Field(ge=1, le=1_000)] = 2
    """Number of cores per executor."""
    executor_memory: MemorySize = "2g"
    """JVM heap size of each executor, such as 900m or 4g."""
    shuffle_partitions: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Number of shuffle partitions. Default: 4 per core."""
    event_log: bool = True
    """Enable Spark's event log for the history server, if the installation sets its folder
    (`TIDEMARK_EVENT_LOGS`)."""

    def to_spark_config(self) -> dict[str, str]:
        """Return the Spark properties of a job on a cluster."""
        max_executors = self.executors if isinstance(self.executors, int) else self.executors.max
        cores = max_executors * self.executor_cores
        properties = {
            "spark.executor.cores": str(self.executor_cores),
            "spark.executor.memory": self.executor_memory,
            "spark.cores.max": str(cores),  # without it, a standalone master allocates all its cores
            "spark.sql.shuffle.partitions": str(self.shuffle_partitions or _TASKS_PER_CORE * cores),
            "spark.dynamicAllocation.enabled": str(not isinstance(self.executors, int)).lower(),
        }
        if isinstance(self.executors, int):
            return {**properties, "spark.executor.instances": str(self.executors)}
        return {
            **properties,
            "spark.dynamicAllocation.minExecutors": str(self.executors.min),
            "spark.dynamicAllocation.maxExecutors": str(max_executors),
            # Without an external shuffle service, executors with live shuffle files must stay allocated.
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        }
