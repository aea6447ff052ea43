"""Translate a stream-stream join of an analysed Spark plan into settings of dialect spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile
from typing import Any

from tidemark.config.loader import PLACEHOLDER
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_duration
from tidemark.errors import ImportRefusedError
from tidemark.importing.draft import Omission, Section, Setting
from tidemark.importing.expressions import Call, Column, Expression, list_conjuncts, walk
from tidemark.importing.spark_expressions import (
    DAYS_IN_ZONE,
    WHOLE_NUMBERS,
    TimeWindow,
    Tree,
    find_sides,
    get_dtype,
    get_expression_id,
    parse_expression,
    parse_span,
    parse_tree,
    to_sql,
)
from tidemark.importing.spark_input import PASSED, SparkInput, trace_input
from tidemark.importing.stream_join import StreamInput, StreamJoin, choose_join
from tidemark.importing.written_expressions import (
    OutputColumn,
    join_conjuncts,
    omit_window_expression,
    write_conjunction,
    write_key,
    write_select,
)

NamedExpression = tuple[str, Expression]
"""Name and value of an output column."""
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
ALLOW_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"
ANSI = "spark.sql.ansi.enabled"
TIME_ZONE = "spark.sql.session.timeZone"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_JOIN_TYPES = {"Inner": "inner", "LeftOuter": "left", "RightOuter": "right", "FullOuter": "full", "LeftSemi": "semi"}
_BOUNDS = {"GreaterThanOrEqual": ("lower", True), "GreaterThan": ("lower", False)}
_BOUNDS |= {"LessThanOrEqual": ("upper", True), "LessThan": ("upper", False)}
_MIRRORED = {"GreaterThanOrEqual": "LessThanOrEqual", "GreaterThan": "LessThan"}
_MIRRORED |= {value: key for key, value in _MIRRORED.items()}
_SIGNS = {"LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}
_TIMES = ("timestamp", "timestamp_ntz")
_EPOCH_UNITS = {"SecondsToTimestamp": "s", "MillisToTimestamp": "ms", "MicrosToTimestamp": "us"}
_CHANGE_FEED = ("readChangeFeed", "readChangeData")
_STARTS = ("startingVersion", "startingTimestamp", "startingOffsets", "startingOffsetsByTimestamp")
_ROW_OPTIONS = ("excludeRegex", "ignoreChanges", "skipChangeCommits", "withEventTimeOrder")
"""Options of Delta's reader that change which rows a query reads, or when."""
_READ_AFTER_JOIN = ("Filter", "Project", *PASSED)
"""Operators after a join that are taken over."""


@dataclass(frozen=True)
class JoinPlan:
    """A join, and the operators on its rows."""

    join: Tree
    operators: tuple[Tree, ...]
    """Filters and projections directly after the join, in the order in which they run."""
    others: tuple[str, ...]
    """Names of all operators after them."""

    @property
    def join_type(self) -> str:
        """Spark's name of the join type."""
        return str(self.join.fields["joinType"].get("object", "")).rpartition(".")[2].removesuffix("$")

    @property
    def description(self) -> str:
        """Join type in words."""
        return f"{_JOIN_TYPES.get(self.join_type, self.join_type)} join"


@dataclass
class Condition:
    """Parts of a join's condition by their meaning."""

    keys: list[Any] = field(default_factory=list)
    bounds: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Bounds of right time - left time in microseconds, each with True if it is inclusive."""
    times: dict[str, Expression] = field(default_factory=dict)
    """Times by side, as the bounds compare them."""
    windows: tuple[TimeWindow, TimeWindow] | None = None
    comparison: str = "="
    """Operator between the windows."""
    has_equal_times: bool = False
    others: list[str] = field(default_factory=list)


def import_spark_join(plan: Tree, name: str, number: int | None, settings: Mapping[str, str]) -> StreamJoin:
    """Translate a join of a streaming query.

    Args:
        plan: The analysed plan.
        name: Name of the query.
        number: Number of the join, from 1; None if it is the only one.
        settings: Spark settings of the query.

    Raises:
        ImportRefusedError: A pipeline cannot express the join.
    """
    joins = list(_list_joins(plan))
    if not joins:
        raise ImportRefusedError("the query has no join of two streams. Return the DataFrame of a stream-stream join.")
    join_plan = choose_join(joins, number, lambda join: join.description)
    join_type = join_plan.join_type
    if join_type not in _JOIN_TYPES:
        raise ImportRefusedError(
            f"the join is {join_type or 'of another type'}, which Spark does not run on streams. Use another one."
        )
    inputs: dict[SideName, SparkInput] = {
        side: trace_input(tree, side) for side, tree in zip(SIDES, join_plan.join.children, strict=True)
    }
    for side, rows in inputs.items():
        _check_reader(side, rows)
    attributes = {key: value for rows in inputs.values() for key, value in rows.attributes.items()}
    parts = _parse_condition(join_plan.join, attributes)
    filters, columns = _read_output(join_plan, attributes)
    if filters and join_type != "Inner":
        raise ImportRefusedError(
            "the query filters the rows of an outer or semi join, and Spark may make another join of it. Filter the "
            "inputs, or when reading the result."
        )
    # Spark's optimizer moves a filter after an inner join into its condition.
    condition = _classify([*parts, *filters], inputs)
    select, omissions = _write_select(columns)
    omissions += [
        Omission("operator after the join", f"The pipeline ends with the join, before {name}.")
        for name in join_plan.others
    ]
    for side, rows in inputs.items():
        omissions += _list_reader_omissions(side, rows)
    return StreamJoin(
        title=f"{_JOIN_TYPES[join_type]} join of {inputs['left'].description} with {inputs['right'].description}",
        name=name,
        name_origin="name of the function",
        dialect=Setting("spark", "a query of Structured Streaming"),
        inputs={side: _read_input(rows, condition.times.get(side), condition) for side, rows in inputs.items()},
        join={"type": Setting(_JOIN_TYPES[join_type], f"joinType {join_type}"), **_write_condition(condition)},
        top_level=_read_settings(settings),
        select=select,
        omissions=(*omissions, *_list_omissions(settings)),
    )


def _list_joins(tree: Tree, above: tuple[Tree, ...] = ()) -> Iterator[JoinPlan]:
    """Yield the joins of two streams, the outermost first.

    Args:
        tree: A node of the plan.
        above: The operators on its rows, in the order in which they run.
    """
    if tree.kind == "Join" and all(map(_is_streaming, tree.children)):
        operators = tuple(takewhile(lambda operator: operator.kind in _READ_AFTER_JOIN, above))
        yield JoinPlan(tree, operators, tuple(operator.kind for operator in above[len(operators) :]))
    for child in tree.children:
        yield from _list_joins(child, (tree, *above))


def _is_streaming(tree: Tree) -> bool:
    is_source = tree.kind.startswith("Streaming") and not tree.children
    return is_source or any(map(_is_streaming, tree.children))


def _read_output(
    plan: JoinPlan, attributes: Mapping[int, Expression]
) -> tuple[list[Expression], list[NamedExpression]]:
    """Read the filters and projections after a join.

    Returns:
        The conditions of the filters, and the output columns; none if there is no projection.
    """
    conditions: list[Expression] = []
    columns: list[NamedExpression] = []
    for operator in plan.operators:
        if operator.kind == "Filter":
            conditions += list_conjuncts(parse_expression(parse_tree(operator.fields["condition"]), attributes))
        elif operator.kind == "Project":
            items = [parse_tree(nodes) for nodes in operator.fields["projectList"]]
            columns = [(str(item.fields["name"]), parse_expression(item, attributes)) for item in items]
            ids = (get_expression_id(item.fields) for item in items)
            attributes = dict(zip(ids, (expression for _, expression in columns), strict=True))
    return conditions, columns


def _parse_condition(join: Tree, attributes: Mapping[int, Expression]) -> list[Expression]:
    nodes = join.fields.get("condition")
    return list(list_conjuncts(parse_expression(parse_tree(nodes), attributes))) if nodes else []


def _classify(parts: Sequence[Expression], inputs: Mapping[SideName, SparkInput]) -> Condition:
    condition = Condition(times={side: rows.time for side, rows in inputs.items() if rows.time is not None})
    rest = [
        part
        for part in parts
        if not _read_windows(part, condition) and not _read_bound(part, condition) and not _read_key(part, condition)
    ]
    if not condition.keys:
        raise ImportRefusedError("the join has no equal keys, and a pipeline needs one. Join on a column too.")
    has_times = condition.bounds or condition.windows or condition.has_equal_times
    if not has_times and any(map(_compares_times, rest)):
        raise ImportRefusedError(
            "the times that the join compares are not those of withWatermark, so that it keeps all rows. Compare the "
            "times of withWatermark."
        )
    _check_no_event_time(rest, condition)
    condition.others = [write_conjunction([part], to_sql, "the condition of the join") for part in rest]
    if not has_times:
        raise ImportRefusedError(
            "the join compares neither the event times nor windows of both inputs, so that it keeps all rows. Compare "
            "the times."
        )
    return condition


def _compares_times(part: Expression) -> bool:
    """Return True for a comparison of a time of one side with a time of the other."""
    if not isinstance(part, Call) or part.name not in (*_BOUNDS, "EqualTo"):
        return False
    return find_sides(part) == {"left", "right"} and all(_get_dtype(operand) in _TIMES for operand in part.operands)


def _check_no_event_time(parts: Sequence[Expression], condition: Condition) -> None:
    """Check that conditions other than bounds read no event time.

    Raises:
        ImportRefusedError: One of them does.
    """
    for side, time in condition.times.items():
        name = _read_event_time(time).value
        column = name["column"] if isinstance(name, dict) else name
        for part in parts:
            if not _reads_column(part, side, column):
                continue
            remedy = (
                "Filter the input before the join and before withWatermark"
                if len(find_sides(part)) == 1
                else "Compare only the event times of both inputs, with a constant distance"
            )
            raise ImportRefusedError(
                f"the condition of the join reads {column}, the event time of the {side} input, by which Spark evicts "
                f"rows. {remedy}."
            )


def _reads_column(expression: Expression, side: str, name: str) -> bool:
    columns = (part for part in walk(expression) if isinstance(part, Column))
    return any((column.side, column.path[0]) == (side, name) for column in columns)


def _read_windows(part: Expression, condition: Condition) -> bool:
    """Read a comparison of the windows of both sides."""
    match part:
        case Call(name=name, operands=(TimeWindow() as first, TimeWindow() as second)) if name in (*_SIGNS, "EqualTo"):
            is_swapped = find_sides(first) == {"right"}
            windows = (second, first) if is_swapped else (first, second)
            if condition.windows or find_sides(windows[0]) == find_sides(windows[1]):
                raise ImportRefusedError(
                    "the join compares more than one pair of windows. Compare one window per side."
                )
            condition.windows = windows
            for side, window in zip(SIDES, windows, strict=True):
                condition.times.setdefault(side, window.operands[0])
            condition.comparison = "=" if name == "EqualTo" else _SIGNS[_MIRRORED[name] if is_swapped else name]
            return True
    return False


def _read_bound(part: Expression, condition: Condition) -> bool:
    """Read a comparison of the times of both sides, with constant distances."""
    if not isinstance(part, Call) or part.name not in (*_BOUNDS, "EqualTo"):
        return False
    (first, first_span), (second, second_span) = (_split_time(operand) for operand in part.operands)
    sides = [find_sides(first), find_sides(second)]
    if sorted(map(sorted, sides)) != [["left"], ["right"]] or not _are_times(first, second, condition):
        return False
    is_left_first = sides[0] == {"left"}
    for side, time in zip(SIDES, (first, second) if is_left_first else (second, first), strict=True):
        if condition.times.setdefault(side, time) != time:
            return False
    if part.name == "EqualTo":
        if first_span or second_span:
            raise ImportRefusedError("the join compares times by = and a distance. Use the same lower and upper bound.")
        condition.has_equal_times = True
        return True
    name = _MIRRORED[part.name] if is_left_first else part.name
    span = first_span - second_span if is_left_first else second_span - first_span
    bound, is_inclusive = _BOUNDS[name]
    if bound in condition.bounds:
        raise ImportRefusedError(
            f"the join has two {bound} bounds on the times, of which Spark evicts by the looser one. Write one bound."
        )
    condition.bounds[bound] = (span, is_inclusive)
    return True


def _split_time(expression: Expression) -> tuple[Expression, int]:
    """Split a time into its expression, and the constant microseconds that are added to it.

    Raises:
        ImportRefusedError: More than one constant is added, of which Spark ignores equal ones.
    """
    match expression:
        case Call(name="TimestampAddInterval", operands=(start, interval)):
            span, (time, inner) = parse_span(interval), _split_time(start)
            if span is None:
                raise ImportRefusedError("the join adds an interval that is not a constant of days or less. Write one.")
            if inner:
                raise ImportRefusedError(
                    "the join adds two intervals to a time, and Spark drops one if they are equal. Add them up."
                )
            return time, span
        case Call(name=name) if name.startswith(DAYS_IN_ZONE):
            raise ImportRefusedError(
                f"the join adds {name}, some of which have 23 or 25 hours. A pipeline adds 24 hours per day. Run the "
                f"query with {TIME_ZONE}=UTC."
            )
    return expression, 0


def _are_times(first: Expression, second: Expression, condition: Condition) -> bool:
    """Return True if both expressions are event times: one of a watermark, or both of a type of time without any."""
    times = condition.times.values()
    are_times = all(time in times or _get_dtype(time) in _TIMES for time in (first, second))
    return are_times and (not times or any(time in times for time in (first, second)))


def _get_dtype(expression: Expression) -> str:
    return "timestamp" if _get_epoch_unit(expression) else get_dtype(expression)


def _get_epoch_unit(expression: Expression) -> str | None:
    """Return the unit of a number that is converted to a time; None for another expression."""
    match expression:
        case Call(name=name) if name in _EPOCH_UNITS:
            return _EPOCH_UNITS[name]
        case Call(name="Cast", operands=(operand,), dtype="timestamp") if get_dtype(operand) in WHOLE_NUMBERS:
            return "s"
    return None


def _read_key(part: Expression, condition: Condition) -> bool:
    match part:
        case Call(name="EqualNullSafe", operands=(first, second)) if find_sides(first) != find_sides(second):
            raise ImportRefusedError(
                "a key of the join is compared by <=>, and a pipeline compares keys by =. Replace null keys by a value."
            )
        case Call(name="EqualTo", operands=(first, second)):
            by_side = {tuple(find_sides(operand)): operand for operand in (first, second)}
            if set(by_side) == {("left",), ("right",)}:
                if any(operand in condition.times.values() for operand in (first, second)):
                    raise ImportRefusedError(
                        "the join compares the event time of one input with another column of the other by =, and "
                        "Spark evicts by that key. Compare the event times of both."
                    )
                names = {side: write_key(by_side[(side,)], side, _to_input_sql) for side in SIDES}
                condition.keys.append(names["left"] if names["left"] == names["right"] else names)
                return True
    return False


def _write_condition(condition: Condition) -> Section:
    settings: Section = {"keys": Setting(condition.keys, "equalities of columns of both sides")}
    if condition.bounds:
        settings["interval"] = _write_interval(condition)
    if condition.has_equal_times:
        settings["event_time_equality"] = Setting(value=True, origin="equality of the event times")
    if condition.windows and condition.comparison == "=":
        left, right = condition.windows
        if (left.size, left.slide, left.offset) != (right.size, right.slide, right.offset):
            raise ImportRefusedError("the join compares windows of different sizes by =. Use equal windows.")
        settings["window"] = _write_window(left)
    elif condition.windows:
        comparison = Setting(f"left {condition.comparison} right", "comparison of the windows")
        sides: Section = {side: _write_window(window) for side, window in zip(SIDES, condition.windows, strict=True)}
        settings["window_inequality"] = {**sides, "comparison": comparison}
    if condition.others:
        settings["condition"] = Setting(join_conjuncts(condition.others), "other conditions of the join")
    return settings


def _write_interval(condition: Condition) -> Section:
    settings: Section = {}
    for name in ("lower", "upper"):
        if name in condition.bounds:
            micros, is_inclusive = condition.bounds[name]
            settings[name] = Setting(_format_micros(micros), f"{name} bound of right time - left time")
            if not is_inclusive:
                settings[f"{name}_inclusive"] = Setting(value=False, origin=f"the {name} bound is exclusive")
    return settings


def _write_window(window: TimeWindow) -> Section:
    settings: Section
    if window.slide == window.size:
        settings = {"tumbling": Setting(_format_micros(window.size), "size of window()")}
    else:
        size, slide = _format_micros(window.size), _format_micros(window.slide)
        sliding: Section = {"size": Setting(size, "size of window()"), "slide": Setting(slide, "slide of window()")}
        settings = {"sliding": sliding}
    if window.offset:
        settings["offset"] = Setting(_format_micros(window.offset), "start of window()")
    return settings


def _format_micros(micros: int) -> str:
    return format_duration(timedelta(microseconds=micros))


def _read_input(rows: SparkInput, time: Expression | None, condition: Condition) -> StreamInput:
    windows = {next(iter(find_sides(window))): window for window in condition.windows or ()}
    side = next(iter(find_sides(time))) if time is not None else ""
    window = windows.get(side)
    if window is not None and window.operands[0] != time:
        raise ImportRefusedError(f"the windows of the {side} input are not of its watermark's time. Use one time.")
    settings: Section = {"event_time": _read_event_time(time)}
    if rows.time is not None:
        delay = format_duration(timedelta(milliseconds=rows.delay_ms))
        settings["watermark_delay"] = Setting(delay, "withWatermark")
    if rows.filters:
        where = write_conjunction(rows.filters, _to_input_sql, "a filter of an input")
        settings["where"] = Setting(where, "where")
    path = rows.options.get("path", "") if rows.source == "delta" else ""
    starting = _read_start(rows) if rows.source == "delta" else {}
    return StreamInput(rows.description, settings, rows.source, path, starting)


def _read_start(rows: SparkInput) -> Section:
    """Read the first version of a Delta table that a query reads; open if it depends on the time of the query."""
    version = rows.options.get("startingversion", "")
    if version.isdigit():
        return {"starting_version": Setting(int(version), "startingVersion of the reader")}
    for name in ("startingVersion", "startingTimestamp"):
        if value := rows.options.get(name.lower()):
            return {"starting_version": Setting(PLACEHOLDER, f"the reader has {name} {value}: the first version read")}
    return {}


def _check_reader(side: SideName, rows: SparkInput) -> None:
    """Refuse a reader whose rows are not those of the table.

    Raises:
        ImportRefusedError: The reader reads the change data feed.
    """
    for name in _CHANGE_FEED:
        if rows.options.get(name.lower(), "false").lower() == "true":
            raise ImportRefusedError(
                f"the {side} input reads the changes of a table ({name}), and a pipeline reads its rows. Read the "
                "table without this option, or write the changes to a table of their own."
            )


def _list_reader_omissions(side: SideName, rows: SparkInput) -> Iterator[Omission]:
    """Yield the options of a reader that change which rows it reads."""
    # --set replaces an imported filter.
    remedy = (
        f"add a condition to {side}.where in the file that leaves out earlier rows"
        if rows.filters
        else f"leave out earlier rows by --set {side}.where=CONDITION"
    )
    for name in _STARTS:
        value = rows.options.get(name.lower())
        if value and value != "earliest" and (name, value) != ("startingVersion", "0"):
            yield Omission(
                f"{side}.arrival.starting_version",
                f"The reader has {name} {value}, and the pipeline reads the table from its beginning. Pass --arrival "
                f"checkpoint:PATH for a Delta table, or {remedy}.",
            )
    for name in _ROW_OPTIONS:
        if (value := rows.options.get(name.lower(), "false")).lower() != "false":
            yield Omission(f"option {name} of the {side} reader", f"The pipeline reads the table without it ({value}).")


def _to_input_sql(expression: Expression) -> str:
    """Write an expression over the columns of one input."""
    return to_sql(expression, has_sides=False)


def _read_event_time(time: Expression | None) -> Setting:
    match time:
        case Column(path=(name,)):
            return Setting(name, "event time of the watermark or of the condition")
        case Call(name=name, operands=(Column(path=(column,)),)) if unit := _get_epoch_unit(time):
            return Setting({"column": column, "unit": unit}, f"event time {name}({column})")
        case None:
            return Setting(PLACEHOLDER, "the query uses no time of this input: name a column with its event time")
    return Setting(PLACEHOLDER, "the query computes it: name a column that has the result")


def _write_select(columns: Sequence[NamedExpression]) -> tuple[Section, list[Omission]]:
    """Write the output columns except windows."""
    omissions, others = [], []
    for name, expression in columns:
        if isinstance(expression, TimeWindow):
            omissions.append(Omission(f"output column {name}", "The emissions have it as _window_start, _window_end."))
        elif any(isinstance(part, TimeWindow) for part in walk(expression)):
            omissions.append(omit_window_expression(name))
        else:
            others.append(OutputColumn(name, expression, f"output column {name}"))
    return write_select(others, to_sql), omissions


def _read_settings(settings: Mapping[str, str]) -> Section:
    spark: Section = {}
    if (policy := settings.get(POLICY, "min").lower()) != "min":
        spark["multiple_watermark_policy"] = Setting(policy, POLICY)
    if settings.get(ALLOW_MULTIPLE, "true").lower() == "false":
        spark["late_watermark"] = Setting("current_batch", f"{ALLOW_MULTIPLE}: false")
    return {"spark": spark} if spark else {}


def _list_omissions(settings: Mapping[str, str]) -> Iterator[Omission]:
    """Yield what neither the plan nor a checkpoint has."""
    yield Omission(
        "slices",
        "A slice is one micro-batch, whose times no plan has. Pass --arrival checkpoint:PATH to replay them.",
    )
    if TIME_ZONE not in settings:
        yield Omission(TIME_ZONE, f"The query is analysed in UTC. Pass --conf {TIME_ZONE}=ZONE if the job has another.")
    if POLICY not in settings:
        yield Omission("spark.multiple_watermark_policy", f"A plan does not have it. Pass --conf {POLICY}=max if so.")
    if settings.get(NO_DATA_BATCHES, "true").lower() == "false":
        yield Omission(NO_DATA_BATCHES, "It is off, and a pipeline runs batches without data. Replay the checkpoint.")
    if settings.get(ANSI, "true").lower() == "false":
        yield Omission(ANSI, "It is off in the session, and a pipeline's expressions follow ANSI rules.")
