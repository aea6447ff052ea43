"""Find and remove VOID, the type of a NULL without a type, in schemas."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import types as T


def list_void_paths(dtype: T.DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of a type's parts that have no type (VOID), in Delta's notation.

    >>> void = T.NullType()
    >>> struct = T.StructType([T.StructField("a", T.ArrayType(void)), T.StructField("b", T.StringType())])
    >>> list(list_void_paths(T.StructType([T.StructField("note", void), T.StructField("s", struct)])))
    ['note', 's.a.element']
    """
    match dtype:
        case T.NullType():
            yield path
        case T.StructType():
            for field in dtype:
                yield from list_void_paths(field.dataType, f"{path}.{field.name}" if path else field.name)
        case T.ArrayType():
            yield from list_void_paths(dtype.elementType, f"{path}.element")
        case T.MapType():
            yield from list_void_paths(dtype.keyType, f"{path}.key")
            yield from list_void_paths(dtype.valueType, f"{path}.value")


def drop_void_fields(schema: T.StructType) -> T.StructType:
    """Remove columns and struct fields without a type (VOID), of which a table's files have no values.

    Arrays and maps of VOID, and structs of nothing else, have no values either.

    >>> field = T.StructField("note", T.NullType())
    >>> drop_void_fields(T.StructType([T.StructField("s", T.StructType([field])), T.StructField("k", T.StringType())]))
    StructType([StructField('k', StringType(), True)])
    """
    return T.StructType(list(_iterate_typed_fields(schema)))


def _iterate_typed_fields(schema: T.StructType) -> Iterator[T.StructField]:
    for field in schema:
        if (dtype := _drop_void(field.dataType)) is not None:
            yield T.StructField(field.name, dtype, field.nullable, field.metadata)


def _drop_void(dtype: T.DataType) -> T.DataType | None:
    """Remove the parts of a type that are VOID. None if nothing is left."""
    match dtype:
        case T.NullType():
            return None
        case T.StructType():
            fields = list(_iterate_typed_fields(dtype))
            return None if dtype.names and not fields else T.StructType(fields)
        case T.ArrayType():
            element = _drop_void(dtype.elementType)
            return None if element is None else T.ArrayType(element, dtype.containsNull)
        case T.MapType():
            key, value = _drop_void(dtype.keyType), _drop_void(dtype.valueType)
            return None if key is None or value is None else T.MapType(key, value, dtype.valueContainsNull)
    return dtype
