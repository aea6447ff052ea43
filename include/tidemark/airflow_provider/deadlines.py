"""Define deadlines that count from the end of a run's data interval."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from airflow.sdk.definitions.deadline import BaseDeadlineReference


class DataIntervalEnd(BaseDeadlineReference):
    """Reference of a deadline: the end of the run's data interval, which is the end of its slice."""

    required_kwargs: ClassVar[set[str]] = {"dag_id", "run_id"}
    """Arguments that Airflow passes to `_evaluate_with`."""

    def _evaluate_with(self, *, session: Any, dag_id: str, run_id: str) -> datetime | None:
        """Return the end of a run's data interval; None for a run without one, which then has no deadline."""
        from airflow.models import DagRun  # noqa: PLC0415 - only the scheduler has the database
        from sqlalchemy import select  # noqa: PLC0415

        of_run = (DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        end: datetime | None = session.scalar(select(DagRun.data_interval_end).where(*of_run))
        return end
