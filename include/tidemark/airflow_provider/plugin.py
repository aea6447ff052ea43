"""Register deadline references with Airflow's scheduler, and pages with the API server."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib import import_module
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from tidemark.airflow_provider.database import store_database_kind
from tidemark.airflow_provider.deadlines import DataIntervalEnd
from tidemark.airflow_provider.settings import PAGES_PATH, has_slice_pages

_APP_MODULE = "tidemark.airflow.web.app"
"""Module with the pages. It is in a higher layer, and imports delta-rs."""


class LazyApp:
    """ASGI application that is imported at its first request.

    Every process of Airflow loads the plugin, and some fork later, which delta-rs does not survive.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request. The first one in a process waits for the imports, which take seconds."""
        app = await asyncio.to_thread(_load_app)
        await app(scope, receive, send)


class TidemarkPlugin(AirflowPlugin):
    """Airflow plugin of the provider."""

    name = "tidemark"
    deadline_references: list[Any] = [DataIntervalEnd]  # noqa: RUF012 - Airflow's attribute

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Add the pages, unless the option `slice_pages` is false. Airflow calls this once per process.

        The DAG processor calls it when it starts, before the forks that parse DAG files.
        """
        store_database_kind()
        pages = has_slice_pages()
        cls.fastapi_apps = [{"app": LazyApp(), "url_prefix": f"/{PAGES_PATH}", "name": "Tidemark"}] if pages else []
        cls.external_views = [dict(view) for view in _VIEWS] if pages else []


# Addresses are relative, because a proxy may serve Airflow below a path.
_VIEWS = (
    {"name": "Tidemark", "href": f"{PAGES_PATH}/", "destination": "nav", "category": "browse", "url_route": PAGES_PATH},
    {
        "name": "Slices",
        "href": f"{PAGES_PATH}/dags/{{DAG_ID}}",
        "destination": "dag",
        "url_route": f"{PAGES_PATH}_slices",
    },
)
"""Links in Airflow's navigation and a tab on the pages of DAGs. Airflow 3.3 has no destination for assets."""


@cache
def _load_app() -> Any:
    return import_module(_APP_MODULE).create_app()
