"""Small tables of the driver, as Spark's."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame, SparkSession


def from_pandas(spark: SparkSession, table: pd.DataFrame, schema: str) -> DataFrame:
    """A pandas table with the columns of this schema, in its order.

    Strings go as objects: those of more than one frame, or batch, are chunks of Arrow, which Spark takes row by row.
    """
    strings = [name for name, kind in table.dtypes.items() if isinstance(kind, pd.StringDtype)]
    return spark.createDataFrame(table.astype(dict.fromkeys(strings, object)), schema)
