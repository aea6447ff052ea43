"""Create DataFrames from small tables on the driver."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame, SparkSession


def from_pandas(spark: SparkSession, table: pd.DataFrame, schema: str) -> DataFrame:
    """Create a DataFrame from a pandas table, whose columns have the order of the schema, a DDL string.

    Strings become objects first, because Spark converts chunked Arrow strings, as of concatenated tables, row by row.
    """
    strings = [name for name, dtype in table.dtypes.items() if isinstance(dtype, pd.StringDtype)]
    return spark.createDataFrame(table.astype(dict.fromkeys(strings, object)), schema)
