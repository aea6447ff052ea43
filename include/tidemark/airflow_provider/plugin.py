"""Register Tidemark's deadline references with Airflow's scheduler."""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from tidemark.airflow_provider.deadlines import DataIntervalEnd


class TidemarkPlugin(AirflowPlugin):
    """Airflow plugin of the provider."""

    name = "tidemark"
    deadline_references: list[Any] = [DataIntervalEnd]  # noqa: RUF012 - Airflow's attribute
