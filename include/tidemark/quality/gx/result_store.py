"""List and delete the stored result files of Great Expectations without importing it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import PurePosixPath

import pyarrow.fs as pafs

from tidemark.delta.filesystem import delete_file, list_file_sizes, open_filesystem
from tidemark.delta.pipeline_tables import PipelineTables

MAX_RESULTS = 50
"""Maximum number of stored results. Data Docs' first page reads all of them in every job."""
INSTANT_FORMAT = "%Y%m%dT%H%M%S.%fZ"
"""Format of instants in paths, UTC."""


def get_results_folder(tables: PipelineTables) -> str:
    """Return the folder of result files, whose paths are SUITE/RUN/INSTANT/BATCH.json."""
    return f"{tables.gx_folder}/uncommitted/validations"


def list_results(tables: PipelineTables) -> list[PurePosixPath]:
    """List the result files relative to their folder, oldest first."""
    paths = list_file_sizes(open_filesystem(get_results_folder(tables)))
    files = (PurePosixPath(path) for path in paths if path.endswith(".json"))
    return sorted(files, key=lambda file: file.parent.name)


def delete_oldest_results(tables: PipelineTables) -> None:
    """Delete all results but the newest `MAX_RESULTS`. Another process may do so at the same time."""
    for file in list_results(tables)[:-MAX_RESULTS]:
        delete_file(get_results_folder(tables), str(file))


def list_results_before(folder: str, before: datetime) -> dict[str, int]:
    """List the files from before an instant, in a folder of results or of their pages, with sizes in bytes."""
    everything = pafs.FileSelector("", allow_not_found=True, recursive=True)
    files = (info for info in open_filesystem(folder).get_file_info(everything) if info.is_file)
    return {info.path: info.size for info in files if (at := _parse_instant(info.path)) is not None and at < before}


def _parse_instant(path: str) -> datetime | None:
    with suppress(ValueError):
        return datetime.strptime(PurePosixPath(path).parent.name, INSTANT_FORMAT).replace(tzinfo=UTC)
    return None
