"""Store Great Expectations' results and Data Docs under a URI; its own backend is for local files only.

Great Expectations imports this module by its name (`project.open_project`).
"""

from __future__ import annotations

from typing import Any

import pyarrow.fs as pafs
from great_expectations.data_context.store.tuple_store_backend import TupleStoreBackend
from great_expectations.exceptions.exceptions import InvalidKeyError

from tidemark.delta.filesystem import list_file_sizes, open_filesystem


class ObjectStoreBackend(TupleStoreBackend):
    """Backend for files under a URI. A key is a tuple of strings, or an identifier that has `to_tuple`."""

    def __init__(self, base: str, **options: Any) -> None:
        """Open the folder.

        Args:
            base: URI of the folder.
            options: Those of `TupleStoreBackend`.
        """
        initialize: Any = super().__init__
        initialize(**options | {"platform_specific_separator": False})
        self._base, self._files = base, open_filesystem(base)
        identity = {"module_name": type(self).__module__, "class_name": type(self).__name__}
        self._config = {**options, **identity, "base": base}
        if not self._suppress_store_backend_id:
            _ = self.store_backend_id

    def _path(self, key: Any) -> str:
        convert: Any = self._convert_key_to_filepath
        return str(convert(key if isinstance(key, tuple) else key.to_tuple()))

    def _get(self, key: Any) -> Any:
        try:
            with self._files.open_input_file(self._path(key)) as file:
                return bytes(file.read()).decode().rstrip("\n")
        except FileNotFoundError:
            raise InvalidKeyError(f"There is no file {self._base}/{self._path(key)}.") from None

    def _get_all(self) -> list[Any]:
        return [self._get(key) for key in self.list_keys() if key != self.STORE_BACKEND_ID_KEY]

    def _set(self, key: Any, value: str | bytes, **_: Any) -> Any:
        with self._files.open_output_stream(self._path(key)) as file:
            file.write(value.encode() if isinstance(value, str) else value)
        return f"{self._base}/{self._path(key)}"

    def _move(self, source_key: Any, dest_key: Any, **_: Any) -> None:
        self._set(dest_key, self._get(source_key))
        self.remove_key(source_key)

    def _has_key(self, key: Any) -> bool:
        (info,) = self._files.get_file_info([self._path(key)])
        return bool(info.type == pafs.FileType.File)

    def list_keys(self, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """List the keys of all files under a prefix."""
        paths = list_file_sizes(self._files, "/".join(prefix))
        parse: Any = self._convert_filepath_to_key
        is_ignored: Any = self.is_ignored_key
        start, end = self.filepath_prefix or "", self.filepath_suffix or ""
        keys = map(parse, (path for path in paths if path.startswith(start) and path.endswith(end)))
        return [key for key in keys if key and not is_ignored(key)]

    def remove_key(self, key: Any) -> Any:
        """Delete a file; return True if it existed."""
        if exists := self._has_key(key):
            self._files.delete_file(self._path(key))
        return exists

    def get_url_for_key(self, key: Any, protocol: str | None = None) -> str:
        """Return the URL of a file."""
        escaped = self._url_path_escape_special_characters(path=self._path(key))
        return f"{protocol or ''}{self._base}/{escaped}"
