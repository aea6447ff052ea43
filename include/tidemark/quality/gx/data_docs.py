"""Keep Data Docs, the web pages of validation results, up to date."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from tidemark.config.quality import DATA_DOCS_INDEX
from tidemark.delta.filesystem import delete_file, list_file_sizes, open_filesystem
from tidemark.delta.log_files import RemovedFiles
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.gx.project import import_gx, open_project
from tidemark.quality.gx.result_store import get_results_folder, list_results, list_results_before


def get_docs_index(tables: PipelineTables) -> str:
    """Return the path of Data Docs' first page."""
    return f"{tables.root}/{DATA_DOCS_INDEX}"


def write_docs(tables: PipelineTables, gx_result_ids: Iterable[Any]) -> None:
    """Update Data Docs if there are new results. It takes half a second, mostly for the first page."""
    if any(True for _ in gx_result_ids):
        update_data_docs(tables)


def update_data_docs(tables: PipelineTables) -> None:
    """Write pages for all stored results that have none, such as those of the fast path."""
    pages = set(list_file_sizes(open_filesystem(_get_pages_folder(tables))))
    without_page = {
        str(file.with_suffix("")) for file in list_results(tables) if str(file.with_suffix(".html")) not in pages
    }
    if without_page:
        with open_project(tables) as context:
            # Another process may have deleted old results since they were listed.
            stored = context.validation_results_store.list_keys()
            keys = [key for key in stored if "/".join(key.to_tuple()) in without_page]
            context.build_data_docs(resource_identifiers=sorted(keys, key=str))


def delete_results_before(tables: PipelineTables, before: datetime, *, dry_run: bool) -> RemovedFiles:
    """Delete results from before an instant and their pages, and rewrite Data Docs' first page without them."""
    results, pages = get_results_folder(tables), _get_pages_folder(tables)
    files = {folder: list_results_before(folder, before) for folder in (results, pages)}
    if not dry_run:
        _delete_files(results, files[results])
        if files[pages]:
            # Before the pages are deleted: if this process is killed, the next call finds them and rewrites the page.
            _rewrite_index(tables, files[pages])
        _delete_files(pages, files[pages])
    relative = {folder: folder.removeprefix(f"{tables.root}/") for folder in files}
    return RemovedFiles.from_sizes(
        {f"{relative[folder]}/{path}": size for folder, sizes in files.items() for path, size in sizes.items()}
    )


def _get_pages_folder(tables: PipelineTables) -> str:
    return f"{get_docs_index(tables).rpartition('/')[0]}/validations"


def _delete_files(folder: str, paths: Iterable[str]) -> None:
    for path in paths:
        delete_file(folder, path)


def _rewrite_index(tables: PipelineTables, deleted_pages: Iterable[str]) -> None:
    """Rewrite the first page, which lists all stored results; pages of deleted results are not written again."""
    identifier = import_gx().data_context.types.resource_identifiers.ValidationResultIdentifier
    with open_project(tables) as context:
        keys = [identifier.from_tuple(PurePosixPath(path).with_suffix("").parts) for path in deleted_pages]
        context.build_data_docs(resource_identifiers=keys)
