"""Settings of the Airflow DAGs of a pipeline."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from tidemark.config.base import Settings
from tidemark.config.types import PositiveDuration, TimeZone

PartitionKind = Literal["slice", "day"]


class ApprovalLimits(Settings):
    """Largest repair that runs without approval. Slices that follow a repaired one do not count."""

    slices: int | None = Field(default=None, ge=0)
    """Number of outdated slices. Default: unlimited."""
    rows: int | None = Field(default=None, ge=0)
    """Estimated number of input rows that these slices read. Default: unlimited."""

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.slices is None and self.rows is None:
            raise ValueError("has neither slices nor rows. Write one of them, such as slices: 24.")
        return self


class RepairSettings(Settings):
    """Settings of the DAG NAME__repair, which runs outdated slices again once a person has approved the plan.

    All but `approve_above` also apply to NAME__release and NAME__waive.
    """

    every: PositiveDuration | None = None
    """Interval of scheduled runs. Default: the DAGs are started by hand only."""
    approve_above: ApprovalLimits | None = None
    """Limits above which a person must approve the plan. Below all of them, the repair runs at once. Default: a person
    approves every repair."""
    answer_within: PositiveDuration | None = None
    """Time after which a plan without an answer counts as rejected. Default: unlimited."""
    approvers: list[str] = []
    """Ids of the Airflow users who may answer. Default: all users who may act on the DAG."""


class AirflowSettings(Settings):
    """Settings of the Airflow DAGs. They do not affect output rows."""

    owner: str = Field(default="tidemark", pattern=r"^[\w.@-]+$")
    """Owner of the DAGs in Airflow's DAG list: letters, digits, _, -, . and @."""
    retries: int = Field(default=2, ge=0, le=100)
    """Number of retries after an infrastructure fault. User errors and failed checks are not retried."""
    retry_delay: PositiveDuration = timedelta(minutes=1)
    """Delay before a retry."""
    execution_timeout: PositiveDuration | None = None
    """Maximum duration of a job. A job that exceeds it is killed and retried. Default: unlimited."""
    poll_interval: PositiveDuration = timedelta(minutes=1)
    """Interval at which a waiting slice checks if its inputs are complete."""
    wait_timeout: PositiveDuration | None = None
    """Maximum time that a slice waits for its inputs before it fails. Default: unlimited."""
    deadline: PositiveDuration | None = None
    """Time after queueing by which a run should end. Airflow calls the project's callback for a run that misses it;
    the run continues. Default: none."""
    deadline_from: Literal["queued", "interval_end"] = "queued"
    """Instant from which `deadline` counts: when the run was queued, or the end of its data interval, which is the end
    of its slice. Runs without a data interval, such as those by hand of NAME__range, then have no deadline."""
    pool: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    """Airflow pool of the pipeline's jobs, with a name of letters, digits, _, - and dots. It must exist. Default: one
    pool per pipeline if the project creates them (`TIDEMARK_POOLS`), otherwise `default_pool`."""
    connection: str = Field(default="spark_default", pattern=r"^[\w.-]+$")
    """Airflow connection of the Spark cluster that jobs are submitted to, with a name of letters, digits, _, - and
    dots."""
    watch_inputs: bool = False
    """If true, the DAG NAME__landed runs slices when rows land in an input and complete it. It needs the rule
    `complete` on each table, by row, commit or marker, or a streaming checkpoint. Leave NAME__slice paused then."""
    partitions: list[PartitionKind] = []
    """Assets with partition keys that the DAGs publish beside NAME__slices. `slice`: NAME__partitions gets a key for
    each committed slice. `day`: NAME__days gets a key for each day whose slices are committed. Reprocessed slices send
    their keys again. Default: none."""
    day_time_zone: TimeZone | None = None
    """IANA time zone of the days of NAME__days. Default: `slices.time_zone`, which is UTC by default."""
    repair: RepairSettings = RepairSettings()
    """When the DAGs NAME__repair, NAME__release and NAME__waive run, and who approves what they do."""
