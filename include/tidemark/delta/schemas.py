"""Convert schemas between Spark, Arrow and delta-rs, and compare them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from deltalake import Schema
from pyspark.sql import types as T


def to_spark_schema(schema: pa.Schema) -> T.StructType:
    """Convert an Arrow schema to Spark's types."""
    return parse_spark_schema(Schema.from_arrow(schema))


def parse_spark_schema(schema: Schema) -> T.StructType:
    """Convert a schema of delta-rs to Spark's types."""
    return T.StructType.fromJson(json.loads(schema.to_json()))


def to_delta_schema(schema: T.StructType) -> Schema:
    """Convert Spark's types to a schema of delta-rs that allows nulls everywhere."""
    return Schema.from_json(json.dumps(_make_nullable(schema.jsonValue())))


def _make_nullable(dtype: Any) -> Any:
    """Allow nulls everywhere in a type of Delta's JSON schema."""
    if not isinstance(dtype, dict):
        return dtype
    nullability = {"nullable": True, "containsNull": True, "valueContainsNull": True}
    nullable = {key: nullability.get(key, _make_nullable(value)) for key, value in dtype.items()}
    if "fields" in dtype:
        nullable["fields"] = [_make_nullable(field) for field in dtype["fields"]]
    return nullable


def lacks_fields(present: T.DataType, required: T.DataType) -> bool:
    """Return True if a type lacks a struct field of the required type, at any depth."""
    match present, required:
        case T.StructType(), T.StructType():
            fields = {field.name: field.dataType for field in present}
            return any(
                field.name not in fields or lacks_fields(fields[field.name], field.dataType) for field in required
            )
        case T.ArrayType(), T.ArrayType():
            return lacks_fields(present.elementType, required.elementType)
        case T.MapType(), T.MapType():
            keys, values = (present.keyType, required.keyType), (present.valueType, required.valueType)
            return lacks_fields(*keys) or lacks_fields(*values)
    return False
