"""SQL that a pipeline file holds, confined a second time: by what Spark's own parser makes of it.

Where the parser of `config.expressions` reads a text in another way, this is what Spark would run. What leaves no
trace in Spark's reading, such as comments, is known to that one alone, so both are asked.
"""

from __future__ import annotations

import re

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.config.allowed_functions import ColumnCheck, check_column
from tidemark.config.expressions import check_expression
from tidemark.errors import PipelineFileError
from tidemark.spark.engine import get_engine
from tidemark.spark.engine_protocol import Expression


def parse_user_expression(spark: SparkSession, text: str, columns: ColumnCheck = check_column) -> Expression:
    """Parse a user's expression over columns, by default a pair's, as Spark will run it.

    Raises:
        ParseException: it is none to Spark.
        PipelineFileError: it has something that an expression may not have.
    """
    try:
        check_expression(text, columns)
        return get_engine(spark).parse_expression(text, columns)
    except ValueError as error:
        raise PipelineFileError(f"expression {text!r}: {error}") from None


def format_expression_error(error: PySparkException) -> str:
    """What Spark says of an expression that makes no sense to it."""
    message = re.sub(r"^\[[A-Z0-9_.]+\] *", "", str(error).split("SQLSTATE")[0].split("== SQL")[0])
    return " ".join(message.split())
