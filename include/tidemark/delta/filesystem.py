"""Access files without Spark, on this machine or in an object store.

delta-rs reads a store's address and keys from the environment variables of the store's own tools (`AWS_...`). The
session passes them to Spark (`spark.s3_settings`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler


class _StorageHandler(DeltaStorageHandler):
    """Adapter of delta-rs's object store to pyarrow."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        """Open a new file for writing."""
        return pa.PythonFile(_BytesStream(self._handler.open_output_stream(path, metadata)))


class _BytesStream:
    """Output stream that converts pyarrow's buffers to bytes, the only type that delta-rs accepts."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        """Write data and return the number of bytes written."""
        return int(self._stream.write(bytes(data)))


def is_uri(path: str) -> bool:
    """Return True if a path is a URI, not a path of this machine."""
    return "://" in path


def open_filesystem(folder: str) -> pafs.FileSystem:
    """Open a folder as a file system. The folder need not exist."""
    if is_uri(folder):
        return pafs.PyFileSystem(_StorageHandler(folder))
    # delta-rs would interpret some characters of a path as parts of a URI.
    return pafs.SubTreeFileSystem(folder, pafs.LocalFileSystem())


def list_file_sizes(files: pafs.FileSystem, folder: str = "") -> dict[str, int]:
    """List all files in a folder and its subfolders. The folder need not exist.

    Returns:
        Sizes in bytes by path. In an object store, these include the empty objects by which Hadoop represents folders.
    """
    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=True)
    return {info.path: info.size for info in files.get_file_info(selector) if info.is_file}


def has_file(folder: str, path: str) -> bool:
    """Return True if a folder has a file. The folder need not exist."""
    return bool(open_filesystem(folder).get_file_info(path).is_file)


def delete_file(folder: str, path: str) -> None:
    """Delete a file if it exists, and on this machine its parent folders below `folder` that become empty."""
    with suppress(FileNotFoundError):
        open_filesystem(folder).delete_file(path)
    if not is_uri(folder):
        with suppress(OSError):  # a folder is not empty
            for parent in PurePath(path).parents[:-1]:
                Path(folder, parent).rmdir()


def find_unwritable_folder(folder: str) -> str | None:
    """Return a folder, or the nearest existing parent of a new folder, if this user cannot write files to it.

    Returns:
        None if it can be written, and for object stores, which the first run checks by a write
        (`probe_conditional_put`).
    """
    if is_uri(folder):
        return None
    existing = next(path for path in (Path(folder), *Path(folder).parents) if os.access(path, os.F_OK))
    return None if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK) else str(existing)


def write_text(path: str, text: str) -> None:
    """Write a UTF-8 file to a path or URI."""
    if not is_uri(path):
        Path(path).write_text(text, encoding="utf-8")
        return
    folder, _, name = path.rpartition("/")
    with open_filesystem(folder).open_output_stream(name) as file:
        file.write(text.encode())
