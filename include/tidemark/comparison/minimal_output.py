"""Write a minimal example of a difference as a vector or as a test case."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tidemark.comparison.chain_example import find_chain_example
from tidemark.comparison.chain_test_case import write_chain_test_case
from tidemark.comparison.minimal_example import find_minimal_example, write_vector
from tidemark.comparison.minimal_test_case import check_case_file, write_test_case
from tidemark.comparison.result import Comparison
from tidemark.config import Pipeline
from tidemark.errors import UserError
from tidemark.pipeline_tests.case_file import find_case_file


def check_output(pipeline: Pipeline, pipeline_file: Path, output: Path, number: int) -> None:
    """Check that a difference of a pipeline can be written to a file.

    Raises:
        UserError: It is another test file, or has a case of this difference, or a vector cannot have the joins.
    """
    if output.suffix == ".yaml":
        check_case_file(pipeline_file, output, number)
    elif pipeline.upstreams:
        raise UserError(
            f"--output {output}: a vector has one join, and {pipeline.name} reads the output of another one. Pass "
            f"--output {find_case_file(pipeline_file)}."
        )


def write_minimal_example(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str,
    comparison: Comparison,
    number: int,
    pipeline_file: Path,
    output: Path,
) -> int:
    """Find the fewest input rows that reproduce one difference of a comparison, and write them.

    Args:
        spark: A session.
        pipeline: The pipeline, perhaps the last one of a chain.
        lake: The lake root.
        comparison: The comparison.
        number: Number of the difference among its examples.
        pipeline_file: File of the pipeline.
        output: File to write: a vector, or the test file of the pipeline (.yaml).

    Returns:
        The number of input rows.

    Raises:
        UserError: The difference cannot be reproduced, or the file is invalid.
        InputError: An input is missing or unusable.
    """
    if pipeline.upstreams:
        chain_example = find_chain_example(spark, pipeline, lake, comparison, number)
        return write_chain_test_case(chain_example, comparison.table, pipeline_file)
    example = find_minimal_example(spark, pipeline, lake, comparison, number)
    if output.suffix == ".yaml":
        return write_test_case(example, comparison.table, pipeline_file)
    return len(write_vector(example, output)["events"])
