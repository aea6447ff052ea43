"""The tasks of a release from quarantine and of a waiver: list slices, and publish those that a person approved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tidemark.airflow.approval import get_approval
from tidemark.airflow.operators import RunSlices, TableOperator
from tidemark.airflow.plan_markdown import render_releases, render_waivers
from tidemark.airflow_provider.links import DataDocsLink, QuarantineLink
from tidemark.config import Pipeline, load_pipeline
from tidemark.errors import UserError


class _PlanSlices(TableOperator):
    def _plan(
        self,
        create: Callable[[Pipeline, str], dict[str, Any]],
        render: Callable[[Mapping[str, Any]], str],
        nothing: str,
    ) -> dict[str, Any]:
        """Create and log a plan.

        Args:
            create: Function that creates the plan.
            render: Function that renders it in Markdown.
            nothing: Message about a plan without slices and notes.

        Returns:
            `plan` and `markdown`.

        Raises:
            AirflowSkipException: The plan has no slices.
            AirflowFailException: The pipeline file or a table is not valid.
        """
        try:
            plan = create(load_pipeline(Path(self.file)), self.lake)
        except UserError as error:
            raise AirflowFailException(str(error)) from None
        if not plan["slices"]:
            raise AirflowSkipException("; ".join(plan["notes"]) or nothing)
        markdown = render(plan)
        self.log.info("%s", markdown)
        return {"plan": plan, "markdown": markdown}


class PlanReleases(_PlanSlices):
    """Operator that lists the slices with rows in quarantine. It reads tables in the worker."""

    operator_extra_links = (QuarantineLink(),)
    quarantined_pipeline: str | None = None
    """Name of the pipeline if slices have rows in quarantine, for the task's link."""

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's
        """List them, and log the list.

        Returns:
            `plan` (`withheld_slices.plan_releases`) and `markdown`.

        Raises:
            AirflowSkipException: No row is in quarantine.
            AirflowFailException: The pipeline file or a table is not valid.
        """
        from tidemark.airflow.withheld_slices import plan_releases  # noqa: PLC0415 - opens tables

        result = self._plan(plan_releases, render_releases, "no row is in quarantine")
        self.quarantined_pipeline = result["plan"]["pipeline"]
        return result


class ReleaseRows(RunSlices):
    """Operator that publishes the rows of the approved slices, unless a slice has run again since."""

    def execute(self, context: Context) -> None:
        """Submit the job, unless all slices are released.

        Raises:
            AirflowFailException: No person has approved, a slice has run again since, or a retry of the job cannot
                succeed.
            AirflowException: The job failed. A retry continues with the slices that are left.
        """
        from tidemark.airflow.withheld_slices import select_unreleased  # noqa: PLC0415 - opens tables

        approval = get_approval(context)
        try:
            slices = select_unreleased(load_pipeline(self.file), self.lake, approval.slices)
        except UserError as error:
            raise AirflowFailException(str(error)) from None
        if not slices:
            self.log.info("the rows of all approved slices are released")
            return
        options = [f"--{name}={item[name]}" for item in slices for name in ("slice", "run")]
        self.application_args = [*(self.application_args or ()), *options, f"--user={approval.user}"]
        super().execute(context)


class PlanWaivers(_PlanSlices):
    """Operator that lists the rejected slices that can be waived. It reads tables in the worker."""

    operator_extra_links = (DataDocsLink(),)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's
        """List them, and log the list.

        Returns:
            `plan` (`withheld_slices.plan_waivers`) and `markdown`.

        Raises:
            AirflowSkipException: No rejected slice can be waived.
            AirflowFailException: The pipeline file or a table is not valid.
        """
        from tidemark.airflow.withheld_slices import plan_waivers  # noqa: PLC0415 - opens tables

        return self._plan(plan_waivers, render_waivers, "no slice is rejected")

    def find_data_docs(self) -> str | None:
        """Return the path of the pipeline's Data Docs below the lake root, for the task's link."""
        from tidemark.airflow.status_queries import find_data_docs  # noqa: PLC0415 - opens storage

        return find_data_docs(load_pipeline(Path(self.file)), self.lake)


class WaiveExpectations(TableOperator):
    """Operator that waives the failed expectations of the approved slices, in the worker."""

    def execute(self, context: Context) -> None:
        """Store the waivers.

        Raises:
            AirflowFailException: No person has approved, or a slice has run again since.
        """
        from tidemark.airflow.withheld_slices import waive_slices  # noqa: PLC0415 - opens tables

        approval = get_approval(context)
        try:
            pipeline = load_pipeline(Path(self.file))
            for line in waive_slices(pipeline, self.lake, approval.slices, approval.reason, approval.user):
                self.log.info("%s", line)
        except UserError as error:
            raise AirflowFailException(str(error)) from None


class ReprocessWaivedSlices(RunSlices):
    """Operator that runs the approved slices again that an earlier run has published, by a job per range."""

    def execute(self, context: Context) -> None:
        """Submit the jobs one after another.

        Raises:
            AirflowSkipException: No approved slice is left whose earlier run is published.
            AirflowFailException: No person has approved, or a retry of a job cannot succeed.
            AirflowException: A job failed, or slices are left. A retry continues with them.
        """
        committed = [item for item in get_approval(context).slices if item["is_committed"]]
        ranges = self._list_ranges(committed)
        if not ranges:
            raise AirflowSkipException("no approved slice has an earlier run that is published")
        arguments = self.application_args or ()
        for start, end in ranges:
            self.application_args = [*arguments, "--from", start, "--to", end]
            self._hook = None  # it has the arguments of the job before
            super().execute(context)
        # A retry may have found the driver of another range, which had succeeded.
        if remaining := self._list_ranges(committed):
            raise AirflowException(f"slices from {remaining[0][0]} to {remaining[-1][1]} are still rejected")

    def _list_ranges(self, committed: list[dict[str, Any]]) -> list[tuple[str, str]]:
        from tidemark.airflow.withheld_slices import list_rejected_ranges  # noqa: PLC0415 - opens tables

        try:
            return list_rejected_ranges(load_pipeline(self.file), self.lake, committed)
        except UserError as error:
            raise AirflowFailException(str(error)) from None


class RunWaivedSlices(RunSlices):
    """Operator that runs the approved slices that no run has committed, and the slices before them."""

    def execute(self, context: Context) -> None:
        """Submit the job.

        Raises:
            AirflowSkipException: All approved slices have an earlier run that is published.
            AirflowFailException: No person has approved, or a retry of the job cannot succeed.
            AirflowException: The job failed. A retry leaves committed slices alone.
        """
        ends = [item["end"] for item in get_approval(context).slices if not item["is_committed"]]
        if not ends:
            raise AirflowSkipException("all approved slices have an earlier run that is published")
        self.application_args = [*(self.application_args or ()), "--to", ends[-1]]
        super().execute(context)
