"""Create the DAGs and task groups of pipeline files.

| DAG | purpose |
| --- | --- |
| NAME__slice | run each slice when its data interval has ended |
| NAME__range | run a range of slices at once |
| NAME__reprocess | run committed slices again |
| NAME__repair | run outdated slices again, once a person has approved the plan |
| NAME__landed | run slices when rows land in the inputs |
| NAME__compare | compare slices with the streamed table |
| NAME__maintenance | compact, vacuum and verify the tables |
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from airflow.sdk import (
    DAG,
    AssetAny,
    CronDataIntervalTimetable,
    DeltaDataIntervalTimetable,
    Param,
    TaskGroup,
    get_parsing_context,
)
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from tidemark.airflow.assets import input_assets, output_assets, slices_asset
from tidemark.airflow.operators import (
    ReportSlices,
    RunSlices,
    VacuumTables,
    VerifyTables,
    WaitForInputs,
)
from tidemark.airflow.project import Project, document_pipeline, require_timetable
from tidemark.airflow.repair import APPROVE_TASK, APPROVED_AT, PLAN_TASK, ApproveRepair, PlanRepair, RepairSlices
from tidemark.airflow.table_watcher import watch_tables
from tidemark.airflow_provider.deadlines import DataIntervalEnd
from tidemark.config import Pipeline, load_pipeline, load_reference
from tidemark.config.types import format_instant
from tidemark.errors import PipelineFileError

Kind = Literal["slice", "range", "reprocess", "repair", "landed", "compare", "maintenance"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TITLES: Mapping[Kind, str] = {
    "slice": "slice by slice",
    "range": "a range of slices at once",
    "reprocess": "committed slices again",
    "repair": "outdated slices again, after approval",
    "landed": "when rows land",
    "compare": "compared with a streamed table",
    "maintenance": "maintenance of its tables",
}
INSTANT: dict[str, Any] = {
    "type": "string",
    "format": "date-time",
    # Airflow shows a calendar for the format, but checks only the pattern.
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?$",
}
INTERVAL = ("{{ data_interval_start | ts }}", "{{ data_interval_end | ts }}")
RANGE_PARAMS = ("{{ params['from'] }}", "{{ params['to'] }}")
PLANNED = tuple(f"{{{{ ti.xcom_pull(task_ids='{PLAN_TASK}')['plan']['{end}'] }}}}" for end in ("from", "to"))
"""Templates of the bounds of a planned repair."""
POOLS = "TIDEMARK_POOLS"
"""Environment variable: if set, each pipeline's jobs run in a pool of its name (`tidemark.airflow.pools`)."""
_LOG = logging.getLogger(__name__)


async def log_missed_deadline(pipeline: str, **_: Any) -> None:
    """Log a missed deadline in the triggerer: the default callback."""
    _LOG.error("%s: a run missed its deadline (airflow.deadline). See the log of its running task.", pipeline)


class TidemarkTaskGroup(TaskGroup):
    """Task group with the tasks wait, run and report for the slices between two instants.

    It fits into any DAG. `depends_on_past` and `retries` are inherited from the DAG.
    """

    def __init__(
        self,
        file: Path | str,
        *,
        project: Project | None = None,
        start: str = INTERVAL[0],
        end: str = INTERVAL[1],
        spark_conf: Mapping[str, str] | None = None,
        group_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Create the tasks.

        Args:
            file: A pipeline file.
            project: Folders of pipelines, lake and jars. By default the file's own folder.
            start: Start of the first slice (inclusive), a template.
            end: End of the last slice (exclusive), a template.
            spark_conf: Spark settings. They override the sizes in the pipeline file.
            group_id: Id of the group. By default the pipeline's name.
            kwargs: Further arguments of `airflow.sdk.TaskGroup`.

        Raises:
            PipelineFileError: The file is not valid.
        """
        path, pipeline, project = _load(file, project)
        super().__init__(group_id or pipeline.name, tooltip=f"{pipeline.name}, {TITLES['slice']}", **kwargs)
        with self:
            _add_slice_tasks(pipeline, path, project, start, end, spark_conf=spark_conf)


class TidemarkDag(DAG):
    """One DAG of a pipeline file. Arguments of `airflow.sdk.DAG` override the settings in the file."""

    def __init__(
        self,
        file: Path | str,
        kind: Kind = "slice",
        *,
        project: Project | None = None,
        dag_id: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        on_deadline: Callable[..., Any] | str | None = None,
        default_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Create the DAG and its tasks.

        Args:
            file: A pipeline file.
            kind: Which of the pipeline's DAGs to create.
            project: Folders of pipelines, lake and jars. By default the file's own folder.
            dag_id: Id of the DAG. By default NAME__KIND.
            spark_conf: Spark settings. They override the sizes in the pipeline file.
            on_deadline: Async callable for a missed `airflow.deadline`; the triggerer must be able to import it.
            default_args: Arguments of the tasks.
            kwargs: Further arguments of `airflow.sdk.DAG`.

        Raises:
            PipelineFileError: The file is not valid, or lacks the settings that the kind needs.
        """
        path, pipeline, project = _load(file, project)
        airflow_settings = pipeline.airflow
        defaults = {
            "owner": airflow_settings.owner,
            "retries": airflow_settings.retries,
            "retry_delay": airflow_settings.retry_delay,
            **({"depends_on_past": True} if kind == "slice" else {}),
        }
        options: dict[str, Any] = {
            "description": f"{pipeline.name}, {TITLES[kind]}",
            "doc_md": document_pipeline(pipeline, path, project.lake),
            "tags": ["tidemark", pipeline.dialect, kind],
            "max_active_runs": 1,
            **_BY_KIND[kind](pipeline, path, project),
            **_deadline_options(pipeline, on_deadline),
            **kwargs,
        }
        super().__init__(
            dag_id or f"{pipeline.name}__{kind}", default_args=defaults | dict(default_args or {}), **options
        )
        with self:
            _TASKS[kind](pipeline, path, project, spark_conf)


def pipeline_dags(project: Project, **options: Any) -> list[TidemarkDag]:
    """Create the DAGs of a project's valid pipelines. In a task's process, create only that task's DAG.

    Call it in a DAG file. Airflow recognises the file by the words airflow and dag in it.

    Args:
        project: Folders of pipelines, lake and jars.
        options: Further arguments of each `TidemarkDag`.

    Returns:
        The DAGs. Pipelines whose files are not valid have none (`Project.raise_errors` shows why).
    """
    parsed_dag_id = get_parsing_context().dag_id
    name, _, kind = (parsed_dag_id or "").rpartition("__")
    if kind in KINDS and (match := _find_by_file_name(project, name)):
        return [TidemarkDag(match[0], kind, project=project, **options)]
    return [
        TidemarkDag(file, kind, project=project, **options)
        for file, pipeline in project.pipelines()[0].items()
        for kind in KINDS
        if _has_dag(pipeline, kind)
    ]


def _has_dag(pipeline: Pipeline, kind: Kind) -> bool:
    conditions: dict[Kind, bool] = {
        "landed": pipeline.airflow.watch_inputs,
        "compare": pipeline.compare is not None,
        "maintenance": _has_maintenance(pipeline),
    }
    return conditions.get(kind, True)


def _has_maintenance(pipeline: Pipeline) -> bool:
    return pipeline.compact is not None or bool(pipeline.retention.model_fields_set)


def _find_by_file_name(project: Project, name: str) -> tuple[Path, Pipeline] | None:
    try:
        return project.find_pipeline(name)
    except PipelineFileError:
        return None


def _load(file: Path | str, project: Project | None) -> tuple[Path, Pipeline, Project]:
    path = Path(file).resolve()
    return path, load_pipeline(path), project or Project(path.parent)


def _create_timetable(pipeline: Pipeline, file: Path, every: timedelta) -> BaseTimetable:
    """Return data intervals of a length on the pipeline's grid; local days if the slices are."""
    if pipeline.slices.time_zone == "UTC":
        return DeltaDataIntervalTimetable(every)
    require_timetable(pipeline, file)
    return CronDataIntervalTimetable("0 0 * * *", timezone=pipeline.slices.time_zone)


def _slice_options(pipeline: Pipeline, file: Path, _: Project) -> dict[str, Any]:
    """Schedule one run per slice, in order. The timetable counts its intervals from `start_date`."""
    return {
        "schedule": _create_timetable(pipeline, file, pipeline.slices.every),
        "start_date": pipeline.slices.start,
        # In Airflow this is the start of the last run, inclusive.
        "end_date": pipeline.slices.last_start,
        "catchup": True,
        # The run after a failed run would wait for it. As the only active run, it would block the retry.
        "max_consecutive_failed_dag_runs": 1,
        **_refuse_backfills_on_sqlite(),
    }


def _range_options(pipeline: Pipeline, _: Path, __: Project) -> dict[str, Any]:
    return {
        "schedule": None,
        "params": {
            "from": Param(
                format_instant(pipeline.slices.start),
                **INSTANT,
                description="Start of the first slice. Committed slices are skipped.",
            ),
            "to": Param(**INSTANT, description="End of the last slice, exclusive."),
            "slices_per_job": Param(
                "auto",
                type=["string", "integer"],
                pattern=r"^(auto|[1-9]\d*)$",
                minimum=1,
                description="Number of slices per Spark job, or auto.",
            ),
            "ignore_completeness": Param(
                default=False, type="boolean", description="Do not wait for the inputs; the ledger will say so."
            ),
        },
    }


def _reprocess_options(_: Pipeline, __: Path, ___: Project) -> dict[str, Any]:
    return {
        "schedule": None,
        "params": {
            "from": Param(**INSTANT, description="Start of the first slice to reprocess."),
            "to": Param(**INSTANT, description="End of the last slice, exclusive."),
            "dry_run": Param(
                default=True,
                type="boolean",
                description="Plan only. The log shows which slices would run again, and why.",
            ),
        },
    }


def _repair_options(pipeline: Pipeline, _: Path, __: Project) -> dict[str, Any]:
    """Schedule repairs `every` interval without catch-up; by default they are started by hand."""
    every = pipeline.airflow.repair.every
    if every is None:
        return {"schedule": None}
    return {
        "schedule": DeltaDataIntervalTimetable(every),
        "start_date": pipeline.slices.start,
        "catchup": False,
        **_refuse_backfills_on_sqlite(),
    }


def _landed_options(pipeline: Pipeline, _: Path, project: Project) -> dict[str, Any]:
    """Schedule a run for each commit of rows to an input. Commits during a run give one more run.

    An input that is another pipeline is not watched: that pipeline's DAGs send an event for its commits.
    """
    tables = [source.table for source in (pipeline.left, pipeline.right) if not source.upstream]
    landed = [slices_asset(upstream.pipeline) for upstream in pipeline.upstreams.values()]
    if tables:
        landed.append(watch_tables(f"{pipeline.name}__landed", tables, project, pipeline.airflow.poll_interval))
    return {"schedule": AssetAny(*landed), "start_date": None, "catchup": False}


def _compare_options(pipeline: Pipeline, file: Path, _: Project) -> dict[str, Any]:
    """Schedule comparisons `every` interval, or after each commit of the pipeline or of its reference."""
    settings = pipeline.compare
    if settings is None:
        raise PipelineFileError(f"{file}: compare: is missing. Name the streamed table to compare with.")
    if settings.every:
        return {
            "schedule": _create_timetable(pipeline, file, settings.every),
            "start_date": pipeline.slices.start,
            "catchup": True,
            **_refuse_backfills_on_sqlite(),
        }
    producers = [producer for producer in (pipeline, load_reference(file)) if producer]
    committed = AssetAny(*(slices_asset(producer.name) for producer in producers))
    return {"schedule": committed, "start_date": None, "catchup": False}


def _maintenance_options(pipeline: Pipeline, file: Path, _: Project) -> dict[str, Any]:
    """Schedule maintenance once a day without catch-up."""
    if not _has_maintenance(pipeline):
        raise PipelineFileError(f"{file}: compact: and retention: are missing. Set one of them to have maintenance.")
    return {
        "schedule": DeltaDataIntervalTimetable(timedelta(days=1)),
        "start_date": pipeline.slices.start,
        "catchup": False,
        **_refuse_backfills_on_sqlite(),
    }


_BY_KIND: Mapping[Kind, Callable[[Pipeline, Path, Project], dict[str, Any]]] = {
    "slice": _slice_options,
    "range": _range_options,
    "reprocess": _reprocess_options,
    "repair": _repair_options,
    "landed": _landed_options,
    "compare": _compare_options,
    "maintenance": _maintenance_options,
}


def _slice_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    _add_slice_tasks(pipeline, file, project, *INTERVAL, spark_conf=spark_conf)


def _range_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    extra_options = [
        *("--slices-per-job", "{{ params['slices_per_job'] }}"),
        "--{{ '' if params['ignore_completeness'] else 'no-' }}ignore-completeness",
    ]
    _add_slice_tasks(
        pipeline, file, project, *RANGE_PARAMS, extra_options, spark_conf, waits_unless="params['ignore_completeness']"
    )


def _reprocess_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    start, end = RANGE_PARAMS
    arguments = ["--from", start, "--to", end, "--{{ '' if params['dry_run'] else 'no-' }}dry-run"]
    run = _create_run_task(
        pipeline, file, project, spark_conf, f"{pipeline.name} again {start} to {end}", arguments, ("reprocess",)
    )
    run >> _create_report_task(pipeline, file, project)


def _repair_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """Add the tasks plan, approve, reprocess, compare (if the pipeline has it) and report."""

    def create_task(
        task_id: str, operator: type[RunSlices], command: tuple[str, ...], options: list[str] | None = None
    ) -> RunSlices:
        name = f"{pipeline.name} repair, {task_id}"
        return _create_run_task(pipeline, file, project, spark_conf, name, options or [], command, task_id, operator)

    settings = pipeline.airflow.repair
    approve = ApproveRepair(
        task_id=APPROVE_TASK,
        pipeline=pipeline.name,
        answer_within=settings.answer_within,
        approvers=settings.approvers,
    )
    run = create_task("reprocess", RepairSlices, ("reprocess", "--outdated"))
    create_task(PLAN_TASK, PlanRepair, ("reprocess", "--outdated", "--dry-run")) >> approve >> run
    report = _create_report_task(pipeline, file, project, APPROVED_AT)
    if pipeline.compare:
        # With `every`, later slices are left to NAME__compare: the stream may not have written their rows.
        interval = ["--from", PLANNED[0], "--to", PLANNED[1]] if pipeline.compare.every else []
        compare = create_task("compare", RunSlices, ("compare", "run", "--save"), ["--only-due", *interval])
        run >> compare >> report
    else:
        run >> report


def _landed_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """Add the tasks run and report. The job runs the slices whose inputs are complete, if any."""
    run = _create_run_task(pipeline, file, project, spark_conf, f"{pipeline.name} landed", [])
    run >> _create_report_task(pipeline, file, project)


def _compare_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """Add the comparison task. With `every`, it also compares slices that earlier runs found uncommitted."""
    interval = ["--from", INTERVAL[0], "--to", INTERVAL[1]] if pipeline.compare and pipeline.compare.every else []
    options = ["--only-due", *interval]
    command = ("compare", "run", "--save")
    _create_run_task(
        pipeline, file, project, spark_conf, f"{pipeline.name} compared", options, command, task_id="compare"
    )


def _maintenance_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """Add the tasks compact, vacuum and verify.

    Expiring checkpoints may need Spark to find those that a plan still needs. Only then is vacuum submitted.
    """

    def create_submitted_task(name: str, label: str, *options: str) -> RunSlices:
        command = ("tables", name, *options)
        return _create_run_task(
            pipeline, file, project, spark_conf, f"{pipeline.name} {label}", [], command, task_id=name
        )

    vacuum = (
        create_submitted_task("vacuum", "vacuumed", "--yes")
        if pipeline.retention.checkpoints
        else VacuumTables(task_id="vacuum", file=file, project=project)
    )
    vacuum >> VerifyTables(task_id="verify", file=file, project=project)
    if pipeline.compact:
        create_submitted_task("compact", "compacted") >> vacuum


_TASKS: Mapping[Kind, Callable[[Pipeline, Path, Project, Mapping[str, str] | None], None]] = {
    "slice": _slice_tasks,
    "range": _range_tasks,
    "reprocess": _reprocess_tasks,
    "repair": _repair_tasks,
    "landed": _landed_tasks,
    "compare": _compare_tasks,
    "maintenance": _maintenance_tasks,
}


def _add_slice_tasks(
    pipeline: Pipeline,
    file: Path,
    project: Project,
    start: str,
    end: str,
    extra_options: list[str] | None = None,
    spark_conf: Mapping[str, str] | None = None,
    waits_unless: str = "false",
) -> None:
    """Add the tasks wait, run and report."""
    wait = WaitForInputs(
        task_id="wait",
        file=file,
        project=project,
        start=start,
        end=end,
        unless=f"{{{{ {waits_unless} }}}}",
        inlets=input_assets(pipeline),
    )
    asset_options = (
        ["--skip-asset-check"] if any(s.complete and s.complete.asset for s in (pipeline.left, pipeline.right)) else []
    )
    options = ["--from", start, "--to", end, *(extra_options or []), *asset_options]
    run = _create_run_task(pipeline, file, project, spark_conf, f"{pipeline.name} {start} to {end}", options)
    wait >> run >> _create_report_task(pipeline, file, project)


def _create_run_task(
    pipeline: Pipeline,
    file: Path,
    project: Project,
    spark_conf: Mapping[str, str] | None,
    name: str,
    options: list[str],
    command: tuple[str, ...] = ("run",),
    task_id: str = "run",
    operator: type[RunSlices] = RunSlices,
) -> RunSlices:
    airflow_settings = pipeline.airflow
    pool = airflow_settings.pool or (pipeline.name if os.environ.get(POOLS) else None)
    return operator(
        task_id=task_id,
        name=name,
        file=file,
        project=project,
        command=command,
        options=options,
        conn_id=airflow_settings.connection,
        conf=dict(spark_conf or {}) or None,
        execution_timeout=airflow_settings.execution_timeout,
        inlets=input_assets(pipeline),
        **({"pool": pool} if pool else {}),
    )


def _create_report_task(pipeline: Pipeline, file: Path, project: Project, since: str = "") -> ReportSlices:
    """Create the report task, for commits since an instant (a template; by default the start of the DAG run).

    As a teardown it also runs after a failed job, and the DAG run still fails.
    """
    report = ReportSlices(
        task_id="report",
        file=file,
        project=project,
        since=since,
        outlets=output_assets(pipeline, project.lake),
        depends_on_past=False,
    )
    report.as_teardown()
    return report


def _deadline_options(pipeline: Pipeline, on_deadline: Callable[..., Any] | str | None) -> dict[str, Any]:
    deadline: timedelta | None = pipeline.airflow.deadline
    if deadline is None:
        return {}
    callback = AsyncCallback(on_deadline or log_missed_deadline, {"pipeline": pipeline.name})
    is_from_interval = pipeline.airflow.deadline_from == "interval_end"
    reference = DataIntervalEnd() if is_from_interval else DeadlineReference.DAGRUN_QUEUED_AT
    return {"deadline": DeadlineAlert(reference, deadline, callback)}


def _refuse_backfills_on_sqlite() -> dict[str, Any]:
    """Let Airflow refuse backfills on SQLite, where they lock the database and stop the scheduler."""
    if conf.get("database", "sql_alchemy_conn", fallback="sqlite").startswith("sqlite"):
        return {"allowed_run_types": ["scheduled", "manual"]}
    return {}
