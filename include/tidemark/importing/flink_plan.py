"""Read the graph of a plan that Flink's COMPILE PLAN has written, and list its joins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidemark.errors import ImportRefusedError

_TYPE = re.compile(r"(?:stream-exec-)?(.+?)(?:_\d+)?")
_SUPPORTED = ("interval-join", "window-join")
_LAST_KNOWN = (2, 3)
"""Flink version after which plans may have properties that change the rows of a join, and that are not read."""
_MAX_DESCRIPTION = 110
_NODE = frozenset({"id", "type", "configuration", "inputProperties", "outputType", "description"})
_JOIN_SPEC = frozenset({"joinType", "leftKeys", "rightKeys", "filterNulls", "nonEquiCondition"})
_TIME_BOUNDS = frozenset({"isEventTime", "leftLowerBound", "leftUpperBound", "leftTimeIndex", "rightTimeIndex"})
_WINDOWING = frozenset({"strategy", "window", "timeAttributeType", "timeAttributeIndex", "windowStart", "windowEnd"})
_WINDOWING |= {"sliceEnd", "isRowtime"}
_WINDOW = frozenset({"type", "size", "slide", "maxSize", "step", "gap", "offset", "partition_key_indices"})
_PROPERTIES: dict[str, frozenset[str]] = {
    "": _NODE | {"joinSpec", "intervalJoinSpec", "leftWindowing", "rightWindowing"},
    "joinSpec": _JOIN_SPEC,
    "intervalJoinSpec": frozenset({"joinSpec", "windowBounds"}),
    "intervalJoinSpec.joinSpec": _JOIN_SPEC,
    "intervalJoinSpec.windowBounds": _TIME_BOUNDS,
    "leftWindowing": _WINDOWING,
    "rightWindowing": _WINDOWING,
    "leftWindowing.window": _WINDOW,
    "rightWindowing.window": _WINDOW,
}
"""Properties of a join by the dotted path of the object that has them."""
_UNSUPPORTED_JOINS = {
    "join": "a regular join, which has no time bounds in Flink's plan and keeps all rows",
    "multi-join": "a join of several inputs without time bounds",
    "lookup-join": "a lookup join, which reads a table at the time of processing",
    "temporal-join": "a temporal join, which reads the version of a table at a time",
    "delta-join": "a delta join, which reads both tables by index",
}


@dataclass(frozen=True)
class PlanNode:
    """An operator of the plan."""

    node_id: int
    kind: str
    """Type without prefix and version, such as `interval-join`."""
    content: dict[str, Any]
    input_ids: tuple[int, ...]

    @property
    def is_join(self) -> bool:
        """True for an interval join or a window join."""
        return self.kind in _SUPPORTED

    @property
    def join_spec(self) -> dict[str, Any]:
        """Type, keys and condition of a join; empty for another operator."""
        return self.content.get("joinSpec") or (self.content.get("intervalJoinSpec") or {}).get("joinSpec") or {}

    def find_unknown_property(self) -> str | None:
        """Return the dotted name of a property of a join that is not read; None if there is none with a value."""
        for path, known in _PROPERTIES.items():
            part: Any = self.content
            for name in filter(None, path.split(".")):
                part = part.get(name) if isinstance(part, dict) else None
            for name, value in part.items() if isinstance(part, dict) else ():
                if name not in known and value is not None:
                    return f"{path}.{name}".removeprefix(".")
        return None

    @property
    def is_one_sided(self) -> bool:
        """True for a semi or anti join, whose output has the columns of one side."""
        return self.join_spec.get("joinType") in ("SEMI", "ANTI")

    @property
    def label(self) -> str:
        """Name of the operator, join type and number."""
        spec = self.join_spec
        join_type = f"{str(spec['joinType']).lower()} " if "joinType" in spec else ""
        return f"{join_type}{self.kind.replace('-', ' ')}, node {self.node_id}"

    def quote(self, part: str) -> str:
        """Return the number, and a part of the description such as `where`; the whole title without this part."""
        match = re.search(rf"\b{part}=\[(.*)\]\)$", str(self.content.get("description", "")))
        return _shorten(f"node {self.node_id}: {part} {match[1]}") if match else self.title

    @property
    def title(self) -> str:
        """Number and description, shortened."""
        return _shorten(f"node {self.node_id}: {self.content.get('description') or self.kind}")


@dataclass(frozen=True)
class FlinkPlan:
    """A compiled plan."""

    version: str
    """Flink version without the patch level, such as 2.3."""
    nodes: dict[int, PlanNode]

    def check_is_known(self, node: PlanNode) -> None:
        """Check that nothing of a join is left out because this version or property is not known.

        Raises:
            ImportRefusedError: The version is later than `_LAST_KNOWN`, or the join has an unknown property.
        """
        is_number = all(part.isdigit() for part in self.version.split(".")[:2])
        if not is_number or not self.is_before((_LAST_KNOWN[0], _LAST_KNOWN[1] + 1)):
            last = ".".join(map(str, _LAST_KNOWN))
            raise ImportRefusedError(
                f"the plan is of Flink {self.version}, and plans are read up to {last}. Compile it with a Flink from "
                f"1.17 to {last}."
            )
        if name := node.find_unknown_property():
            raise ImportRefusedError(
                f"the {node.label}, has the property {name}, which is not read and may change its rows. Compile the "
                "plan without it."
            )

    def is_before(self, version: tuple[int, int]) -> bool:
        """Return True if the Flink of the plan is earlier than a version."""
        return tuple(int(part) for part in self.version.split(".")[:2]) < version

    def get_inputs(self, node: PlanNode) -> list[PlanNode]:
        """Return the nodes whose rows a node reads, in order."""
        return [self.nodes[node_id] for node_id in node.input_ids]

    def list_consumers(self, node: PlanNode) -> list[PlanNode]:
        """List the nodes that read the rows of a node."""
        return [consumer for consumer in self.nodes.values() if node.node_id in consumer.input_ids]

    def list_joins(self) -> list[PlanNode]:
        """List the interval and window joins, in the order of the plan."""
        return [node for node in self.nodes.values() if node.is_join]

    def list_next_joins(self, node: PlanNode) -> Iterator[PlanNode]:
        """Yield the interval and window joins that a node's rows reach without another one between."""
        for consumer in self.list_consumers(node):
            if consumer.is_join:
                yield consumer
            else:
                yield from self.list_next_joins(consumer)

    def find_sinks(self, node: PlanNode) -> Iterator[PlanNode]:
        """Yield the sinks that a node's rows reach."""
        if node.kind == "sink":
            yield node
        for consumer in self.list_consumers(node):
            yield from self.find_sinks(consumer)

    def explain_missing_join(self) -> str:
        """Describe why the plan has no join to import."""
        for node in self.nodes.values():
            if node.kind in _UNSUPPORTED_JOINS:
                return (
                    f"the {node.label}, is {_UNSUPPORTED_JOINS[node.kind]}. Compare the rowtime attributes of "
                    "both inputs with constant bounds, or join equal windows."
                )
        return "the plan has no join. Give the plan of a query with an interval join or a window join."


def parse_plan(text: str) -> FlinkPlan:
    """Parse the JSON of a compiled plan.

    Raises:
        ImportRefusedError: The text is no compiled plan.
    """
    try:
        content = json.loads(text)
    except ValueError:
        raise ImportRefusedError(
            "it is not JSON. Give the file that COMPILE PLAN 'FILE' FOR INSERT ... writes."
        ) from None
    return create_plan(content)


def create_plan(content: Any) -> FlinkPlan:
    """Create a plan from its parsed JSON.

    Raises:
        ImportRefusedError: The JSON is no compiled plan.
    """
    try:
        sources: dict[int, list[int]] = {}
        for edge in content["edges"]:
            sources.setdefault(edge["target"], []).append(edge["source"])
        nodes = [
            PlanNode(node["id"], _get_kind(node["type"]), node, tuple(sources.get(node["id"], ())))
            for node in content["nodes"]
        ]
        return FlinkPlan(str(content["flinkVersion"]), {node.node_id: node for node in nodes})
    except (KeyError, TypeError, AttributeError):
        raise ImportRefusedError(
            "it is not a compiled plan: flinkVersion, nodes or edges are missing. Give the file that COMPILE PLAN "
            "writes, not the output of EXPLAIN."
        ) from None


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_DESCRIPTION else f"{text[: _MAX_DESCRIPTION - 4]} ..."


def _get_kind(text: str) -> str:
    match = _TYPE.fullmatch(text)
    return match[1] if match else text
