"""Describe Tidemark to Airflow as a provider: operators, triggers, links, a plugin and settings.

Each of Airflow's processes imports this package when it starts, so it imports neither Spark nor `tidemark.airflow`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from tidemark.airflow_provider.settings import OPTIONS, SECTION

_NAME = "Tidemark"
_PLUGIN = "tidemark"
_LINKS = ("DataDocsLink", "ReportLink", "QuarantineLink", "SparkHistoryLink")


def has_provider() -> bool:
    """Return True if the entry points of this package are installed, so that Airflow loads its plugin."""
    return any(point.name == _PLUGIN for point in entry_points(group="airflow.plugins"))


def get_provider_info() -> dict[str, Any]:
    """Return the description of the provider, by Airflow's schema: the entry point `apache_airflow_provider`."""
    return {
        "package-name": "tidemark",
        "name": _NAME,
        "description": "Streaming joins, recomputed over bounded Delta tables slice by slice.",
        "integrations": [{"integration-name": _NAME, "tags": ["software"]}],
        "operators": [{"integration-name": _NAME, "python-modules": ["tidemark.airflow.operators"]}],
        "triggers": [
            {
                "integration-name": _NAME,
                "python-modules": ["tidemark.airflow.triggers", "tidemark.airflow.table_watcher"],
            }
        ],
        "extra-links": [f"tidemark.airflow_provider.links.{name}" for name in _LINKS],
        "plugins": [{"name": _PLUGIN, "plugin-class": "tidemark.airflow_provider.plugin.TidemarkPlugin"}],
        "config": {SECTION: {"description": "Settings of Tidemark's DAGs and links.", "options": OPTIONS}},
    }
