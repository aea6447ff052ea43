"""Compare two schemas of a table by its columns' physical names, which Delta's column mapping gives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import types as T

_PHYSICAL_NAME = "delta.columnMapping.physicalName"


@dataclass(frozen=True)
class ColumnChange:
    """A column or field of an earlier schema that is not the same one now."""

    kind: Literal["replaced", "taken over", "renamed", "dropped"]
    """`replaced`: another column has its name, without its values. `taken over`: another column of the earlier schema
    has its name now. `renamed`: it has another name. `dropped`: it is gone, and so is its name."""
    path: tuple[str, ...]
    """Names of the column and its nested fields, in the earlier schema. The elements of a list are `element`, those of
    a map `key` and `value`."""
    earlier_type: T.DataType
    current_type: T.DataType | None = None
    """Type of the column that has its name now; None if none has."""
    other_name: str | None = None
    """Current name of a renamed column, or earlier name of the column that took over its name."""
    physical_path: tuple[str, ...] = ()
    """Physical names of the column that has its name now."""

    @property
    def name(self) -> str:
        """Path of the column as text."""
        return ".".join(self.path)

    def is_same_change(self, other: ColumnChange) -> bool:
        """Return True if two changes differ at most in types."""
        return (self.kind, self.path, self.other_name, self.physical_path) == (
            other.kind,
            other.path,
            other.other_name,
            other.physical_path,
        )

    def affects(self, path: tuple[str, ...]) -> bool:
        """Return True if a column or field at a path contains the changed one, or is contained in it."""
        length = min(len(path), len(self.path))
        return path[:length] == self.path[:length]


def find_column_changes(earlier: T.DataType, current: T.DataType) -> tuple[ColumnChange, ...]:
    """Find the columns and nested fields of an earlier schema that are not the same ones in the current schema.

    A column is the same if its physical name is. Without column mapping that is its name.

    >>> earlier, current = (
    ...     T.StructType([T.StructField("w", T.LongType(), True, {"delta.columnMapping.physicalName": name})])
    ...     for name in ("col-1", "col-2")
    ... )
    >>> [(change.kind, change.name) for change in find_column_changes(earlier, current)]
    [('replaced', 'w')]
    """
    return tuple(_find_changes(earlier, current, (), ()))


def has_column_mapping(schema: T.StructType) -> bool:
    """Return True if the columns have physical names, so that they can be dropped and renamed."""
    return any(_PHYSICAL_NAME in field.metadata for field in schema)


def _find_changes(
    earlier: T.DataType, current: T.DataType, path: tuple[str, ...], physical_path: tuple[str, ...]
) -> Iterator[ColumnChange]:
    match earlier, current:
        case T.StructType(), T.StructType():
            yield from _find_changed_fields(earlier, current, path, physical_path)
        case T.ArrayType(), T.ArrayType():
            name = "element"
            yield from _find_changes(earlier.elementType, current.elementType, (*path, name), (*physical_path, name))
        case T.MapType(), T.MapType():
            for name, dtype, current_type in (
                ("key", earlier.keyType, current.keyType),
                ("value", earlier.valueType, current.valueType),
            ):
                yield from _find_changes(dtype, current_type, (*path, name), (*physical_path, name))


def _find_changed_fields(
    earlier: T.StructType, current: T.StructType, path: tuple[str, ...], physical_path: tuple[str, ...]
) -> Iterator[ColumnChange]:
    by_name = {field.name: field for field in current}
    by_physical_name = {get_physical_name(field): field for field in current}
    earlier_names = {get_physical_name(field): field.name for field in earlier}
    for field in earlier:
        physical_name, field_path = get_physical_name(field), (*path, field.name)
        namesake = by_name.get(field.name)
        if namesake is None:
            renamed = by_physical_name.get(physical_name)
            kind: Literal["renamed", "dropped"] = "renamed" if renamed else "dropped"
            yield ColumnChange(kind, field_path, field.dataType, other_name=renamed.name if renamed else None)
            continue
        current_name = get_physical_name(namesake)
        current_path = (*physical_path, current_name)
        if current_name == physical_name:
            yield from _find_changes(field.dataType, namesake.dataType, field_path, current_path)
            continue
        former_name = earlier_names.get(current_name)
        yield ColumnChange(
            "taken over" if former_name else "replaced",
            field_path,
            field.dataType,
            namesake.dataType,
            former_name,
            current_path,
        )


def get_physical_name(field: T.StructField) -> str:
    """Return the name of a field in data files and statistics."""
    return str(field.metadata.get(_PHYSICAL_NAME, field.name))
