"""Define the section `[tidemark]` of Airflow's configuration, and read it."""

from __future__ import annotations

from typing import Any

SECTION = "tidemark"
PAGES_PATH = "tidemark"
"""Path of the pages of slices below the address of Airflow."""


def _describe(description: str, example: str) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": "string",
        "example": example,
        "default": "",
    }


OPTIONS: dict[str, dict[str, Any]] = {
    "lake": _describe(
        "Lake root of the DAGs. The environment variable TIDEMARK_LAKE overrides it. Default: lake in the project.",
        "s3a://lake/prod",
    ),
    "pipelines": _describe(
        "Folder of pipeline files of the DAGs. The environment variable TIDEMARK_PIPELINES overrides it. "
        "Default: include/pipelines in the project.",
        "/opt/pipelines",
    ),
    "lake_url": _describe(
        "Address at which a web server shows the files under the lake root. Tasks then have links to Data Docs. "
        "Default: no links.",
        "https://files.example.com/lake",
    ),
    "spark_history_url": _describe(
        "Address of Spark's history server. Tasks then have links to it. Default: no link.",
        "http://spark-history.example.com:18080",
    ),
}
"""Options of the section by name, in Airflow's schema of a provider."""


OPTIONS["slice_pages"] = {
    "description": "True to show the slices of each pipeline in Airflow's UI. The API server then reads the lake.",
    "version_added": "0.1.0",
    "type": "boolean",
    "example": "False",
    "default": "True",
}


def has_slice_pages() -> bool:
    """Return True if Airflow's UI shows the slices of pipelines."""
    from airflow.sdk.configuration import conf  # noqa: PLC0415 - as in `read_option`

    return bool(conf.getboolean(SECTION, "slice_pages", fallback=True))


def read_option(name: str) -> str:
    """Return an option of the section; empty if it is not set."""
    from airflow.sdk.configuration import conf  # noqa: PLC0415 - Airflow reads this module while it builds `conf`

    return conf.get(SECTION, name, fallback="") or ""
