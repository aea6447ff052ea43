"""The bounds of a file's clocks hold what Spark makes of its rows, or the file would be passed over."""

from decimal import Decimal
from math import ulp
from types import SimpleNamespace

import pandas as pd
import pytest
from pyspark.sql import types as T

from tidemark.sources.file_time_ranges import file_clocks
from tidemark.timegrid.time_columns import Clock

SECONDS = [0.3, 0.7, 1704067200.3, 1704070799.9999999, 1704067200.123457, -0.1, -1704067200.7, 2.0**40 / 3]
KINDS = {
    "double": (T.DoubleType(), SECONDS),
    "decimal": (T.DecimalType(38, 18), [Decimal(repr(one)) for one in SECONDS] + [Decimal("0.9999999999999")]),
}


def log_of(value):
    """One file with one row."""
    files = pd.DataFrame({"path": ["a"], "size": [1], "rows": [1.0]})
    return SimpleNamespace(files=files, nulls=lambda _: [0], least=lambda _: [value], greatest=lambda _: [value])


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_not_whole(spark, kind):
    column, values = KINDS[kind]
    clock = Clock("t", 1)
    rows = spark.createDataFrame([(value,) for value in values], T.StructType([T.StructField("t", column)]))
    told = [row["micros"] for row in rows.select(clock.micros.alias("micros")).collect()]
    assert any(clock.of_value(value) != found for value, found in zip(values, told, strict=True)), "Spark rounds"
    for value, found in zip(values, told, strict=True):
        [file] = file_clocks(log_of(value), clock)
        assert file.low <= found <= file.high
        assert file.high - file.low <= 3 + 3e6 * ulp(value)
        assert file.is_known == (kind == "decimal"), "a NaN is in no statistics"


def test_whole_numbers_are_exact():
    [file] = file_clocks(log_of(1999), Clock("t", 10**9))
    assert (file.low, file.high, file.is_known) == (1, 1, True)
