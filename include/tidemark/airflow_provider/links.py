"""Link tasks to pages about their results: Data Docs, reports, slices in quarantine, and Spark's history server.

Airflow stores a link when its task ends, and shows no button for an empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from tidemark.airflow_provider.settings import PAGES_PATH, has_slice_pages, read_option


def _link_to_lake(find_page: Callable[[], str | None]) -> str:
    """Return the address of a page below the lake root; empty if nothing serves it, or if it does not exist."""
    base = read_option("lake_url").rstrip("/")
    page = find_page() if base else None
    return f"{base}/{quote(page)}" if page else ""


class DataDocsLink(BaseOperatorLink):
    """Link to the Data Docs of a pipeline: needs `lake_url`, and validation results."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's
        """Return the address of the first page; empty if nothing serves it, or if it does not exist."""
        return _link_to_lake(operator.find_data_docs)


class ReportLink(BaseOperatorLink):
    """Link to the report of a pipeline's comparison: needs `lake_url`, and `report.html` in the pipeline's folder."""

    name = "Comparison report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's
        """Return the address of the report; empty if nothing serves it, or if it does not exist."""
        return _link_to_lake(operator.find_report)


class QuarantineLink(BaseOperatorLink):
    """Link to the slices of a pipeline: needs rows in quarantine, `slice_pages`, and Airflow's `[api] base_url`."""

    name = "Quarantine"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's
        """Return the address of the slices; empty if the task committed none with rows in quarantine."""
        from airflow.sdk.configuration import conf  # noqa: PLC0415 - as in `read_option`

        base, name = conf.get("api", "base_url", fallback="").rstrip("/"), operator.quarantined_pipeline
        return f"{base}/{PAGES_PATH}/pipelines/{name}" if base and name and has_slice_pages() else ""


class SparkHistoryLink(BaseOperatorLink):
    """Link to the jobs in Spark's history server: needs `spark_history_url`."""

    name = "Spark history"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's
        """Return the address of the server; empty if it has none."""
        return read_option("spark_history_url")
