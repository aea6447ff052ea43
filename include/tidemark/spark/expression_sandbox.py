"""Check users' SQL expressions twice: in `config.expressions`, and in the form that Spark's parser gives.

The two parsers can read the same SQL differently, and Spark runs its own reading. Only the first check sees what
Spark's parser discards, such as comments.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidemark.config.allowed_functions import ColumnCheck, check_column
from tidemark.config.expressions import check_expression
from tidemark.errors import PipelineFileError
from tidemark.spark.engine import get_engine
from tidemark.spark.engine_protocol import Expression


def parse_user_expression(spark: SparkSession, expression: str, column_check: ColumnCheck = check_column) -> Expression:
    """Parse a user's expression as Spark will run it, after both checks. By default its columns are those of a pair.

    Raises:
        ParseException: The SQL is invalid for Spark.
        PipelineFileError: The expression contains something that is not allowed.
    """
    try:
        check_expression(expression, column_check)
        return get_engine(spark).parse_expression(expression, column_check)
    except ValueError as error:
        raise PipelineFileError(f"expression {expression!r}: {error}") from None
