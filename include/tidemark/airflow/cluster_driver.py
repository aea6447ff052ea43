"""Run a task's job on a worker of a standalone Spark cluster (cluster deploy mode), and follow its driver."""

# ruff: noqa: SLF001 - The hook takes some of its arguments from the operator only, and keeps the driver's id to itself.
from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import requests
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tidemark.config.cluster import AUTHENTICATION_SETTINGS, SPARK_SECRET_VARIABLE

UI_PORT = 8080
"""Default port of the master's page."""
_LOST = "LOST"
"""Status of a driver that the master does not know: it was restarted, or has forgotten the driver."""
_ACTIVE = {"SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"}
_PYTHON_RUNNER = "org.apache.spark.deploy.PythonRunner"
"""Main class with which Spark starts Python programs. spark-submit refuses a Python program on a standalone cluster,
but not this class."""
_JAVA_OPTIONS_SETTING = "spark.driver.extraJavaOptions"
_OPENED_PACKAGES = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util")),
    *("java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref"),
    *(f"java.base/sun.{name}" for name in ("nio.ch", "nio.cs", "security.action", "util.calendar")),
    "java.security.jgss/sun.security.krb5",
)
# Spark opens these packages to itself in all other deploy modes (`JavaModuleOptions`). Without them, Arrow fails.
_JAVA_OPTIONS = " ".join(
    [*(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED_PACKAGES), "-Dio.netty.tryReflectionSetAccessible=true"]
)
_SENT_VARIABLES = {"JAVA_HOME", "PATH", "PYTHONPATH", "SPARK_CONF_DIR", "SPARK_DRIVER_MEMORY", "SPARK_SUBMIT_OPTS"}
"""Environment variables of this process, next to those of Tidemark, that spark-submit sees. It sends its environment
to the driver. Others, such as Airflow's secrets, stay here. The worker's environment has those that are not sent."""
_POLL_SECONDS = 3.0
_MAX_FAILURES = 100
"""Number of polls in a row without an answer, about five minutes, after which the task fails. Its retry polls again."""
_REQUEST_SECONDS = 10.0
_KILL_SECONDS = 2.0
"""Timeout of the request that kills the driver. Airflow kills the task 5 s after the signal that stops it."""
_LOG_BYTES = 20_000
_MAX_LAST_LINES = 20


class ClusterDriver:
    """Driver of a job on a worker of a standalone cluster. It goes on if the task's process dies.

    It is submitted by RPC, which the cluster's secret protects, and followed on the pages of the master and the worker.
    Spark's REST API for submissions is not used: whoever reaches it can run code without the secret.
    """

    def __init__(self, hook: SparkSubmitHook, ui_port: int, secrets: Mapping[str, str]) -> None:
        """Prepare the hook, which was created for a Python program in client mode.

        Args:
            hook: The hook that submits.
            ui_port: Port of the masters' pages.
            secrets: Environment variables of the driver that are shown nowhere.
        """
        self._hook = hook
        hosts = str(hook._connection["master"]).removeprefix("spark://").split(",")
        self._pages = [f"http://{host.rpartition(':')[0] or host}:{ui_port}" for host in hosts]
        own = {name: value for name, value in os.environ.items() if name.startswith("TIDEMARK_")}
        own |= {name: os.environ[name] for name in _SENT_VARIABLES & os.environ.keys()}
        self._environment = {**own, **(hook._env_vars or {}), **secrets}
        hook._env_vars = None  # the hook refuses them in this mode, because it does not know that they are sent
        options = f"{_JAVA_OPTIONS} {hook._conf.get(_JAVA_OPTIONS_SETTING, '')}".rstrip()
        authentication = AUTHENTICATION_SETTINGS if SPARK_SECRET_VARIABLE in secrets else {}
        hook._conf = {**authentication, **hook._conf, _JAVA_OPTIONS_SETTING: options}
        hook._java_class = _PYTHON_RUNNER

    def submit(self, program: str) -> str:
        """Submit a Python program, with the arguments and jars of the hook; return the id of its driver."""
        hook = self._hook
        # The program of spark-submit has to be a jar. It belongs to the job's jars, like the others.
        jar, _, hook._jars = (hook._jars or "").partition(",")
        if not jar:
            raise AirflowFailException(
                "Delta's jars are missing. Run 'make setup', or set TIDEMARK_JARS to their folder."
            )
        hook._application_args = [program, "", *(hook._application_args or ())]
        return str(hook.submit(jar, env=self._environment))

    def get_status(self, driver_id: str) -> str:
        """Return the state of a driver, in Spark's words, or `LOST`.

        Raises:
            AirflowException: No active master answers.
        """
        return self._find(driver_id)[0]

    def wait(self, driver_id: str) -> None:
        """Wait until a driver has ended, and log the end of its output.

        Raises:
            AirflowException: The driver has failed, or no active master answers for minutes.
        """
        self._hook._driver_id = driver_id  # this task may not have submitted it
        status, logs, failures = "UNKNOWN", "", 0
        while status in _ACTIVE:
            time.sleep(_POLL_SECONDS)
            earlier_logs = logs
            try:
                status, logs = self._find(driver_id)
                failures = 0
            except AirflowException as error:
                if failures == 0:
                    self._hook.log.warning("%s", error)
                failures += 1
                if failures > _MAX_FAILURES:
                    raise
            if logs and logs != earlier_logs:
                self._hook.log.info("driver %s has a worker. Its log: %s&logType=stdout", driver_id, logs)
        output = _read_log(logs, "stdout")
        self._hook.log.info("driver %s has ended: %s. The end of its output:\n%s", driver_id, status, output)
        if status != "FINISHED":
            # The driver's process ends with 1, whatever the program's code was. Spark logs that code.
            codes = re.findall(r"User application exited with (\d+)", _read_log(logs, "stderr"))
            code = f" Error code is: {codes[-1]}." if codes else ""
            last_lines = "\n".join(output.splitlines()[-_MAX_LAST_LINES:])
            raise AirflowException(f"driver {driver_id} has ended: {status}.{code}\n{last_lines}")

    def kill(self) -> None:
        """Stop the driver; stop spark-submit if there is no driver yet."""
        if not self._hook._driver_id:
            self._hook.on_kill()
            return
        parameters = {"id": self._hook._driver_id, "terminate": "true"}
        for page in self._pages:
            with suppress(requests.RequestException):
                requests.post(f"{page}/driver/kill/", params=parameters, timeout=_KILL_SECONDS, allow_redirects=False)

    def _find(self, driver_id: str) -> tuple[str, str]:
        """Return the state of a driver, and the address of its logs, empty if it has no worker."""
        master = self._read_active_master()
        for driver in (*master["activedrivers"], *master["completeddrivers"]):
            if driver["id"] == driver_id:
                pages = [worker["webuiaddress"] for worker in master["workers"] if worker["id"] == driver["worker"]]
                return driver["state"], f"{pages[0]}/log/?driverId={driver_id}" if pages else ""
        return _LOST, ""

    def _read_active_master(self) -> dict[str, Any]:
        """Return the content of the page of the active master, of which a cluster may have several."""
        failure = "it is not active"
        for page in self._pages:
            try:
                response = requests.get(f"{page}/json/", timeout=_REQUEST_SECONDS)
                response.raise_for_status()
                master: dict[str, Any] = response.json()
            except requests.RequestException as error:
                failure = str(error)
                continue
            if master.get("status") == "ALIVE":
                return master
        raise AirflowException(
            f"no active master at {' or '.join(self._pages)}: {failure}. Set ui-port of the connection."
        )


def _read_log(logs: str, name: str) -> str:
    """Return the end of a driver's log, `stdout` or `stderr`, without the first line, which describes the file."""
    if not logs:
        return ""
    try:
        parameters: dict[str, str | int] = {"logType": name, "byteLength": _LOG_BYTES}
        return requests.get(logs, params=parameters, timeout=_REQUEST_SECONDS).text.partition("\n")[2]
    except requests.RequestException as error:
        return f"the log was not read: {error}"
