"""The tasks of a run of slices: wait for the inputs, run a Spark application, report what it has committed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, BaseOperator, Connection, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)

from tidemark.airflow.assets import describe_missing_events, read_report_start, record_commits, store_reported_commit
from tidemark.airflow.cluster_driver import UI_PORT, ClusterDriver
from tidemark.airflow.connect_job import ConnectJob, connect_address
from tidemark.airflow.metrics import send_agreement_metrics, send_commit_metrics, send_uncommitted_slices
from tidemark.airflow.project import Project
from tidemark.airflow.triggers import InputsComplete
from tidemark.airflow_provider.links import DataDocsLink, QuarantineLink, ReportLink, SparkHistoryLink
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.cluster import SPARK_SECRET_VARIABLE
from tidemark.config.notify import Receiver, get_connection_variable
from tidemark.config.types import parse_instant
from tidemark.errors import CheckFailedError, PipelineFileError, SliceOrderError, UserError, to_submit_exit_code

_FINAL_EXIT_CODES = tuple(
    f"Error code is: {to_submit_exit_code(kind.exit_code)}." for kind in (CheckFailedError, UserError)
)
"""Endings of the operator's message for exit codes after which a retry cannot succeed."""


class WaitForInputs(BaseOperator):
    """Operator that waits until the inputs are complete up to `end`, and skips slices that are committed.

    It checks once in a worker, then defers to the triggerer and occupies no slot.
    """

    template_fields: Sequence[str] = ("start", "end", "ignore_completeness")

    def __init__(
        self, *, file: Path, project: Project, start: str, end: str, ignore_completeness: str = "", **kwargs: Any
    ) -> None:
        """Create the task.

        Args:
            file: The pipeline file.
            project: Folders of pipelines, lake and jars.
            start: Start of the first slice (inclusive), a template.
            end: End of the last slice (exclusive), a template.
            ignore_completeness: Template; if it renders to True, the task does not wait.
            kwargs: Further arguments of `BaseOperator`.
        """
        super().__init__(**kwargs)
        self.file, self.lake = str(file), project.lake
        self.start, self.end, self.ignore_completeness = start, end, ignore_completeness

    def execute(self, context: Context) -> None:
        """Check the slices and inputs, and defer while the inputs are incomplete.

        Raises:
            AirflowSkipException: The slices are committed.
            AirflowFailException: The pipeline file or a table is not valid, or `start` or `end` is no slice boundary.
        """
        from tidemark.airflow.status_queries import are_committed  # noqa: PLC0415 - opens tables

        try:
            pipeline, start, end = load_pipeline(Path(self.file)), parse_instant(self.start), parse_instant(self.end)
            is_committed = are_committed(pipeline, self.lake, start, end)
            send_uncommitted_slices(pipeline, self.lake)
        except SliceOrderError as error:
            is_scheduled = "dag_run" in context and context["dag_run"].run_type == "scheduled"
            hint = ". If the setting slices has changed, see docs/change-a-pipeline.md" if is_scheduled else ""
            raise AirflowFailException(f"{error}{hint}") from None
        except (UserError, ValueError) as error:
            raise AirflowFailException(str(error)) from None
        if is_committed:
            raise AirflowSkipException(f"slices from {self.start} to {self.end} are committed")
        if self.ignore_completeness == "True":
            return
        timeout = pipeline.airflow.wait_timeout
        self._wait(context, pipeline, (datetime.now(UTC) + timeout).isoformat() if timeout else None)

    def resume(self, context: Context, event: dict[str, str | None]) -> None:
        """Continue after the trigger fired.

        Raises:
            AirflowFailException: The wait timed out, or a table is not valid.
        """
        timeout_at = event["timeout_at"]
        if message := event.get("error"):
            raise AirflowFailException(message)
        if message := event.get("incomplete"):
            raise AirflowFailException(self._timeout_message(timeout_at, message))
        self._wait(context, load_pipeline(Path(self.file)), timeout_at)

    def _timeout_message(self, timeout_at: str | None, incomplete: str) -> str:
        return f"inputs were not complete up to {self.end} when the wait ended at {timeout_at}: {incomplete}"

    def _wait(self, context: Context, pipeline: Pipeline, timeout_at: str | None) -> None:
        from tidemark.airflow.status_queries import (  # noqa: PLC0415 - opens tables
            describe_incomplete_inputs,
            find_start_of_uncommitted,
        )

        end = parse_instant(self.end)
        try:
            incomplete = describe_incomplete_inputs(self.file, self.lake, end.isoformat())
            first = find_start_of_uncommitted(pipeline, self.lake, parse_instant(self.start))
        except UserError as error:
            raise AirflowFailException(str(error)) from None
        incomplete += describe_missing_events(context, pipeline, first.isoformat(), self.end)
        if not incomplete:
            return
        message = "; ".join(incomplete)
        if timeout_at and datetime.now(UTC) >= datetime.fromisoformat(timeout_at):
            raise AirflowFailException(self._timeout_message(timeout_at, message))
        self.log.info("waiting for inputs to be complete up to %s: %s", self.end, message)
        poll_interval = pipeline.airflow.poll_interval.total_seconds()
        trigger = InputsComplete(
            file=self.file, lake=self.lake, end=end.isoformat(), poll_interval=poll_interval, timeout_at=timeout_at
        )
        self.defer(trigger=trigger, method_name="resume")


def _find_data_docs(file: Path | str, lake: str) -> str | None:
    """Return the path of a pipeline's Data Docs below the lake root; None if there are none."""
    from tidemark.airflow.status_queries import find_data_docs  # noqa: PLC0415 - opens storage

    return find_data_docs(load_pipeline(Path(file)), lake)


class RunSlices(SparkSubmitOperator):
    """Operator that submits a `tidemark` command to the Spark of the pipeline's connection."""

    operator_extra_links = (DataDocsLink(), ReportLink(), SparkHistoryLink())

    def __init__(
        self, *, file: Path, project: Project, options: list[str], command: Sequence[str] = ("run",), **kwargs: Any
    ) -> None:
        """Create the task.

        Args:
            file: The pipeline file.
            project: Folders of pipelines, lake and jars.
            options: Options of the command, templates.
            command: The command and its fixed options.
            kwargs: Further arguments of `SparkSubmitOperator`.
        """
        self.file, self.lake, self.command = file, project.lake, command[0]
        super().__init__(
            application=str(Path(__file__).with_name("spark_application.py")),
            application_args=[*command, str(file), "--lake", project.lake, *options],
            jars=",".join(project.jars) or None,
            spark_binary=str(Path(sys.executable).with_name("spark-submit")),
            env_vars={
                "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            **kwargs,
        )
        self._connect_job: ConnectJob | None = None
        self._cluster_driver: ClusterDriver | None = None

    def execute(self, context: Context) -> None:
        """Submit the job and wait for it. For a Spark Connect server, run it as a process of this worker.

        Raises:
            AirflowFailException: The connection is missing, or a retry of the job cannot succeed.
            AirflowException: The job failed. A retry leaves committed slices alone.
        """
        connection = self._require_connection()
        try:
            if address := connect_address(connection):
                self._run_on_connect_server(address, connection.password)
            else:
                super().execute(context)
            if self._cluster_driver and (store := context.get("task_state_store")):
                store.delete(self.external_id_key)  # a cleared task would find the driver that has succeeded
        except AirflowException as error:
            if any(code in str(error) for code in _FINAL_EXIT_CODES):
                raise AirflowFailException(_extract_error(str(error))) from None
            raise
        finally:
            if self.command == "compare":
                with suppress(PipelineFileError):  # the job has reported it
                    send_agreement_metrics(load_pipeline(self.file), self.lake)

    def find_data_docs(self) -> str | None:
        """Return the path of the pipeline's Data Docs below the lake root, for the task's link."""
        return _find_data_docs(self.file, self.lake)

    def find_report(self) -> str | None:
        """Return the path of the comparison's report below the lake root, for the task's link."""
        from tidemark.airflow.status_queries import find_report  # noqa: PLC0415 - opens storage

        return find_report(load_pipeline(self.file), self.lake)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the lineage that OpenLineage sends when the task starts and when it ends."""
        from tidemark.airflow.lineage import command_lineage  # noqa: PLC0415 - OpenLineage may not be installed

        return command_lineage(self.file, self.lake, map(str, self.application_args or ()))

    def submit_job(self, context: Context) -> str | None:
        """Submit the job in cluster deploy mode; return the id of its driver, which Airflow stores for a retry."""
        return self._cluster_driver.submit(self.application) if self._cluster_driver else super().submit_job(context)

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Return the state of the driver that an earlier try has submitted."""
        if self._cluster_driver:
            return self._cluster_driver.get_status(external_id)
        return super().get_job_status(external_id, context)

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait for the driver."""
        if self._cluster_driver:
            self._cluster_driver.wait(external_id)
        else:
            super().poll_until_complete(external_id, context)

    def on_kill(self) -> None:
        """Stop the job that this task started."""
        if self._connect_job is not None:
            self._connect_job.stop()
        elif self._cluster_driver is not None:
            self._cluster_driver.kill()
        else:
            super().on_kill()

    def _run_on_connect_server(self, address: str, token: str | None) -> None:
        self._connect_job = ConnectJob(address, token, self._receiver_connections())
        code = self._connect_job.run(list(map(str, self.application_args or ())), self.log.info)
        if code:
            server, output = address.partition("/;")[0], self._connect_job.last_output
            raise AirflowException(f"the job on {server} ended. Error code is: {code}.\n{output}")

    def _get_hook(self) -> SparkSubmitHook:
        # The connection's password is the secret of a standalone cluster. The operator's own `env_vars` are shown in
        # the UI and, on other clusters, on the command line.
        hook = super()._get_hook()
        master = str(hook._connection["master"])  # noqa: SLF001
        secrets = {}
        if master.startswith("spark://") and (secret := BaseHook.get_connection(self._conn_id).password):
            secrets[SPARK_SECRET_VARIABLE] = secret
        if master.startswith(("spark://", "local")):
            secrets |= self._receiver_connections()
        if hook._should_track_driver_status:  # noqa: SLF001 - cluster deploy mode on a standalone cluster
            ui_port = BaseHook.get_connection(self._conn_id).extra_dejson.get("ui-port", UI_PORT)
            self._cluster_driver = ClusterDriver(hook, ui_port, secrets)
        elif secrets:
            hook._env_vars = {**(self.env_vars or {}), **secrets}  # noqa: SLF001
        return hook

    def _receiver_connections(self) -> dict[str, str]:
        """Return the connections of the `notify` receivers as environment variables of the job."""
        connections: dict[str, str] = {}
        receivers: list[Receiver] = []
        # The job reports what is missing or wrong in the file.
        with suppress(PipelineFileError):
            receivers = load_pipeline(self.file).notify if self.command in {"run", "reprocess"} else []
        for receiver in receivers:
            with suppress(AirflowNotFoundException):
                connections[get_connection_variable(receiver.connection)] = BaseHook.get_connection(
                    receiver.connection
                ).as_json()
        return connections

    def _require_connection(self) -> Connection:
        # The base operator would submit to YARN if the connection is missing.
        try:
            return BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException:
            local, remedy = '{"conn_type": "spark", "host": "local[*]"}', "Add it in Airflow"
            if self._conn_id.isidentifier():  # a shell exports no other names
                remedy += f", or set {get_connection_variable(self._conn_id)}='{local}'"
            raise AirflowFailException(f"connection {self._conn_id} is missing. {remedy}") from None


def _extract_error(output: str) -> str:
    r"""Return the job's error line, for the log and callbacks; the complete output if it has none.

    >>> _extract_error("Cannot execute: spark-submit. Error code is: 65.\nerror: quality gate: found 3\nbye")
    'quality gate: found 3'
    >>> _extract_error('Error code is: 65.\n{"level": "error", "event": "quality gate: found 3", "exit_code": 1}')
    'quality gate: found 3'
    """
    return next((error for line in output.splitlines() if (error := _parse_error(line))), output)


def _parse_error(line: str) -> str | None:
    """Return the error in a line of text or JSON (`TIDEMARK_LOG_FORMAT`), or None."""
    if line.startswith("error: "):
        return line.removeprefix("error: ")
    if line.startswith("{"):
        with suppress(ValueError):
            record = json.loads(line)
            return str(record["event"]) if record.get("level") == "error" and "exit_code" in record else None
    return None


class ReportSlices(BaseOperator):
    """Operator that logs what was committed since the last report, and attaches it to the event of the asset.

    The last reported commit is in Airflow's state store of the slices' asset, which has to be an outlet. So commits of
    other runs are reported once, and a failed report is made up for by the next one.
    """

    operator_extra_links = (DataDocsLink(), QuarantineLink())

    def __init__(self, *, file: Path, project: Project, **kwargs: Any) -> None:
        """Create the task.

        Args:
            file: The pipeline file.
            project: Folders of pipelines, lake and jars.
            kwargs: Further arguments of `BaseOperator`.
        """
        super().__init__(**kwargs)
        self.file, self.lake = str(file), project.lake
        self._commits: dict[str, Any] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Read from the ledger what was committed since the last report.

        Returns:
            The summary of `status_queries.summarize_commits_since`, which the asset's event has too.

        Raises:
            AirflowSkipException: Nothing was committed, so there is no event.
        """
        from tidemark.airflow.status_queries import summarize_commits_since  # noqa: PLC0415 - opens tables

        pipeline = load_pipeline(Path(self.file))
        since = read_report_start(context, pipeline, self.outlets)
        commits = self._commits = summarize_commits_since(pipeline, self.lake, since)
        send_uncommitted_slices(pipeline, self.lake)
        if commits is None:
            raise AirflowSkipException("nothing was committed")
        # An outlet that is removed gets no event.
        self.outlets = record_commits(context, pipeline, self.lake, commits, since, self.outlets)
        send_commit_metrics(commits)
        self.log.info("%s", _describe_commits(commits))
        # Last, because a retry reports nothing of what is stored.
        store_reported_commit(context, pipeline, self.outlets, commits)
        return commits

    def find_data_docs(self) -> str | None:
        """Return the path of the pipeline's Data Docs below the lake root, for the task's link."""
        return _find_data_docs(self.file, self.lake)

    @property
    def quarantined_pipeline(self) -> str | None:
        """Name of the pipeline if it reported slices with rows in quarantine, for the task's link."""
        commits = self._commits or {}
        return commits.get("pipeline") if commits.get("quality", {}).get("quarantined") else None

    def get_openlineage_facets_on_complete(self, _: Any) -> Any:
        """Return the lineage of the committed slices for OpenLineage."""
        if self._commits is None:
            return None
        from tidemark.airflow.lineage import commit_lineage  # noqa: PLC0415 - OpenLineage may not be installed

        return commit_lineage(self.file, self.lake, self._commits)


class TableOperator(BaseOperator):
    """Operator that reads or changes a pipeline's tables in the worker."""

    def __init__(self, *, file: Path, project: Project, **kwargs: Any) -> None:
        """Create the task for a pipeline file and its project."""
        super().__init__(**kwargs)
        self.file, self.lake = str(file), project.lake


class VacuumTables(TableOperator):
    """Operator that removes files by the pipeline's `retention`, except checkpoints.

    Expiring checkpoints may need Spark, so `tidemark tables vacuum` does it.
    """

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow's
        """Remove the files.

        Raises:
            AirflowFailException: The pipeline file or a table is not valid.
        """
        from tidemark.airflow.status_queries import vacuum_tables  # noqa: PLC0415 - opens tables

        try:
            self.log.info("%s", vacuum_tables(load_pipeline(Path(self.file)), self.lake))
        except UserError as error:
            raise AirflowFailException(str(error)) from None


class VerifyTables(TableOperator):
    """Operator that fails if a pipeline's tables are not as they were committed."""

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow's
        """Check that ledger, tables and files agree.

        Raises:
            AirflowFailException: They do not agree, or the pipeline file or a table is not valid.
        """
        from tidemark.airflow.status_queries import describe_integrity_issues  # noqa: PLC0415 - opens tables

        try:
            pipeline = load_pipeline(Path(self.file))
            issues = describe_integrity_issues(pipeline, self.lake)
        except UserError as error:
            raise AirflowFailException(str(error)) from None
        if issues:
            command = f"tidemark tables repair {format_cli_arguments(pipeline)}"
            message = f"{pipeline.name} is not as it was committed; {command} may repair it"
            raise AirflowFailException("; ".join((message, *issues)))


def _describe_commits(commits: dict[str, Any]) -> str:
    late = " and ".join(f"{commits[side]['late']:,} {side}" for side in ("left", "right"))
    amended = f"; {commits['amended']:,} slices amended, {commits['released']:,} rows released"
    return (
        f"{commits['pipeline']}: {commits['slices']:,} slices from {commits['from']} to {commits['to']}, "
        f"{commits['emissions']:,} emissions, {late} rows late; quality {commits['quality']}"
        f"{amended if commits['amended'] else ''}; {commits['docs']}"
    )
