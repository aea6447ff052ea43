"""Check that a file's time range contains Spark's conversion of its values, or pruning would lose rows."""

from decimal import Decimal
from math import ulp
from types import SimpleNamespace

import pandas as pd
import pytest
from pyspark.sql import types as T

from tidemark.sources.file_time_ranges import read_time_ranges
from tidemark.timegrid.time_columns import ResolvedTimeColumn

SECONDS = [0.3, 0.7, 1704067200.3, 1704070799.9999999, 1704067200.123457, -0.1, -1704067200.7, 2.0**40 / 3]
TYPES = {
    "double": (T.DoubleType(), SECONDS),
    "decimal": (T.DecimalType(38, 18), [Decimal(repr(seconds)) for seconds in SECONDS] + [Decimal("0.9999999999999")]),
}


def create_log(value):
    """Create the log of a table with one row."""
    files = pd.DataFrame({"path": ["a"], "size": [1], "rows": [1.0]})
    return SimpleNamespace(
        files=files, get_null_counts=lambda _: [0], get_min_values=lambda _: [value], get_max_values=lambda _: [value]
    )


@pytest.mark.parametrize("dtype_name", TYPES)
def test_time_range_of_fractional_number_contains_sparks_conversion(spark, dtype_name):
    column, values = TYPES[dtype_name]
    clock = ResolvedTimeColumn("t", 1)
    rows = spark.createDataFrame([(value,) for value in values], T.StructType([T.StructField("t", column)]))
    spark_micros = [row["micros"] for row in rows.select(clock.micros.alias("micros")).collect()]

    is_exact = all(clock.convert_value(value) == micros for value, micros in zip(values, spark_micros, strict=True))
    assert is_exact == (dtype_name == "double"), "Spark rounds decimals"

    for value, micros in zip(values, spark_micros, strict=True):
        [file] = read_time_ranges(create_log(value), clock)
        assert file.earliest <= micros <= file.latest
        assert file.latest - file.earliest <= 3 + 3e6 * ulp(value)
        assert file.is_complete == (dtype_name == "decimal"), "a NaN is in no statistics"


def test_time_range_of_integer_is_exact():
    [file] = read_time_ranges(create_log(1999), ResolvedTimeColumn("t", 10**9))
    assert (file.earliest, file.latest, file.is_complete) == (1, 1, True)
