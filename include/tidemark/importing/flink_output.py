"""Read what a compiled plan does with the rows of a join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidemark.errors import ImportRefusedError
from tidemark.importing.draft import Omission, Section
from tidemark.importing.expressions import Call, Expression, WindowColumn, list_conjuncts, walk
from tidemark.importing.flink_expression_sql import to_sql
from tidemark.importing.flink_expressions import list_fields, parse_expression
from tidemark.importing.flink_plan import FlinkPlan, PlanNode
from tidemark.importing.written_expressions import OutputColumn, omit_window_expression, write_select

_PASSED = ("calc", "exchange", "sink", "drop-update-before", "sink-materializer")
"""Operators whose results do not differ from a table of the emissions, or that follow another operator."""
_WINDOW_COLUMNS = ("window_start", "window_end")


@dataclass(frozen=True)
class JoinOutput:
    """Use of a join's rows."""

    select: Section = field(default_factory=dict)
    """Output columns; empty for all."""
    conditions: tuple[Expression, ...] = ()
    """Conditions after an inner join, which are equal to conditions of the join."""
    omissions: tuple[Omission, ...] = ()


def read_output(plan: FlinkPlan, node: PlanNode, pair: Sequence[Expression], *, inner: bool) -> JoinOutput:
    """Read the projection and the filter after a join, and list all other operators after it.

    Args:
        plan: The plan.
        node: The join.
        pair: Columns of both inputs.
        inner: True if a filter after the join is equal to a condition of the join.
    """
    consumers = plan.list_consumers(node)
    calcs = [consumer for consumer in consumers if consumer.kind == "calc"]
    if len(consumers) != 1 or not calcs:
        several = f"{len(consumers)} operators read the rows of the join. The emissions have all columns."
        select_omissions = [Omission("select", several)] if calcs else []
        return JoinOutput({}, (), (*select_omissions, *_list_operators(plan, node)))
    [calc] = calcs
    conditions: tuple[Expression, ...] = ()
    omissions = list(_list_operators(plan, calc))
    if condition := calc.content.get("condition"):
        parsed = parse_expression(condition, pair)
        if inner and _can_write(parsed):
            conditions = tuple(list_conjuncts(parsed))
        else:
            omissions.insert(0, _omit_filter(calc))
    select, selected_omissions = _read_select(plan, calc, pair)
    return JoinOutput(select, conditions, (*selected_omissions, *omissions))


def _can_write(expression: Expression) -> bool:
    try:
        to_sql(expression)
    except ImportRefusedError:
        return False
    return True


def _omit_filter(calc: PlanNode) -> Omission:
    return Omission("filter after the join", f"{calc.title}. Filter the emissions when reading.")


def _list_operators(plan: FlinkPlan, node: PlanNode, *, reads_emissions: bool = True) -> Iterator[Omission]:
    """Yield the operators after a node, whose results the pipeline does not have.

    Args:
        plan: The plan.
        node: The node.
        reads_emissions: True if the node's rows are emissions, so that a filter of them is one of emissions.
    """
    for consumer in plan.list_consumers(node):
        is_passed = consumer.kind in _PASSED
        if not is_passed:
            yield Omission("operator after the join", f"The pipeline ends with the join, before {consumer.title}")
        elif reads_emissions and consumer.content.get("condition"):
            yield _omit_filter(consumer)
        yield from _list_operators(plan, consumer, reads_emissions=reads_emissions and is_passed)


def _read_select(plan: FlinkPlan, calc: PlanNode, pair: Sequence[Expression]) -> tuple[Section, list[Omission]]:
    """Read the projection after a join, except windows."""
    names = _list_output_names(plan, calc)
    columns, omissions = [], []
    for name, node in zip(names, calc.content["projection"], strict=True):
        expression = _strip_cast(parse_expression(node, pair))
        if isinstance(expression, WindowColumn) and expression.name in _WINDOW_COLUMNS:
            omissions.append(Omission(f"output column {name}", f"The emissions have it as _{expression.name}."))
        elif any(isinstance(part, WindowColumn) for part in walk(expression)):
            omissions.append(omit_window_expression(name))
        else:
            columns.append(OutputColumn(name, expression, f"output column {name}, node {calc.node_id}"))
    return write_select(columns, to_sql), omissions


def _strip_cast(expression: Expression) -> Expression:
    """Return the window column that is cast, or the expression itself."""
    match expression:
        case Call(name="CAST", operands=(WindowColumn() as column,)):
            return column
    return expression


def _list_output_names(plan: FlinkPlan, calc: PlanNode) -> list[str]:
    """List the names of a projection; those of the sink if it follows."""
    consumers = plan.list_consumers(calc)
    if len(consumers) == 1 and consumers[0].kind == "sink":
        table = consumers[0].content.get("dynamicTableSink", {}).get("table", {})
        columns = ((table.get("resolvedTable") or {}).get("schema") or {}).get("columns") or []
        names = [str(column["name"]) for column in columns if column.get("kind") in (None, "PHYSICAL")]
        if len(names) == len(calc.content["projection"]):
            return names
    return [name for name, _ in list_fields(calc.content["outputType"])]
