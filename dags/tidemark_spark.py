"""The one task of every DAG: `jobs/run_slices.py`, or another of the jobs, as a Spark application."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException
from tidemark_project import PROJECT, folder, lake

from tidemark.errors import CheckFailedError, UserError, submitted_code
from tidemark.settings.cluster import SECRET

_FINAL = tuple(f"Error code is: {submitted_code(kind.exit_code)}." for kind in (CheckFailedError, UserError))
"""What the operator says of a job after which trying again cannot help."""


class RunSlices(SparkSubmitOperator):
    """Runs slices of a pipeline where the connection `spark_default` says, with the Spark of this environment."""

    def __init__(
        self,
        *,
        file: Path,
        options: list[str],
        job: str = "run_slices.py",
        **kwargs: Any,
    ) -> None:
        jars = sorted(folder("TIDEMARK_JARS", ".jars").glob("*.jar"))
        super().__init__(
            application=str(PROJECT / "jobs" / job),
            application_args=[str(file), "--lake", lake(), *options],
            jars=",".join(map(str, jars)) or None,
            spark_binary=str(Path(sys.executable).with_name("spark-submit")),
            env_vars={
                "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            **kwargs,
        )

    def execute(self, context: Context) -> None:
        """Submit and wait.

        Raises:
            AirflowFailException: there is no connection, or the job ended for good; trying again cannot help.
            AirflowException: the job failed; running it again changes no slice that is committed.
        """
        self._need_connection()
        try:
            super().execute(context)
        except AirflowException as error:
            if any(code in str(error) for code in _FINAL):
                raise AirflowFailException(str(error)) from None
            raise

    def _get_hook(self) -> SparkSubmitHook:
        # The connection's password is the secret of a standalone cluster. The operator's own `env_vars` are shown on a
        # page, and stand on the command line of other clusters.
        hook = super()._get_hook()
        secret = BaseHook.get_connection(self._conn_id).password
        if secret and hook._connection["master"].startswith("spark://"):  # noqa: SLF001
            hook._env_vars = {**(self.env_vars or {}), SECRET: secret}  # noqa: SLF001
        return hook

    def _need_connection(self) -> None:
        # The operator takes a missing connection for a YARN cluster.
        try:
            BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException:
            variable, local = f"AIRFLOW_CONN_{self._conn_id.upper()}", '{"conn_type": "spark", "host": "local[*]"}'
            raise AirflowFailException(
                f"connection {self._conn_id} is missing; add it in Airflow, or set {variable}='{local}'"
            ) from None
