"""Find the kind of Airflow's database, which Airflow hides from DAG files."""

from __future__ import annotations

import os
from contextlib import suppress

_VARIABLE = "_TIDEMARK_AIRFLOW_DATABASE"
"""Environment variable with the kind, by which a process passes it to its forks. Drivers on workers do not get it."""
_HIDDEN_KIND = "airflow-db-not-allowed"
"""Kind in the processes that parse DAG files or run tasks (`block_orm_access` of Airflow's supervisor)."""


def read_database_kind() -> str:
    """Return the kind of Airflow's database, such as `sqlite` or `postgresql`.

    Returns:
        The kind; empty if Airflow hides it, and no earlier process has stored it.
    """
    from airflow.sdk.configuration import conf  # noqa: PLC0415 - as in `settings.read_option`

    address = conf.get("database", "sql_alchemy_conn", fallback="sqlite")
    kind = address.partition(":")[0].partition("+")[0]
    return os.environ.get(_VARIABLE, "") if kind == _HIDDEN_KIND else kind


def store_database_kind() -> None:
    """Store the kind of Airflow's database for the forks of this process."""
    from airflow.sdk.exceptions import AirflowConfigException  # noqa: PLC0415 - as in `settings.read_option`

    with suppress(AirflowConfigException):  # a command or a secrets backend that this process lacks
        os.environ[_VARIABLE] = read_database_kind()
