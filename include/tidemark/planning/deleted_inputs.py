"""Find out, without Spark, whether inputs changed so that the next run stops."""

from __future__ import annotations

from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.errors import InputError, UserError
from tidemark.ledger.ledger import Ledger
from tidemark.planning.context import PlanningContext
from tidemark.planning.preconditions import require_same_tables, require_unchanged_inputs
from tidemark.planning.request import Request
from tidemark.sources.resolution import open_inputs
from tidemark.spark.lazy_session import SparkNeededError, create_refusing_session


@dataclass(frozen=True)
class DeletedInputs:
    """Input rows that were deleted or changed after slices read them, or may have been."""

    description: str
    stops_next_run: bool
    """True if the next run refuses the inputs. False if only Spark can find out."""


def find_deleted_inputs(pipeline: Pipeline, lake: str) -> DeletedInputs | None:
    """Find inputs that were deleted and created again, and with `on_input_delete: refuse` deleted rows.

    Returns:
        None if no row is gone, or if the inputs cannot be read, or not without Spark.
    """
    ledger = Ledger.from_pipeline(pipeline, lake)
    if ledger.last is None:
        return None
    first_new = ledger.last.number + 1
    try:
        inputs = open_inputs(create_refusing_session(), pipeline, lake)
    except (UserError, SparkNeededError, DeltaError, OSError):
        return None
    context = PlanningContext(pipeline, Request(), ledger, inputs, frozenset(), lake)
    try:
        require_same_tables(context, first_new)
        # With `reprocess`, a run recomputes the slices that have read these rows.
        if pipeline.on_input_delete == "refuse":
            require_unchanged_inputs(context, first_new)
    except InputError as error:
        return DeletedInputs(f"the next run stops: {error}", stops_next_run=True)
    except SparkNeededError:
        command = f"tidemark plan {format_cli_arguments(pipeline)}"
        return DeletedInputs(
            f"files of an input were rewritten since slices read it. {command} shows whether rows that slices have "
            "read were deleted or changed",
            stops_next_run=False,
        )
    except (DeltaError, OSError):
        return None
    return None
