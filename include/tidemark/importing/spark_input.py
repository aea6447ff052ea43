"""Trace an input of a join through Spark's analysed plan, back to its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemark.config.sides import SideName
from tidemark.errors import ImportRefusedError
from tidemark.importing.expressions import Call, Column, Expression, list_conjuncts, walk
from tidemark.importing.spark_expressions import (
    TimeWindow,
    Tree,
    get_expression_id,
    parse_expression,
    parse_tree,
)

DELAY = "delayMs"
"""Field of a watermark's node with its delay, which `toJSON` leaves out."""
FORMAT, OPTIONS = "sourceFormat", "sourceOptions"
"""Fields of a source's node with its format and options, which `toJSON` leaves out."""
PASSED = ("SubqueryAlias", "ResolvedHint", "View", "Repartition", "RepartitionByExpression", "RebalancePartitions")
"""Operators that neither change nor remove rows."""
_RESULTS = {"Join": "another join", "Aggregate": "an aggregate", "Union": "a union", "Deduplicate": "a deduplication"}


@dataclass(frozen=True)
class SparkInput:
    """An input of a join, at some node of the plan."""

    source: str
    """Format of the source, such as delta."""
    options: Mapping[str, str]
    """Options of the reader, in lower case."""
    attributes: Mapping[int, Expression]
    """The node's output columns by id."""
    time: Expression | None = None
    """Event time of the watermark; None without one."""
    delay_ms: int = 0
    filters: tuple[Expression, ...] = field(default=())

    @property
    def description(self) -> str:
        """Format of the source, and its path if it has one."""
        return f"{self.source} {self.options.get('path', '')}".strip() or "a stream"


def trace_input(tree: Tree, side: SideName) -> SparkInput:
    """Trace the rows of a node to the stream that they come from.

    Raises:
        ImportRefusedError: The rows are not rows of one stream.
    """
    if tree.kind.startswith("Streaming") and not tree.children:
        columns = (parse_tree(nodes).fields for nodes in tree.fields["output"])
        attributes: dict[int, Expression] = {
            get_expression_id(column): Column((str(column["name"]),), str(column["dataType"]), side)
            for column in columns
        }
        return SparkInput(str(tree.fields.get(FORMAT, "")), tree.fields.get(OPTIONS, {}), attributes)
    steps = {"Project": _project, "Filter": _filter, "EventTimeWatermark": _add_watermark, "Expand": _expand}
    if tree.kind in PASSED:
        return trace_input(tree.children[0], side)
    if tree.kind in steps:
        return steps[tree.kind](tree, trace_input(tree.children[0], side), side)
    what = _RESULTS.get(tree.kind, f"the result of {tree.kind}")
    raise ImportRefusedError(
        f"the {side} input of the join is {what}, not the rows of a stream. Write its result to a table, and join that."
    )


def _project(tree: Tree, rows: SparkInput, side: SideName) -> SparkInput:  # noqa: ARG001 - a step as the others
    items = [parse_tree(nodes) for nodes in tree.fields["projectList"]]
    attributes = {get_expression_id(item.fields): parse_expression(item, rows.attributes) for item in items}
    return replace(rows, attributes=attributes if rows.time is None else _seal_computed_times(attributes, rows.time))


def _add_watermark(tree: Tree, rows: SparkInput, side: SideName) -> SparkInput:
    if rows.time is not None:
        raise ImportRefusedError(f"the {side} input has two watermarks, and a pipeline has one. Remove one of them.")
    time = parse_expression(parse_tree(tree.fields["eventTime"]), rows.attributes)
    if isinstance(time, TimeWindow):
        raise ImportRefusedError(
            f"the watermark of the {side} input is on a window, whose bytes Spark reads as a time. Declare it on the "
            "timestamp, and apply window() afterwards."
        )
    attributes = _seal_computed_times(rows.attributes, time)
    windows = {key: column for key, column in attributes.items() if isinstance(column, TimeWindow)}
    sealed = {key: Call("a window computed before withWatermark", (w,), w.dtype) for key, w in windows.items()}
    return replace(rows, attributes={**attributes, **sealed}, time=time, delay_ms=int(tree.fields[DELAY]))


def _seal_computed_times(attributes: Mapping[int, Expression], time: Expression) -> dict[int, Expression]:
    """Wrap the sums of the watermark's time and an interval, so that they are not taken for bounds on that time.

    Spark finds the watermark by the column that `withWatermark` names, not by values computed from it. So it evicts
    rows as if the interval were 0.
    """
    return {
        key: Call("a time computed from that of withWatermark", (column,), column.dtype)
        if isinstance(column, Call)
        and column.name == "TimestampAddInterval"
        and column != time
        and time in walk(column)
        else column
        for key, column in attributes.items()
    }


def _filter(tree: Tree, rows: SparkInput, side: SideName) -> SparkInput:
    condition = parse_expression(parse_tree(tree.fields["condition"]), rows.attributes)
    filters = []
    for part in list_conjuncts(condition):
        if rows.time is not None and rows.time in walk(part):
            if _is_made_by_window(part, rows.time):
                continue
            raise ImportRefusedError(
                f"the {side} input is filtered by its event time after the watermark, so filtered rows advance it. "
                "A pipeline of dialect spark filters before. Filter before withWatermark."
            )
        filters.append(part)
    return replace(rows, filters=(*rows.filters, *filters))


def _is_made_by_window(part: Expression, time: Expression) -> bool:
    """Return True for a condition that Spark adds to window(): a time that is not null, and lies in its window."""
    match part:
        case Call(name="IsNotNull", operands=(operand,)):
            return operand == time
        case Call(name="GreaterThanOrEqual" | "LessThan", operands=(operand, Call(operands=(TimeWindow(),)))):
            return operand == time
    return False


def _expand(tree: Tree, rows: SparkInput, side: SideName) -> SparkInput:
    """Read sliding windows: a projection for each window of a row."""
    projections = [
        [parse_expression(parse_tree(nodes), rows.attributes) for nodes in projection]
        for projection in tree.fields["projections"]
    ]
    windows = [[column for column in columns if isinstance(column, TimeWindow)] for columns in projections]
    if len(windows) < 2 or any(len(columns) != 1 for columns in windows):  # noqa: PLR2004 - windows that overlap
        raise ImportRefusedError(f"the {side} input has sliding windows with a slide above the size. Decrease it.")
    starts = [columns[0].start for columns in windows]
    slide = starts[0] - starts[1]
    window = replace(windows[0][0], slide=slide, offset=starts[0] % slide)
    names = [parse_tree(nodes) for nodes in tree.fields["output"]]
    attributes = {
        get_expression_id(name.fields): window if isinstance(column, TimeWindow) else column
        for name, column in zip(names, projections[0], strict=True)
    }
    return replace(rows, attributes=attributes)
