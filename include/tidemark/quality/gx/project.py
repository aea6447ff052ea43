"""Import Great Expectations lazily, and open a project that stores results and Data Docs."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock, Thread
from typing import Any

from tidemark.delta.filesystem import is_uri
from tidemark.delta.pipeline_tables import PipelineTables

_PAGES_MODULE = "tidemark.quality.gx.escaped_pages"
PROJECT_LOCK = Lock()
"""Held while a thread has a project, since Great Expectations keeps it in global variables."""


def import_gx_in_background() -> None:
    """Import Great Expectations in a thread. It takes seconds, which overlap with those of Spark."""
    Thread(target=import_gx, daemon=True).start()


@cache
def import_gx() -> Any:
    """Import Great Expectations on first use and return the module."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    with _without_garbage_collection():
        import great_expectations as gx  # noqa: PLC0415 - takes seconds, see import_gx_in_background
        import great_expectations.expectations as _  # noqa: F401, PLC0415

        from tidemark.quality.gx import row_rules  # noqa: F401, PLC0415 - registers the expectation `rows`

    _make_success_serializable(
        gx.expectations.registry.get_expectation_impl("expect_column_quantile_values_to_be_between")
    )
    # It warns of results that another process has deleted since they were listed.
    logging.getLogger("great_expectations.render.renderer.site_builder").setLevel(logging.ERROR)
    return gx


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection while modules are imported, which saves a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _make_success_serializable(expectation_class: Any) -> None:
    """Patch an expectation class whose results contain NumPy's bool, which cannot be written as JSON."""
    validate = expectation_class.metrics_validate

    def validate_with_bool(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = validate(self, *args, **kwargs)
        result.success = bool(result.success)
        return result

    expectation_class.metrics_validate = validate_with_bool


@contextmanager
def open_project(tables: PipelineTables) -> Iterator[Any]:
    """Open a project of Great Expectations in memory that stores only results and Data Docs as files.

    Several processes may share the files. In a process one thread at a time has a project, since Great Expectations
    keeps the project and its parser in global variables.

    Yields:
        The data context.
    """
    root = f"{tables.gx_folder}/uncommitted"

    def configure_store(folder: str) -> dict[str, str]:
        if is_uri(root):
            return {
                "module_name": "tidemark.quality.gx.object_store",
                "class_name": "ObjectStoreBackend",
                "base": f"{root}/{folder}",
            }
        return {"class_name": "TupleFilesystemStoreBackend", "base_directory": f"{root}/{folder}"}

    base = import_gx().data_context.types.base
    config = base.DataContextConfig(
        store_backend_defaults=base.InMemoryStoreBackendDefaults(), progress_bars={"globally": False}
    )
    config.stores[config.validation_results_store_name]["store_backend"] = configure_store("validations")
    config.data_docs_sites = {
        "local_site": {
            "class_name": "SiteBuilder",
            "store_backend": configure_store("data_docs/local_site"),
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "site_section_builders": {
                "validations": {
                    "renderer": {"module_name": _PAGES_MODULE, "class_name": "EscapedResultsRenderer"},
                    "view": {"module_name": _PAGES_MODULE, "class_name": "EscapedPageView"},
                }
            },
        }
    }
    with PROJECT_LOCK:
        yield import_gx().get_context(mode="ephemeral", project_config=config)
