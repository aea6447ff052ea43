"""Great Expectations' results and Data Docs in an object store: it has a backend of its own for local files alone.

Importing it imports Great Expectations, which finds it by its name (`project`).
"""

from __future__ import annotations

from typing import Any

import pyarrow.fs as pafs
from great_expectations.data_context.store.tuple_store_backend import TupleStoreBackend
from great_expectations.exceptions.exceptions import InvalidKeyError

from tidemark.delta.filesystem import file_system, files_under


class ObjectStoreBackend(TupleStoreBackend):
    """Files of Great Expectations under a URI; a key is a tuple of texts, or has one."""

    def __init__(self, base: str, **options: Any) -> None:
        """`base` is the URI of the folder; the options are Great Expectations' own."""
        initialize: Any = super().__init__
        initialize(**options | {"platform_specific_separator": False})
        self._base, self._files = base, file_system(base)
        named = {"module_name": type(self).__module__, "class_name": type(self).__name__}
        self._config = {**options, **named, "base": base}
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
            raise InvalidKeyError(f"there is no {self._base}/{self._path(key)}") from None

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
        (found,) = self._files.get_file_info([self._path(key)])
        return bool(found.type == pafs.FileType.File)

    def list_keys(self, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """The keys of all files, or of those under a prefix."""
        paths = files_under(self._files, "/".join(prefix))
        parse: Any = self._convert_filepath_to_key
        ignored: Any = self.is_ignored_key
        begins, ends = self.filepath_prefix or "", self.filepath_suffix or ""
        keys = map(parse, (one for one in paths if one.startswith(begins) and one.endswith(ends)))
        return [key for key in keys if key and not ignored(key)]

    def remove_key(self, key: Any) -> Any:
        """Remove a file; whether it was there."""
        if there := self._has_key(key):
            self._files.delete_file(self._path(key))
        return there

    def get_url_for_key(self, key: Any, protocol: str | None = None) -> str:
        """Where a file is."""
        escaped = self._url_path_escape_special_characters(path=self._path(key))
        return f"{protocol or ''}{self._base}/{escaped}"
