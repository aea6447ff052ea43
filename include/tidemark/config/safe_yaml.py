"""Read YAML files safely: bounded size, unique keys and file names without code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tidemark.errors import PipelineFileError
from tidemark.formatting import to_single_line

ALLOWED_ROOTS_VARIABLE = "TIDEMARK_ALLOWED_ROOTS"
"""Environment variable with additional allowed roots of paths: absolute paths and URIs, separated by commas."""
MAX_BYTES = 100_000
"""Maximum size of a file."""
MAX_VALUES = 10_000
"""Maximum number of values, counted as often as aliases repeat them."""
MAX_DEPTH = 20
"""Maximum nesting depth of lists and mappings."""

_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class Span:
    """Extent of a value in the text of a file, in characters."""

    start: int
    """Inclusive."""
    end: int
    """Exclusive."""
    line: int
    """Line of the value's key, or else of the value, from 1."""
    indent: int
    """Column of the key, or of the hyphen of a list's entry, from 0."""


@dataclass(frozen=True)
class YamlDocument:
    """Content of a YAML file, with the position of each value."""

    path: Path
    text: str
    content: Any
    spans: Mapping[tuple[str, ...], Span]
    """Extents of values by their path: keys as text, and indices of lists from 0."""

    def find_line(self, *path: object) -> int:
        """Return the line of the value at a path, or else of the closest value that contains it."""
        parts = tuple(map(str, path))
        return next((self.spans[parts[:n]].line for n in range(len(parts), 0, -1) if parts[:n] in self.spans), 1)

    def locate(self, *path: object) -> str:
        """Return file and line of the value at a path, as `FILE:LINE`."""
        return f"{self.path}:{self.find_line(*path)}"


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        PipelineFileError: The file name could be read as code, or the file is too large or no YAML. Names the line.
    """
    return _read(path, MAX_BYTES, MAX_VALUES).content


def read_long_yaml(path: Path) -> YamlDocument:
    """Read a YAML file that may be ten times as long as a pipeline file, with the lines of its values.

    Raises:
        PipelineFileError: As `read_yaml`.
    """
    return _read(path, 10 * MAX_BYTES, 10 * MAX_VALUES)


def parse_long_yaml(path: Path, text: str) -> YamlDocument:
    """Parse the text that a file is to have, as `read_long_yaml` would read it.

    Raises:
        PipelineFileError: As `read_yaml`.
    """
    return _parse(path, text.encode(), 10 * MAX_BYTES, 10 * MAX_VALUES)


def parse_value(text: str) -> Any:
    """Parse the value of a setting, as it would be read in a pipeline file.

    Raises:
        ValueError: The text is no YAML.

    >>> parse_value("[on, 010, 5, true]")
    ['on', '010', 5, True]
    """
    try:
        return _parse(Path(), text.encode(), MAX_BYTES, MAX_VALUES).content
    except PipelineFileError:
        raise ValueError("is not YAML. Write a value as in a pipeline file.") from None


def _read(path: Path, max_bytes: int, max_values: int) -> YamlDocument:
    # Airflow renders Jinja templates in task arguments, and the path is one of them.
    if not _NAME.fullmatch(path.name):
        raise PipelineFileError(
            f"{path.name!r} is not a valid name of a pipeline file. Use letters, digits, _, - and . only."
        )
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise PipelineFileError(to_single_line(f"{path} cannot be read as YAML: {_explain(error)}")) from None
    return _parse(path, content, max_bytes, max_values)


def _parse(path: Path, content: bytes, max_bytes: int, max_values: int) -> YamlDocument:
    if len(content) > max_bytes:
        raise PipelineFileError(f"{path} has more than {max_bytes:,} bytes. Pipeline files have a page or two.")
    try:
        text = content.decode("utf-8")
        loader = _Loader(text, max_values)
        try:
            root = loader.get_single_node()
            value = None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
        spans = {} if root is None else dict(_find_spans(root, (), root.start_mark))
        return YamlDocument(path, text, value, spans)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise PipelineFileError(to_single_line(f"{path} cannot be read as YAML: {_explain(error)}")) from None


def _find_spans(node: yaml.Node, path: tuple[str, ...], start: yaml.Mark) -> Iterator[tuple[tuple[str, ...], Span]]:
    """Yield path and extent of each value; a value with an alias is at its first use."""
    yield path, Span(node.start_mark.index, node.end_mark.index, start.line + 1, start.column)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _find_spans(value, (*path, str(key.value)), key.start_mark)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _find_spans(value, (*path, str(number)), value.start_mark)


class _Loader(yaml.SafeLoader):
    """Loader that refuses documents that expand beyond their text, and duplicate keys.

    The words on, off, yes and no are text, as are 12:30 and 0123. PyYAML (YAML 1.1) reads booleans, and numbers with
    base 60 and 8. YAML 1.2, and so editors that check a file by its schema, know neither.
    """

    def __init__(self, text: str, max_values: int) -> None:
        super().__init__(text)
        self.max_values = max_values
        self.value_count = self.depth = 0
        self.value_counts: dict[int, int] = {}
        """Number of values in each complete node, by the node's identity."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        """Return the tag of a node without an explicit one."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_text = tag in _NUMBERS and _OLD_NUMBER.match(value)
        return self.DEFAULT_SCALAR_TAG if is_text else tag

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node and count its values."""
        is_alias, mark = self.check_event(yaml.AliasEvent), self.get_mark()
        count_before = self.value_count
        self.value_count += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias:
            if id(node) not in self.value_counts:
                raise yaml.MarkedYAMLError(problem="an alias of a node that contains it", problem_mark=mark)
            self.value_count = count_before + self.value_counts[id(node)]
        self.value_counts[id(node)] = self.value_count - count_before
        if self.value_count > self.max_values:
            problem = f"more than {self.max_values:,} values, aliases included"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping with unique scalar keys."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key that is not a word", problem_mark=key.start_mark)
            if key.value in lines:
                problem = f"duplicate key {key.value}, first in line {lines[key.value]}. Remove one of them."
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return node


_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
_OLD_NUMBER = re.compile(r"[-+]?0[0-9_]|.*:")
"""Start of a number with base 8 or 60."""
_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("(?i:true|false)$"), list("tTfF"))


def _explain(error: Exception) -> str:
    """Describe problem and line without the content of the file, which may be any file and may contain secrets."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start:,} is not UTF-8"
    return " ".join(str(error).split())
