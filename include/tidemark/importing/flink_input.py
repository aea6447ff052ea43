"""Trace an input of a join through a compiled plan, back to its source table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.config.sides import SIDES, SideName
from tidemark.errors import ImportRefusedError
from tidemark.importing.expressions import Call, Column, Expression, Interval, WindowColumn, transform_columns
from tidemark.importing.flink_expressions import format_type, list_fields, parse_expression
from tidemark.importing.flink_plan import FlinkPlan, PlanNode

_WINDOW_COLUMNS = ("window_start", "window_end", "window_time")
_DEFAULT_DATABASE = "default_catalog.default_database."
_METADATA_PREFIX = "$metadata$"
_PASSED = ("exchange", "drop-update-before")
"""Nodes that neither change nor remove rows of an append-only table."""
_RESULTS = {
    "join": "another join",
    "multi-join": "another join",
    "lookup-join": "another join",
    "temporal-join": "another join",
    "union": "a union of tables",
    "deduplicate": "a deduplication",
    "rank": "a ranking",
    "window-rank": "a ranking",
    "window-deduplicate": "a deduplication",
    "match": "a pattern match",
}


@dataclass(frozen=True)
class Watermark:
    """A watermark that follows the event time."""

    time: Expression
    delay_ms: int
    node: PlanNode
    idle_ms: int | None = None
    """Idle timeout; None if the plan does not have one."""
    is_per_partition: bool = False
    """True if the source makes it, for each of its partitions."""


@dataclass(frozen=True)
class Filter:
    """A condition that rows of the input must meet."""

    condition: Expression
    node: PlanNode
    is_before_watermark: bool


@dataclass(frozen=True)
class PlanInput:
    """An input of a join, at some node of the plan."""

    table: str
    """Name of the source table, with catalog and database, without quotes; label of the join if the rows are its
    output."""
    options: Mapping[str, str]
    columns: tuple[Expression, ...]
    """The node's output columns."""
    source: PlanNode
    watermark: Watermark | None = None
    filters: tuple[Filter, ...] = ()
    window: Mapping[str, Any] | None = None
    """Specification of the window function."""
    window_time: Expression | None = None
    window_node: PlanNode | None = None
    session_keys: tuple[Expression, ...] = ()
    """Columns by which session windows are partitioned."""
    mini_batch_node: PlanNode | None = None
    """Operator that delays watermarks to the ends of mini-batches."""
    has_primary_key: bool = False
    """True if the table has a primary key, so that its connector may read updates."""
    sides_by_time: Mapping[Expression, SideName] = field(default_factory=dict)
    """Event times of another join's output, with the side of that join; empty for rows of a table."""

    @property
    def join_node(self) -> PlanNode | None:
        """The join whose output the rows are; None for rows of a table."""
        return self.source if self.source.is_join else None

    @property
    def short_name(self) -> str:
        """Name of the source table, without the default catalog and database."""
        return self.table.removeprefix(_DEFAULT_DATABASE)


def trace_input(plan: FlinkPlan, node: PlanNode, side: SideName) -> PlanInput:
    """Trace the rows of a node to the table or the join that they come from.

    Raises:
        ImportRefusedError: The rows are not rows of one table or of one join.
    """
    if node.kind == "table-source-scan":
        return _read_scan(node, side)
    if node.is_join:
        return _read_join(plan, node)
    if len(node.input_ids) != 1 or node.kind not in _STEPS:
        default = "an aggregate" if "aggregate" in node.kind else "the result of an operator"
        description = _RESULTS.get(node.kind, default)
        raise ImportRefusedError(
            f"the {side} input of the join is {description} ({node.label}), not the rows of a table or of a join. "
            "Write its result to a table, and join that."
        )
    [source] = plan.get_inputs(node)
    return _STEPS[node.kind](node, trace_input(plan, source, side), side)


def trace_inputs(plan: FlinkPlan, node: PlanNode) -> dict[SideName, PlanInput]:
    """Trace both inputs of a join."""
    sources = zip(SIDES, plan.get_inputs(node), strict=True)
    return {side: trace_input(plan, source, side) for side, source in sources}


def find_join_time(node: PlanNode, side: SideName, rows: PlanInput) -> Expression:
    """Return the column with the time by which a join joins an input: an event time, or the start of a window."""
    if node.kind == "interval-join":
        index = node.content["intervalJoinSpec"]["windowBounds"][f"{side}TimeIndex"]
    elif rows.window_time:
        return rows.window_time
    else:
        index = node.content[f"{side}Windowing"]["windowStart"]
    return rows.columns[int(index)]


def _read_join(plan: FlinkPlan, node: PlanNode) -> PlanInput:
    """Read the output of a join, with the columns of a pipeline's emissions.

    Raises:
        ImportRefusedError: The join has the rows of one side only.
    """
    if node.is_one_sided:
        raise ImportRefusedError(
            f"the {node.label}, is before another join, which a pipeline does not support. Join its input instead."
        )
    columns: list[Expression] = []
    sides_by_time: dict[Expression, SideName] = {}
    for side, rows in trace_inputs(plan, node).items():
        time = find_join_time(node, side, rows)
        columns += [_to_output_column(column, side, time) for column in rows.columns]
        if node.kind == "interval-join":
            sides_by_time[_to_output_column(time, side, time)] = side
        else:
            sides_by_time |= {WindowColumn(name, side): side for name in _WINDOW_COLUMNS}
    window = node.content["leftWindowing"]["window"] if node.kind == "window-join" else None
    return PlanInput(node.label, {}, tuple(columns), node, window=window, sides_by_time=sides_by_time)


def _to_output_column(expression: Expression, side: SideName, time: Expression) -> Expression:
    """Return a column of an input as the emissions have it, with the side in its name.

    Args:
        expression: The column.
        side: Side of the input.
        time: The time by which the input is joined.
    """

    def rename(column: Column | WindowColumn) -> Expression:
        if isinstance(column, Column):
            return replace(column, path=(f"{side}_{column.path[0]}", *column.path[1:]))
        if column.side and isinstance(time, WindowColumn) and column.side != time.side:
            # Window of the other side of an earlier join: null in padded rows, and not that of this join.
            return WindowColumn(f"{column.side}_{column.name}", side)
        return replace(column, side=side)

    return transform_columns(expression, rename)


def _read_scan(node: PlanNode, side: SideName) -> PlanInput:
    table = node.content["scanTableSource"]["table"]
    resolved = table.get("resolvedTable") or {}
    table_schema = resolved.get("schema") or {}
    schema = table_schema.get("columns")
    name = str(table.get("identifier") or "an anonymous table").replace("`", "")
    if schema is None:  # of a temporary table
        output = tuple(Column((field,), dtype) for field, dtype in list_fields(node.content["outputType"]))
        return _apply_abilities(PlanInput(name, {}, output, node), None, side)
    physical = [Column((c["name"],), format_type(c["dataType"])) for c in schema if not c.get("kind")]
    metadata = {str(c.get("metadataKey") or c["name"]): c for c in schema if c.get("kind") == "METADATA"}
    rows = PlanInput(
        name,
        resolved.get("options") or {},
        tuple(physical),
        node,
        has_primary_key=bool(table_schema.get("primaryKey")),
    )
    return _apply_abilities(rows, TableColumns(physical, metadata), side)


@dataclass(frozen=True)
class TableColumns:
    """Columns of a source table."""

    physical: list[Column]
    metadata: Mapping[str, Any]
    """Metadata columns by key."""


def _apply_abilities(rows: PlanInput, table: TableColumns | None, side: SideName) -> PlanInput:
    """Apply what the planner has moved into the source.

    Args:
        rows: Rows of the table.
        table: All columns of the table; None if the rows have the output columns of the source already.
        side: Side of the input.
    """
    for ability in rows.source.content["scanTableSource"].get("abilities") or ():
        projected = _apply_projection(rows, ability, table)
        rows = projected or _apply_ability(rows, ability, side)
    return rows


def _apply_projection(rows: PlanInput, ability: Mapping[str, Any], table: TableColumns | None) -> PlanInput | None:
    """Apply a projection in the source; None for another ability."""
    match ability:
        case {"type": "ProjectPushDown", "projectedFields": fields} if all(len(path) == 1 for path in fields):
            return replace(rows, columns=tuple(table.physical[path[0]] for path in fields)) if table else rows
        case {"type": "ReadingMetadata", "metadataKeys": keys}:
            if table is None:
                return rows
            metadata_columns = [table.metadata[key.removeprefix(_METADATA_PREFIX)] for key in keys]
            added = (Column((column["name"],), format_type(column["dataType"])) for column in metadata_columns)
            own = [column for column in rows.columns if column in table.physical]
            return replace(rows, columns=(*own, *added))
    return None


def _apply_ability(rows: PlanInput, ability: Mapping[str, Any], side: SideName) -> PlanInput:
    """Apply a filter or a watermark in the source."""
    match ability:
        case {"type": "FilterPushDown", "predicates": predicates}:
            conditions = [parse_expression(predicate, rows.columns) for predicate in predicates]
            added_filters = [Filter(condition, rows.source, is_before_watermark=True) for condition in conditions]
            return replace(rows, filters=(*rows.filters, *added_filters))
        case {"type": "WatermarkPushDown", "watermarkExpr": expression}:
            idle_ms = _get_source_idle_timeout(ability)
            time, delay_ms = _split_watermark(parse_expression(expression, rows.columns), rows.source, side)
            rowtime = ability.get("rowtimeExpr")
            if rowtime and parse_expression(rowtime, rows.columns) != time:
                raise ImportRefusedError(_describe_other_watermark(rows.source, side))
            watermark = Watermark(time, delay_ms, rows.source, idle_ms, is_per_partition=True)
            return replace(rows, watermark=watermark)
        case {"type": "ProjectPushDown"}:
            raise ImportRefusedError(
                f"the source of the {side} input reads single fields of a struct, which is not translated. Select the "
                "whole column, and compile the plan again."
            )
        case {"type": "SourceWatermark"}:
            raise ImportRefusedError(
                f"the source of the {side} input makes its own watermark (SOURCE_WATERMARK), which no plan describes. "
                "Record CURRENT_WATERMARK for each row, and write the pipeline file with recorded_watermark."
            )
    raise ImportRefusedError(
        f"the source of the {side} input applies {ability.get('type')}, which is not translated. Switch it off with "
        "table.optimizer.source.predicate-pushdown-enabled or a hint, and compile the plan again."
    )


def _get_source_idle_timeout(ability: Mapping[str, Any]) -> int | None:
    parameters = ability.get("watermarkParams") or {}
    for value in (parameters.get("sourceIdleTimeout"), ability.get("idleTimeoutMillis")):
        if isinstance(value, int) and value > 0:
            return value
    return None


def _split_watermark(expression: Expression, node: PlanNode, side: SideName) -> tuple[Expression, int]:
    """Split a watermark into the event time and the delay in ms.

    Raises:
        ImportRefusedError: The watermark has another form.
    """
    match expression:
        case Call(name="-", operands=(time, Interval(ms=ms))) if ms >= 0:
            return time, ms
        case Call(name="+", operands=(time, Interval(ms=ms))) if ms <= 0:
            return time, -ms
        case Call(name="-" | "+"):
            raise ImportRefusedError(_describe_other_watermark(node, side))
    return expression, 0


def _describe_other_watermark(node: PlanNode, side: SideName) -> str:
    return (
        f"the watermark of the {side} input ({node.label}) is not the event time minus a constant. Record "
        "CURRENT_WATERMARK for each row, and write the pipeline file with recorded_watermark."
    )


def _add_watermark(node: PlanNode, rows: PlanInput, side: SideName) -> PlanInput:
    time, delay_ms = _split_watermark(parse_expression(node.content["watermarkExpr"], rows.columns), node, side)
    if time != rows.columns[node.content["rowtimeFieldIndex"]]:
        raise ImportRefusedError(_describe_other_watermark(node, side))
    filters = tuple(replace(rows_filter, is_before_watermark=True) for rows_filter in rows.filters)
    return replace(rows, watermark=Watermark(time, delay_ms, node), filters=filters)


def _apply_calc(node: PlanNode, rows: PlanInput, side: SideName) -> PlanInput:
    filters = rows.filters
    if condition := node.content.get("condition"):
        if rows.window and "session" in str(rows.window.get("type")).lower():
            raise ImportRefusedError(
                f"the {side} input is filtered after its sessions are made ({node.label}), and a pipeline filters "
                "before. Move the filter below the window function."
            )
        parsed = parse_expression(condition, rows.columns)
        filters = (*filters, Filter(parsed, node, is_before_watermark=False))
    columns = tuple(parse_expression(column, rows.columns) for column in node.content["projection"])
    return replace(rows, columns=columns, filters=filters)


def _add_window(node: PlanNode, rows: PlanInput, side: SideName) -> PlanInput:
    windowing = node.content["windowing"]
    if rows.window or windowing.get("strategy") != "TimeAttribute":
        raise ImportRefusedError(
            f"the {side} input has a window function over another one ({node.label}). Apply one to the table's rows."
        )
    time = rows.columns[windowing["timeAttributeIndex"]]
    added = tuple(WindowColumn(name) for name in _WINDOW_COLUMNS)
    window = windowing["window"]
    return replace(
        rows,
        columns=(*rows.columns, *added),
        window=window,
        window_time=time,
        window_node=node,
        session_keys=tuple(rows.columns[index] for index in window.get("partition_key_indices") or ()),
    )


def _delay_watermarks(node: PlanNode, rows: PlanInput, side: SideName) -> PlanInput:  # noqa: ARG001 - a step as the others
    return replace(rows, mini_batch_node=node)


def _pass_rows(node: PlanNode, rows: PlanInput, side: SideName) -> PlanInput:  # noqa: ARG001 - a step as the others
    return rows


_STEPS: dict[str, Callable[[PlanNode, PlanInput, SideName], PlanInput]] = {
    "calc": _apply_calc,
    "mini-batch-assigner": _delay_watermarks,
    "watermark-assigner": _add_watermark,
    "window-table-function": _add_window,
    **dict.fromkeys(_PASSED, _pass_rows),
}
