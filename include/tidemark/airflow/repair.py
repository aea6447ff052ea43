"""The tasks of a repair: plan the outdated slices, let a person approve the plan, run what was approved."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.airflow.approval import PLAN_TASK, ApprovePlan
from tidemark.airflow.operators import RunSlices
from tidemark.airflow.plan_markdown import list_approval_reasons, render_plan
from tidemark.config import load_pipeline
from tidemark.errors import UserError


class PlanRepair(RunSlices):
    """Operator that plans which committed slices have to run again, and runs none.

    It reads settings and table logs in the worker. If they do not suffice, it submits `tidemark reprocess --dry-run`.
    """

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Plan, and log the plan.

        Returns:
            `plan` (`Plan.to_dict`), `markdown`, and `approval_reasons`, empty if nobody has to approve it.

        Raises:
            AirflowSkipException: No slice is outdated.
            AirflowFailException: The planner refuses, with its reason.
        """
        from tidemark.airflow import status_queries  # noqa: PLC0415 - opens tables

        try:
            pipeline = load_pipeline(Path(self.file))
            plan = status_queries.plan_outdated_slices(pipeline, self.lake)
            earlier = status_queries.describe_outdated_upstreams(pipeline, self.lake)
        except UserError as error:
            raise AirflowFailException(str(error)) from None
        if plan is None:
            self.log.info("table logs do not suffice to find the outdated slices, so Spark reads rows")
            plan = self._submit_plan(context)
        plan["notes"] = [*plan["notes"], *earlier]
        if not plan["slices"]:
            raise AirflowSkipException("; ".join(plan["notes"]) or "no committed slice is outdated")
        reasons = list_approval_reasons(pipeline, plan)
        markdown = render_plan(plan, reasons)
        self.log.info("%s", markdown)
        return {"plan": plan, "markdown": markdown, "approval_reasons": reasons}

    def _submit_plan(self, context: Context) -> dict[str, Any]:
        """Plan in a Spark application. Its driver runs on this machine, so it writes the plan to a local file."""
        self._deploy_mode = "client"
        with TemporaryDirectory() as folder:
            file = Path(folder, "plan.json")
            self.application_args = [*(self.application_args or ()), "--plan-file", str(file)]
            super().execute(context)
            plan: dict[str, Any] = json.loads(file.read_text())
            return plan


class ApproveRepair(ApprovePlan):
    """Operator that shows the plan and waits for a person, unless the pipeline file allows to go on without one."""

    def execute(self, context: Context) -> Any:
        """Wait for a person, or return at once if nobody has to approve the plan."""
        if context["ti"].xcom_pull(task_ids=PLAN_TASK)["approval_reasons"]:
            return super().execute(context)
        self.log.info("the plan is below airflow.repair.approve_above, so it runs without approval")
        return {"chosen_options": [self.APPROVE], "responded_by_user": None}


class RepairSlices(RunSlices):
    """Operator that runs the approved slices again. The job refuses to run more than was approved."""

    def execute(self, context: Context) -> None:
        """Submit the job with the approved plan.

        Raises:
            AirflowFailException: The plan has changed since, or a retry of the job cannot succeed.
            AirflowException: The job failed. A retry continues with the slices that are left.
        """
        plan = context["ti"].xcom_pull(task_ids=PLAN_TASK)["plan"]
        self._deploy_mode = "client"  # the driver reads a file of this machine
        with TemporaryDirectory() as folder:
            file = Path(folder, "plan.json")
            file.write_text(json.dumps(plan))
            self.application_args = [*(self.application_args or ()), "--plan-file", str(file)]
            super().execute(context)
