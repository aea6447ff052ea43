"""Find out, without Spark, whether rows that slices have read were deleted from the inputs."""

from __future__ import annotations

from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.errors import InputError, UserError
from tidemark.ledger.ledger import Ledger
from tidemark.planning.context import PlanningContext
from tidemark.planning.preconditions import require_unchanged_inputs
from tidemark.planning.request import Request
from tidemark.sources.resolution import open_inputs
from tidemark.spark.lazy_session import SparkNeededError, create_refusing_session


def describe_deleted_inputs(pipeline: Pipeline, lake: str) -> str | None:
    """Describe why the next run refuses deleted input rows, with `on_input_delete: refuse`.

    Returns:
        None if no row is gone, or if the inputs cannot be read without Spark.
    """
    ledger = Ledger.from_pipeline(pipeline, lake)
    if pipeline.on_input_delete != "refuse" or ledger.last is None:
        return None
    try:
        inputs = open_inputs(create_refusing_session(), pipeline, lake)
    except (UserError, SparkNeededError):
        return None
    context = PlanningContext(pipeline, Request(), ledger, inputs, frozenset(), lake)
    try:
        require_unchanged_inputs(context, ledger.last.number + 1)
    except InputError as error:
        return f"the next run stops: {error}"
    except SparkNeededError:
        command = f"tidemark plan {format_cli_arguments(pipeline)}"
        return f"input rows were deleted or changed since they were read. {command} shows if slices have read them"
    return None
