"""Link tasks to pages about their results: Data Docs and Spark's history server.

Airflow stores a link when its task ends, and shows no button for an empty one.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink

from tidemark.airflow_provider.settings import read_option


class DataDocsLink(BaseOperatorLink):
    """Link to the Data Docs of a pipeline: needs `lake_url`, and validation results."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's
        """Return the address of the first page; empty if nothing serves it, or if it does not exist."""
        base = read_option("lake_url").rstrip("/")
        page = operator.find_data_docs() if base else None
        return f"{base}/{page}" if page else ""


class SparkHistoryLink(BaseOperatorLink):
    """Link to the jobs in Spark's history server: needs `spark_history_url`."""

    name = "Spark history"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's
        """Return the address of the server; empty if it has none."""
        return read_option("spark_history_url")
