"""Create a plan: select slices, check their preconditions, and cut them into Spark jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import IncompleteInputError, InputError, prefix_errors
from tidemark.formatting import format_estimate
from tidemark.joins.output_schema import check_expressions, list_emission_columns
from tidemark.joins.rules.spark import list_unbounded_sides
from tidemark.ledger.adoption import find_adoption, list_adopted_slices, require_no_output_stream
from tidemark.ledger.checkpoint_files import list_available_checkpoints
from tidemark.ledger.ledger import Ledger
from tidemark.planning.column_changes import check_column_changes
from tidemark.planning.column_names import check_named_columns
from tidemark.planning.context import PlanningContext
from tidemark.planning.duration_estimate import estimate_duration, list_past_jobs
from tidemark.planning.job_sizing import JobCapacity, cut_into_jobs, list_slices_run_alone
from tidemark.planning.plan import Plan, SliceRange
from tidemark.planning.preconditions import require_same_local_days
from tidemark.planning.request import Request
from tidemark.planning.row_conditions import check_row_conditions, has_row_conditions
from tidemark.planning.scan_estimate import InputFiles, ScanEstimate
from tidemark.planning.slice_selection import select_slices
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import get_schemas
from tidemark.sources.upstream import UpstreamState, read_upstreams
from tidemark.spark.lazy_session import resolve_session
from tidemark.tables.schema_evolution import require_same_case


def create_plan(spark: SparkSession, pipeline: Pipeline, lake: str, request: Request) -> Plan:
    """Plan the slices of a request against the current ledger and inputs.

    Settings and Delta logs answer nearly everything. Spark queries answer the rest (`Plan.spark_queries`) and start the
    session if needed (`spark.lazy_session`).

    Raises:
        SliceOrderError: The range is off the grid or has a gap, a predecessor is missing, settings changed, or the
            input was drained.
        IncompleteInputError: Inputs are incomplete up to the requested end, by the rules of the pipeline file.
        InputError: An input is not valid, or rows that slices read were deleted.
        PipelineFileError: The condition or the output columns do not fit the inputs.
        UserError: The pipeline has adopted slices and writes an output stream, or columns of emissions differ from
            those of the table by case only.
    """
    PipelineTables.from_config(pipeline, lake).check_writable()
    upstreams = read_upstreams(pipeline, lake, applies_commits=True)
    # Before the inputs: its slices have then read no later version of them, also if another process commits meanwhile.
    ledger = Ledger.from_pipeline(pipeline, lake)
    if any(upstream.end is None for upstream in upstreams):
        return _create_waiting_plan(spark, pipeline, lake, request, ledger, upstreams)
    inputs = open_inputs(spark, pipeline, lake)
    schemas = get_schemas(inputs)
    with prefix_errors(pipeline.command_argument):
        check_named_columns(pipeline, list_emission_columns(pipeline, **schemas), schemas)
    if find_adoption(ledger.entries):
        require_no_output_stream(pipeline)
    entries = ledger.entries.values()
    available_checkpoints = list_available_checkpoints(ledger.tables, entries, ledger.grid) if entries else frozenset()
    context = PlanningContext(pipeline, request, ledger, inputs, available_checkpoints, lake, upstreams)
    require_same_local_days(context)
    selection = select_slices(context)
    last = context.last
    slice_ranges = selection.slice_ranges
    input_notes = (*check_column_changes(context, slice_ranges), *_note_unknown_arrivals(context, slice_ranges))
    files = [InputFiles.from_input(source, context.grid) for source in inputs] if slice_ranges else []
    rows_by_job, capacity = _create_jobs(context, slice_ranges, files)
    if rows_by_job:
        _require_same_case(ledger.tables, list_emission_columns(pipeline, **schemas))
    left_scan, right_scan = [
        input_files.estimate_scan(slice_range.slices for slice_range in slice_ranges) for input_files in files
    ] or [ScanEstimate(0, 0, 0)] * 2
    expression_queries = _list_expression_queries(pipeline) if rows_by_job else []
    plan = Plan(
        spark, pipeline, lake, context.grid, ledger.tables, inputs, ledger, slice_ranges, rows_by_job,
        scan_estimates=(left_scan, right_scan),
        capacity=capacity,
        estimate=estimate_duration(list_past_jobs(ledger.rows), sum(rows_by_job.values()), len(rows_by_job)),
        available_checkpoints=available_checkpoints,
        already_committed=selection.already_committed,
        notes=(*selection.notes, *input_notes, *_collect_notes(context, slice_ranges, files)),
        drain_after=last.number if last and last.is_end_of_input else selection.drain_after,
        slices_to_reprocess=_find_slices_to_reprocess(context, slice_ranges),
        atomic=request.atomic or selection.is_atomic,
        upstreams=tuple(upstreams),
        input_completeness=context.input_completeness,
        spark_queries=(*context.spark_queries, *expression_queries),
    )  # fmt: skip
    if expression_queries:
        _check_expressions(plan)
    return plan


def _create_waiting_plan(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str,
    request: Request,
    ledger: Ledger,
    upstreams: Sequence[UpstreamState],
) -> Plan:
    """Create an empty plan for a pipeline that reads another one without slices, whose output stream may not exist yet.

    Raises:
        IncompleteInputError: The request names slices or ends the inputs, or slices have read an output stream before.
    """
    missing = "; ".join(upstream.explain(ledger.grid) for upstream in upstreams if upstream.end is None)
    is_for_any_slice = request.outdated or not (request.reprocess or request.end or request.drain)
    if ledger.entries or not is_for_any_slice:
        raise IncompleteInputError(missing)
    return Plan(
        spark, pipeline, lake, ledger.grid, ledger.tables,
        inputs=(),
        ledger=ledger,
        slice_ranges=(),
        rows_by_job={},
        scan_estimates=(),
        capacity=None,
        estimate=None,
        available_checkpoints=frozenset(),
        already_committed=0,
        notes=(f"waits for its input: {missing}",),
        drain_after=None,
        upstreams=tuple(upstreams),
    )  # fmt: skip


def _check_expressions(plan: Plan) -> None:
    """Check the SQL expressions of the pipeline file, which Spark has to resolve.

    Raises:
        PipelineFileError: An expression is not valid, or names a column that does not exist.
    """
    pipeline = plan.pipeline
    schemas = get_schemas(plan.inputs)
    with prefix_errors(pipeline.command_argument):
        session = resolve_session(plan.spark)
        emissions = check_expressions(session, pipeline, plan.grid, **schemas)
        # With `explode`, only Spark knows them.
        check_named_columns(pipeline, emissions.names, schemas)
        _require_same_case(plan.tables, emissions.names)
        check_row_conditions(session, pipeline, emissions, schemas)
        # Resolves keys and condition, so that `plan` refuses what a job could not run.
        plan.create_join_now()


def _collect_notes(
    context: PlanningContext, slice_ranges: Sequence[SliceRange], files: Sequence[InputFiles]
) -> Iterator[str]:
    """Yield the notes about what the slices will read, publish and carry."""
    yield from _note_late_arriving_rows(context, slice_ranges)
    yield from _note_void_columns(context)
    yield from _note_adopted_slices(context, slice_ranges)
    yield from _note_unbounded_state(context, slice_ranges, files)


def _find_slices_to_reprocess(context: PlanningContext, slice_ranges: Sequence[SliceRange]) -> tuple[int, ...] | None:
    """Find the committed slices with late-arriving rows that no slice has read, with policy `reprocess`.

    Returns:
        The slices, also those that the plan runs again, because it may be killed before. None if they are unknown:
        with another policy, or if an input was replaced. In the latter case the plan must run all slices again.
    """
    if context.pipeline.on_late_arriving_rows != "reprocess":
        return None
    planned = {number for slice_range in slice_ranges for number in slice_range.slices}
    try:
        return context.slices_to_reprocess
    except (InputError, PySparkException, Py4JJavaError):
        if not planned >= context.ledger.entries.keys():
            raise
        return None


def _require_same_case(tables: PipelineTables, names: Sequence[str] | None) -> None:
    """Check the columns of emissions against the table before a job runs; None for unknown columns."""
    log = DeltaTableHandle.open(tables.emissions) if names else None
    if log and names:
        require_same_case(log.path, log.schema, T.StructType([T.StructField(name, T.NullType()) for name in names]))


def _create_jobs(
    context: PlanningContext, slice_ranges: Sequence[SliceRange], files: Sequence[InputFiles]
) -> tuple[dict[range, float], JobCapacity | None]:
    """Cut slices into jobs.

    Returns:
        The jobs in order with the approximate number of rows that each reads, and the capacity by which they are sized;
        None if the user sized them.
    """
    if not slice_ranges:
        return {}, None
    size: JobCapacity | int
    if context.request.slices_per_job == "auto":
        carried = sum(context.last.carried) if context.last else 0
        size = JobCapacity.from_session(context.spark, context.inputs, carried)
    else:
        size = context.request.slices_per_job
    run_alone = list_slices_run_alone(context.pipeline, context.grid)
    rows_by_job = {
        job: rows
        for slices in (slice_range.slices for slice_range in slice_ranges)
        for job, rows in cut_into_jobs(
            slices, files, size, run_alone, context.late_arriving_rows if _continues_last(context, slices) else 0
        )
    }
    return rows_by_job, size if isinstance(size, JobCapacity) else None


def _continues_last(context: PlanningContext, slices: range) -> bool:
    """Return True if these slices begin after the last committed one, and so read the rows that have arrived since."""
    return context.last is not None and slices.start == context.last.number + 1


def _note_late_arriving_rows(context: PlanningContext, slice_ranges: Sequence[SliceRange]) -> Iterator[str]:
    """Yield a note if rows of committed slices have arrived that the next slice reads, with policy `append`."""
    if context.last is None or not (rows := ceil(context.late_arriving_rows)):
        return
    following = context.last.number + 1
    if any(_continues_last(context, slice_range.slices) for slice_range in slice_ranges):
        reader = f"slice {context.grid.label(following)} reads them"
    elif context.last.is_end_of_input:
        reader = f"no slice follows, because the inputs have ended. {context.reprocess_command} reads them"
    else:
        reader = f"they wait for slice {context.grid.label(following)}, which reads them"
    yield f"{format_estimate(rows, 'row')} of committed slices arrived after the commit: {reader}"


def _note_unknown_arrivals(context: PlanningContext, slice_ranges: Sequence[SliceRange]) -> Iterator[str]:
    """Yield a note for each input whose arrivals are known only from an instant on; refuse earlier slices."""
    for source in context.inputs:
        if slice_ranges:
            first = min(slice_range.slices[0] for slice_range in slice_ranges)
            source.changes.require_exact_arrivals(context.grid, first)
        if (exact_start := source.changes.find_exact_arrival_start()) is not None:
            since, why = exact_start
            yield f"arrivals of {source.table.name} are known from {format_instant(since)} on: {why}"


def _note_adopted_slices(context: PlanningContext, slice_ranges: Sequence[SliceRange]) -> Iterator[str]:
    """Yield a note if the plan reruns adopted slices."""
    entries = context.ledger.entries
    numbers = (number for part in slice_ranges for number in part.slices)
    adoption = find_adoption(entries)
    if adoption and list_adopted_slices(entries, numbers):
        yield (
            f"slices before {context.grid.label(adoption.end)} are adopted from {adoption.source.table}: they run for "
            "their state, and publish no rows"
        )


def _note_void_columns(context: PlanningContext) -> Iterator[str]:
    """Yield a note for each input with columns without a type (VOID)."""
    for source in context.inputs:
        if names := source.table.void_paths:
            yield f"columns of {source.table.name} without a type (void) are left out: {', '.join(names)}"


def _note_unbounded_state(
    context: PlanningContext, slice_ranges: Sequence[SliceRange], files: Sequence[InputFiles]
) -> Iterator[str]:
    """Yield a note for each input whose rows are never evicted, with the growth of its state."""
    if not slice_ranges or context.pipeline.dialect != "spark":
        return
    slice_count = sum(len(slice_range.slices) for slice_range in slice_ranges)
    for side, why in list_unbounded_sides(context.pipeline):
        index = SIDES.index(side)
        carried = context.last.carried[index] if context.last else 0
        rows = sum(float(files[index].rows_per_slice(slice_range.slices).sum()) for slice_range in slice_ranges)
        yield (
            f"no row of {context.inputs[index].table.name} is ever evicted, because {why}: {carried:,} are "
            f"carried, and each slice adds about {rows / slice_count:,.0f}"
        )


def _list_expression_queries(pipeline: Pipeline) -> list[str]:
    """List the questions about the SQL expressions of the pipeline file, which Spark answers."""
    spark_queries = [f"whether `{side}.where` is valid" for side in SIDES if getattr(pipeline, side).where]
    if any(pipeline.join.expression_keys):
        spark_queries.append("which keys are columns, and of which types the others are")
    if pipeline.join.condition:
        spark_queries.append("whether `condition` is valid")
    if pipeline.select or pipeline.explode:
        spark_queries.append(f"whether `{'select' if pipeline.select else 'explode'}` is valid")
    if has_row_conditions(pipeline):
        spark_queries.append("whether the conditions under `quality` are valid")
    return spark_queries
