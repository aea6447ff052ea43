"""Where files are, other than by Spark: a folder as a file system, on this machine or in an object store.

delta-rs and these files take a store's address and keys from the variables that the stores' own tools know (`AWS_...`);
the session hands them on to Spark (`spark.s3_settings`).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler


class _StorageHandler(DeltaStorageHandler):
    """delta-rs's files as pyarrow asks for them."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        """Open a file to write it anew."""
        return pa.PythonFile(_BytesStream(self._handler.open_output_stream(path, metadata)))


class _BytesStream:
    """pyarrow hands over buffers, and delta-rs takes bytes alone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        """Write some; how many bytes that were."""
        return int(self._stream.write(bytes(data)))


def is_uri(path: str) -> bool:
    """Whether a place is a URI, and not a path of this machine."""
    return "://" in path


def open_filesystem(folder: str) -> pafs.FileSystem:
    """A folder, whether it is one yet or not, as a file system."""
    if is_uri(folder):
        return pafs.PyFileSystem(_StorageHandler(folder))
    # delta-rs would take some characters of a path for those of an address.
    return pafs.SubTreeFileSystem(folder, pafs.LocalFileSystem())


def list_file_sizes(files: pafs.FileSystem, folder: str = "") -> dict[str, int]:
    """The paths of all files in a folder, which need not be there, and in those below it, each with its bytes.

    In a store that may be empty objects too that Hadoop lets stand for folders.
    """
    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=True)
    return {info.path: info.size for info in files.get_file_info(selector) if info.is_file}


def has_file(folder: str, path: str) -> bool:
    """Whether a folder, which need not be there, has a file."""
    return bool(open_filesystem(folder).get_file_info(path).is_file)


def delete_file(folder: str, path: str) -> None:
    """Remove a file, if it is there, and the folders between that it leaves empty, which a store does not have."""
    with suppress(FileNotFoundError):
        open_filesystem(folder).delete_file(path)
    if not is_uri(folder):
        with suppress(OSError):  # what is not empty stays
            for parent in PurePath(path).parents[:-1]:
                Path(folder, parent).rmdir()


def write_text(path: str, text: str) -> None:
    """Write a file of UTF-8 at a path or a URI."""
    if not is_uri(path):
        Path(path).write_text(text, encoding="utf-8")
        return
    folder, _, name = path.rpartition("/")
    with open_filesystem(folder).open_output_stream(name) as file:
        file.write(text.encode())
