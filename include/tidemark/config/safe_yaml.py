"""YAML as a pipeline file may have it: of a bounded size, each key once, under a name that is nothing but a name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tidemark.errors import PipelineFileError
from tidemark.formatting import in_one_line

ROOTS = "TIDEMARK_ROOTS"
"""The environment variable with further roots of paths: absolute ones and URIs, with commas between them."""
MOST_BYTES = 100_000
MOST_PARTS = 10_000
"""Of values, each as often as aliases repeat it."""
MOST_DEPTH = 20
"""Of lists and mappings in one another."""

_NAME = re.compile(r"\w[\w.-]*")


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        PipelineFileError: its name could be read as code, it is too large, or it is not YAML; says which line.
    """
    # Airflow renders the templates in its tasks' arguments, of which the file is one.
    if not _NAME.fullmatch(path.name):
        raise PipelineFileError(f"{path.name!r} is no name for a pipeline file; take letters, digits, _, - and .")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise PipelineFileError(f"{path} has more than {MOST_BYTES:,} bytes; a pipeline file has a page or two")
        return yaml.load(content.decode("utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, OSError, ValueError, OverflowError) as error:
        raise PipelineFileError(in_one_line(f"{path} cannot be read as YAML: {_told(error)}")) from None


class _Loader(yaml.SafeLoader):
    """Refuses what grows beyond its text, and the second of two equal keys; on, off, yes and no are words.

    They are to YAML 1.2, and so to editors that check a file by its schema; PyYAML's 1.1 takes them for true and false.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.parts = self.depth = 0
        self.parts_of: dict[int, int] = {}
        """How many parts a node comes to, by its identity; without those that are being read."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read a node, counted."""
        is_alias, mark = self.check_event(yaml.AliasEvent), self.get_mark()
        before = self.parts
        self.parts += 1
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"more than {MOST_DEPTH} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias:
            if id(node) not in self.parts_of:
                raise yaml.MarkedYAMLError(problem="an alias of what it stands in", problem_mark=mark)
            self.parts = before + self.parts_of[id(node)]
        self.parts_of[id(node)] = self.parts - before
        if self.parts > MOST_PARTS:
            raise yaml.MarkedYAMLError(problem=f"more than {MOST_PARTS:,} values, aliases included", problem_mark=mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Read a mapping whose keys are different words."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key that is not a word", problem_mark=key.start_mark)
            if key.value in lines:
                problem = f"{key.value} stands in line {lines[key.value]} as well; leave one of them"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return node


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, words) for tag, words in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("(?i:true|false)$"), list("tTfF"))


def _told(error: Exception) -> str:
    """What is wrong and where, without what the file says there: it may be none of ours."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start:,} is not UTF-8"
    return " ".join(str(error).split())
