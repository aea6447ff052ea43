"""Compare keys of type CHAR as Spark does: it pads both columns with blanks to the longer of their lengths.

Delta and Spark handle CHAR(n) as a string whose column metadata has the declared type. Spark pads where two whole
columns are compared, also inside structs and arrays, but no fields of structs, elements of arrays, or expressions.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.spark.lazy_session import resolve_session

_DECLARED_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_CHAR = re.compile(r"\bchar\(")


def find_common_char_type(spark: SparkSession, left: T.StructField, right: T.StructField) -> T.DataType | None:
    """Return the common type of two columns, with the lengths of padded CHAR values; None if nothing is padded."""
    declared_types = [field.metadata.get(_DECLARED_TYPE, "") for field in (left, right)]
    if not all(map(_CHAR.search, declared_types)):
        return None
    resolve_session(spark)
    left_type, right_type = map(T.DataType.fromDDL, declared_types)
    return _widen(left_type, right_type)


def pad_chars(column: Column, dtype: T.DataType) -> Column:
    """Pad the strings in a column to the lengths of the CHAR types at their place."""
    match dtype:
        case T.CharType(length=length):
            return F.rpad(column, length, " ")
        case T.ArrayType(elementType=element_type):
            return F.transform(column, lambda element: pad_chars(element, element_type))
        case T.StructType(fields=fields):
            padded = (pad_chars(column.getField(field.name), field.dataType).alias(field.name) for field in fields)
            return F.when(column.isNotNull(), F.struct(*padded))
        case _:
            return column


def _widen(left: T.DataType, right: T.DataType) -> T.DataType:
    match left, right:
        case T.CharType(), T.CharType():
            return T.CharType(max(left.length, right.length))
        case T.ArrayType(), T.ArrayType():
            return T.ArrayType(_widen(left.elementType, right.elementType))
        case T.StructType(), T.StructType():
            pairs = zip(left.fields, right.fields, strict=True)
            return T.StructType([T.StructField(a.name, _widen(a.dataType, b.dataType)) for a, b in pairs])
        case _:
            # A CHAR is padded only if the other side is one, too. `pad_chars` leaves other types unchanged.
            return T.StringType() if isinstance(left, T.CharType) else left
