"""Note columns of the inputs that changed since committed slices read them, and refuse to lose keys or times."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.config import Input, TimeColumn
from tidemark.config.expressions import list_columns, use_spelling
from tidemark.config.sides import SIDES, SideName
from tidemark.delta.column_changes import has_column_mapping
from tidemark.errors import InputError
from tidemark.joins.join_type import SEMI_ANTI_TYPES
from tidemark.joins.keys import find_type, key_path
from tidemark.ledger.entry import Entry
from tidemark.planning.context import PlanningContext
from tidemark.planning.plan import SliceRange
from tidemark.sources.column_history import InputColumnChange, find_input_column_changes, has_lost_values_from
from tidemark.sources.stored_input import StoredInput
from tidemark.tables.schema_evolution import can_widen

MAX_COMPARED_VERSIONS = 4
"""Maximum number of earlier versions of an input whose columns are compared with the current ones."""


def check_column_changes(context: PlanningContext, slice_ranges: Sequence[SliceRange]) -> tuple[str, ...]:
    """Return a note for each column of an input that is not the same one that committed slices have read.

    Raises:
        InputError: Slices would run without keys or times of their rows, or a column has a type that the pipeline's
            tables cannot hold.
    """
    first = min((slice_range.slices[0] for slice_range in slice_ranges), default=None)
    new = next((slice_range.slices[0] for slice_range in slice_ranges if slice_range.reason == "new"), None)
    notes = []
    for side, source in zip(SIDES, context.inputs, strict=True):
        index = SIDES.index(side)
        readers = [entry for entry in context.ledger.entries.values() if entry.read[index]]
        for change, last_reader in _find_changes(source, readers, index).items():
            roles = _list_roles(context, side, source)
            role = next((role for role, path in roles if change.column.affects(path)), None)
            if role and change.files_without_values:
                lost = [entry for entry in readers if first is not None and first <= entry.number <= last_reader.number]
                start = lost[0].number if lost else new
                if start is not None and (
                    lost or has_lost_values_from(source.table, change, source.side.clock, context.grid.start_of(start))
                ):
                    raise InputError(_format_refusal(context, source, change, role, start))
            if first is not None and _has_incompatible_type(change):
                raise InputError(_format_type_refusal(source, change))
            if role or _is_output(context, side, change):
                notes.append(_format_note(context, source, change, last_reader))
    return tuple(notes)


def _find_changes(source: StoredInput, readers: Sequence[Entry], index: int) -> dict[InputColumnChange, Entry]:
    """Find the changes since the versions that slices have read, each with the last slice that read one before it."""
    if not has_column_mapping(source.side.schema):
        return {}
    versions = sorted({entry.versions[index] for entry in readers} - {source.table.version})
    step = max(1, -(-len(versions) // (MAX_COMPARED_VERSIONS - 1)))
    last_readers = {}
    for change in find_input_column_changes(source.table, {*versions[::step], *versions[-1:]}):
        bound = change.after_version if change.since is None else change.since - 1
        earlier = [entry for entry in readers if entry.versions[index] <= bound]
        last_readers[change] = max(earlier, key=lambda entry: entry.number)
    return last_readers


def _list_roles(context: PlanningContext, side: SideName, source: StoredInput) -> list[tuple[str, tuple[str, ...]]]:
    """List the columns that decide which rows take part and when, with the setting that names each."""
    settings: Input = getattr(context.pipeline, side)
    columns = {
        "event_time": settings.event_time,
        "arrival": settings.arrival,
        "recorded_watermark": settings.recorded_watermark,
    }
    roles: list[tuple[str, tuple[str, ...]]]
    roles = [(role, (time.column,)) for role, time in columns.items() if isinstance(time, TimeColumn)]
    names = {"tiebreak": settings.tiebreak, "partition": settings.partition}
    roles += [(role, (name,)) for role, name in names.items() if name is not None]
    roles += [("where", (name,)) for name in _list_columns(settings.where or "true", source.side.schema.names)]
    for pair in context.pipeline.join.keys:
        expression: str = getattr(pair, side)
        path = key_path(source.side.schema, expression)
        is_column = find_type(source.side.schema, path) is not None
        columns_read = _list_columns(expression, source.side.schema.names)
        paths = [tuple(path)] if is_column else [(name,) for name in columns_read]
        roles += [("key", column) for column in paths]
    return roles


def _is_output(context: PlanningContext, side: SideName, change: InputColumnChange) -> bool:
    """Return True if emissions may have values of a column."""
    pipeline, name = context.pipeline, f"{side}_{change.column.path[0]}"
    if name in _list_columns(pipeline.join.condition or "true", (name,)):
        return True
    if side != "left" and pipeline.join.type in SEMI_ANTI_TYPES:
        return False
    if pipeline.explode is not None:
        return not {name, side}.isdisjoint(_list_columns(pipeline.explode, (name, side)))
    match pipeline.select:
        case None:
            return True
        case list(names):
            return not {name, side}.isdisjoint(names)
        case expressions:
            used = (column for sql in expressions.values() for column in _list_columns(sql, (name, side)))
            return not {name, side}.isdisjoint(used)


def _list_columns(expression: str, names: Sequence[str]) -> list[str]:
    """List the columns that an expression reads, spelled as in `names`."""
    return use_spelling(list_columns(expression), names)


def _format_refusal(
    context: PlanningContext, source: StoredInput, change: InputColumnChange, role: str, start: int
) -> str:
    return (
        f"input {source.table.name}: {role} {change.column.name} is another column of this name since "
        f"{change.since_label}. Rows that were written earlier have no value in it, so slices from "
        f"{context.grid.label(start)} on would lose them. Set the values of these rows, or give the pipeline a new "
        "`output`."
    )


def _has_incompatible_type(change: InputColumnChange) -> bool:
    earlier, current = change.column.earlier_type, change.column.current_type
    return current is not None and not can_widen(earlier, current)


def _format_type_refusal(source: StoredInput, change: InputColumnChange) -> str:
    column = change.column
    types = (dtype.simpleString() for dtype in (column.current_type, column.earlier_type) if dtype)
    return (
        f"input {source.table.name}: {column.name} is another column of this name since {change.since_label}, with "
        f"type {' instead of '.join(types)}, and the pipeline's tables cannot hold both. Add it again with its earlier "
        "type or another name, or give the pipeline a new `output`."
    )


def _format_note(context: PlanningContext, source: StoredInput, change: InputColumnChange, last_reader: Entry) -> str:
    column = change.column
    prefix = f"input {source.table.name}"
    slices = f"slices up to {context.grid.label(last_reader.number + 1)}"
    match column.kind:
        case "replaced":
            earlier, current = (dtype and dtype.simpleString() for dtype in (column.earlier_type, column.current_type))
            types = "" if earlier == current else f" ({earlier} before)"
            return (
                f"{prefix}: {column.name} is another column of this name since {change.since_label}{types}: where "
                f"{slices} run again, it is null in rows that were written earlier"
            )
        case "taken over":
            return (
                f"{prefix}: {column.name} is the former column {column.other_name} since {change.since_label}: where "
                f"{slices} run again, it has the values of that column"
            )
        case "renamed":
            return (
                f"{prefix}: {column.name} is named {column.other_name} since {change.since_label}: where {slices} run "
                f"again, {column.name} is null and {column.other_name} has its values"
            )
        case "dropped":
            return f"{prefix}: {column.name} was dropped in {change.since_label}: where {slices} run again, it is null"
