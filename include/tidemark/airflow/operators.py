"""The tasks of a run of slices: wait for the inputs, run a Spark application, report what it has committed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, BaseHook, BaseOperator, Connection, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)

from tidemark.airflow.connect_job import WarmJob, address_of
from tidemark.airflow.metrics import tell_agreement, tell_behind, tell_committed
from tidemark.airflow.project import Project
from tidemark.airflow.triggers import InputsComplete
from tidemark.config import Input, Pipeline, load_pipeline
from tidemark.config.cluster import SECRET
from tidemark.config.notify import Receiver, variable
from tidemark.config.types import parse_instant
from tidemark.errors import CheckFailedError, PipelineFileError, UserError, submitted_code

_FINAL = tuple(f"Error code is: {submitted_code(kind.exit_code)}." for kind in (CheckFailedError, UserError))
"""What the operator says of a job after which trying again cannot help."""


class WaitForInputs(BaseOperator):
    """Passes once the inputs are complete up to `end`; skips what follows where the slices are committed already.

    It looks once in a worker, and then waits deferred, without a slot.
    """

    template_fields: Sequence[str] = ("start", "end", "unless")

    def __init__(self, *, file: Path, project: Project, start: str, end: str, unless: str = "", **kwargs: Any) -> None:
        """`start` and `end` bound the slices (exclusive), as templates; with `unless` True nothing is waited for."""
        super().__init__(**kwargs)
        self.file, self.lake = str(file), project.lake
        self.start, self.end, self.unless = start, end, unless

    def execute(self, context: Context) -> None:
        """Look, and wait.

        Raises:
            AirflowSkipException: the slices are committed.
            AirflowFailException: the pipeline file or a table does not serve.
        """
        from tidemark.airflow.status_queries import are_committed  # noqa: PLC0415 - opens tables

        try:
            pipeline, start, end = load_pipeline(Path(self.file)), parse_instant(self.start), parse_instant(self.end)
            done = are_committed(pipeline, self.lake, start, end)
            tell_behind(pipeline, self.lake)
        except (UserError, ValueError) as error:
            raise AirflowFailException(str(error)) from None
        if done:
            raise AirflowSkipException(f"slices from {self.start} to {self.end} are committed")
        if self.unless == "True":
            return
        most = pipeline.airflow.wait_at_most
        self._wait(context, pipeline, (datetime.now(UTC) + most).isoformat() if most else None)

    def resume(self, context: Context, event: dict[str, str | None]) -> None:
        """Go on after the trigger.

        Raises:
            AirflowFailException: it has waited for as long as it may, or a table does not serve.
        """
        give_up = event["give_up"]
        if told := event.get("mistake"):
            raise AirflowFailException(told)
        if told := event.get("gave_up"):
            raise AirflowFailException(f"waited until {give_up}, and up to {self.end} this was not complete: {told}")
        self._wait(context, load_pipeline(Path(self.file)), give_up)

    def _wait(self, context: Context, pipeline: Pipeline, give_up: str | None) -> None:
        from tidemark.airflow.status_queries import short_inputs  # noqa: PLC0415 - opens tables

        end = parse_instant(self.end)
        try:
            short = short_inputs(self.file, self.lake, end.isoformat())
        except UserError as error:
            raise AirflowFailException(str(error)) from None
        short += [f"asset {asset.name} has no event since {since}" for asset, since in self._unseen(context, pipeline)]
        if not short:
            return
        told = "; ".join(short)
        if give_up and datetime.now(UTC) >= datetime.fromisoformat(give_up):
            raise AirflowFailException(f"waited until {give_up}, and up to {self.end} this was not complete: {told}")
        self.log.info("waiting for inputs to be complete up to %s: %s", self.end, told)
        poll = pipeline.airflow.poll.total_seconds()
        trigger = InputsComplete(file=self.file, lake=self.lake, end=end.isoformat(), poll=poll, give_up=give_up)
        self.defer(trigger=trigger, method_name="resume")

    def _unseen(self, context: Context, pipeline: Pipeline) -> list[tuple[Asset, str]]:
        """The assets of the inputs' rules without an event since the end."""
        found = []
        for source in (pipeline.left, pipeline.right):
            if source.complete and source.complete.asset:
                asset = Asset(source.complete.asset)
                since = (parse_instant(self.end) + source.complete.settle).isoformat()
                if not len(context["inlet_events"][asset].after(since).limit(1)):
                    found.append((asset, since))
        return found


class RunSlices(SparkSubmitOperator):
    """Runs a command over slices of a pipeline where its connection says, with the Spark of this environment."""

    def __init__(
        self, *, file: Path, project: Project, options: list[str], command: Sequence[str] = ("run",), **kwargs: Any
    ) -> None:
        """`options` are those of the command, as templates."""
        self.file, self.lake, self.command = file, project.lake, command[0]
        super().__init__(
            application=str(Path(__file__).with_name("submitted.py")),
            application_args=[*command, str(file), "--lake", project.lake, *options],
            jars=",".join(project.jars) or None,
            spark_binary=str(Path(sys.executable).with_name("spark-submit")),
            env_vars={
                "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            **kwargs,
        )
        self._warm: WarmJob | None = None

    def execute(self, context: Context) -> None:
        """Submit and wait; where the connection is a Spark Connect server's, run as a process of this worker.

        Raises:
            AirflowFailException: there is no connection, or the job ended for good; trying again cannot help.
            AirflowException: the job failed; running it again changes no slice that is committed.
        """
        connection = self._need_connection()
        try:
            if address := address_of(connection):
                self._run_warm(address, connection.password)
            else:
                super().execute(context)
        except AirflowException as error:
            if any(code in str(error) for code in _FINAL) and not isinstance(error, AirflowFailException):
                raise AirflowFailException(_reason(str(error))) from None
            raise
        finally:
            if self.command == "compare":
                with suppress(PipelineFileError):  # the job has told
                    tell_agreement(load_pipeline(self.file), self.lake)

    def get_openlineage_facets_on_start(self) -> Any:
        """What OpenLineage is told of when the task begins, and again when it ends, however it does."""
        from tidemark.airflow.lineage import of_command  # noqa: PLC0415 - OpenLineage may not be installed

        return of_command(self.file, self.lake, map(str, self.application_args or ()))

    def on_kill(self) -> None:
        """Stop what this task has started."""
        if self._warm is not None:
            self._warm.stop()
        else:
            super().on_kill()

    def _run_warm(self, address: str, token: str | None) -> None:
        self._warm = WarmJob(address, token, self._receivers())
        code = self._warm.run(list(map(str, self.application_args or ())), self.log.info)
        if code:
            kind = AirflowFailException if f"Error code is: {code}." in _FINAL else AirflowException
            raise kind(f"the job on {address.partition('/;')[0]} ended. Error code is: {code}.")

    def _get_hook(self) -> SparkSubmitHook:
        # The connection's password is the secret of a standalone cluster. The operator's own `env_vars` are shown on a
        # page, and stand on the command line of other clusters.
        hook = super()._get_hook()
        master = str(hook._connection["master"])  # noqa: SLF001
        secrets = {}
        if master.startswith("spark://") and (secret := BaseHook.get_connection(self._conn_id).password):
            secrets[SECRET] = secret
        if master.startswith(("spark://", "local")):
            secrets |= self._receivers()
        if secrets:
            hook._env_vars = {**(self.env_vars or {}), **secrets}  # noqa: SLF001
        return hook

    def _receivers(self) -> dict[str, str]:
        """The connections of those who are told of verdicts, as the job takes them from its environment."""
        found: dict[str, str] = {}
        told: list[Receiver] = []
        # What is missing, or wrong with the file, the job tells.
        with suppress(PipelineFileError):
            told = load_pipeline(self.file).notify if self.command in {"run", "reprocess"} else []
        for one in told:
            with suppress(AirflowNotFoundException):
                found[variable(one.connection)] = BaseHook.get_connection(one.connection).as_json()
        return found

    def _need_connection(self) -> Connection:
        # The operator takes a missing connection for a YARN cluster.
        try:
            return BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException:
            variable, local = f"AIRFLOW_CONN_{self._conn_id.upper()}", '{"conn_type": "spark", "host": "local[*]"}'
            raise AirflowFailException(
                f"connection {self._conn_id} is missing; add it in Airflow, or set {variable}='{local}'"
            ) from None


def _reason(told: str) -> str:
    r"""What the job says is wrong, in its one line, for the log and callbacks; all that is told where it says nothing.

    >>> _reason("Cannot execute: spark-submit. Error code is: 65.\nerror: quality gate: found 3\nbye")
    'quality gate: found 3'
    >>> _reason('Error code is: 65.\n{"level": "error", "event": "quality gate: found 3", "exit_code": 1}')
    'quality gate: found 3'
    """
    return next((error for line in told.splitlines() if (error := _error_in(line))), told)


def _error_in(line: str) -> str | None:
    """The mistake that a line tells of, as text or as JSON (`TIDEMARK_LOG`)."""
    if line.startswith("error: "):
        return line.removeprefix("error: ")
    if line.startswith("{"):
        with suppress(ValueError):
            record = json.loads(line)
            return str(record["event"]) if record.get("level") == "error" and "exit_code" in record else None
    return None


class ReportSlices(BaseOperator):
    """Tells what the run has committed, also where it ended half-way, and publishes it with the event of the asset."""

    def __init__(self, *, file: Path, project: Project, **kwargs: Any) -> None:
        """As the other tasks of the run."""
        super().__init__(**kwargs)
        self.file, self.lake = str(file), project.lake
        self._found: dict[str, Any] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Read the ledger.

        Raises:
            AirflowSkipException: the run has committed nothing, so that there is no event.
        """
        from tidemark.airflow.status_queries import committed_since  # noqa: PLC0415 - opens tables

        pipeline = load_pipeline(Path(self.file))
        since = context["dag_run"].start_date or datetime.now(UTC) - timedelta(days=1)
        found = self._found = committed_since(pipeline, self.lake, since)
        tell_behind(pipeline, self.lake)
        if found is None:
            raise AirflowSkipException("nothing was committed")
        tell_committed(found)
        self.log.info("%s", _told(found))
        for asset in self.outlets:
            context["outlet_events"][asset].extra = found
        return found

    def get_openlineage_facets_on_complete(self, _: Any) -> Any:
        """What OpenLineage is told of what was committed."""
        if self._found is None:
            return None
        from tidemark.airflow.lineage import of_committed  # noqa: PLC0415 - OpenLineage may not be installed

        return of_committed(self.file, self.lake, self._found)


class _OnTables(BaseOperator):
    def __init__(self, *, file: Path, project: Project, **kwargs: Any) -> None:
        """As the tasks of a run."""
        super().__init__(**kwargs)
        self.file, self.lake = str(file), project.lake


class VacuumTables(_OnTables):
    """Removes what the pipeline's `retention` says, but for states: those `tidemark vacuum` lets expire.

    Which of them a plan needs Spark may have to be asked.
    """

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow's
        """Remove them.

        Raises:
            AirflowFailException: the pipeline file or a table does not serve.
        """
        from tidemark.airflow.status_queries import vacuumed  # noqa: PLC0415 - opens tables

        try:
            self.log.info("%s", vacuumed(load_pipeline(Path(self.file)), self.lake))
        except UserError as error:
            raise AirflowFailException(str(error)) from None


class VerifyTables(_OnTables):
    """Fails where a pipeline's tables are not as they were committed."""

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow's
        """Hold ledger, tables and files against each other.

        Raises:
            AirflowFailException: they are damaged, or the pipeline file or a table does not serve.
        """
        from tidemark.airflow.status_queries import damages  # noqa: PLC0415 - opens tables

        try:
            pipeline = load_pipeline(Path(self.file))
            found = damages(pipeline, self.lake)
        except UserError as error:
            raise AirflowFailException(str(error)) from None
        if found:
            told = f"{pipeline.name} is not as it was committed; tidemark verify {pipeline.name} --repair may mend it"
            raise AirflowFailException("; ".join((told, *found)))


def _told(found: dict[str, Any]) -> str:
    late = " and ".join(f"{found[side]['late']:,} {side}" for side in ("left", "right"))
    return (
        f"{found['pipeline']}: {found['slices']:,} slices from {found['from']} to {found['to']}, "
        f"{found['emissions']:,} emissions, {late} rows late; quality {found['quality']}; {found['docs']}"
    )


def inlets_of(pipeline: Pipeline) -> list[Asset]:
    """The inputs as assets: what their rules name, else their tables; without names that Airflow takes for none."""
    found = []
    for source in (pipeline.left, pipeline.right):
        # One that raises would stop the DAGs of all pipelines.
        with suppress(ValueError):
            found.append(Asset(_asset_name(source)))
    return found


def _asset_name(source: Input) -> str:
    return source.complete.asset if source.complete and source.complete.asset else source.table
