"""Tasks of a pipeline's DAGs, by kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import BaseOperator, TriggerRule

from tidemark.airflow.approval import APPROVE_TASK, PLAN_TASK, ApprovePlan, ApproveSlices
from tidemark.airflow.assets import input_assets, output_assets
from tidemark.airflow.dag_kinds import Kind
from tidemark.airflow.operators import ReportSlices, RunSlices, VacuumTables, VerifyTables, WaitForInputs
from tidemark.airflow.project import Project
from tidemark.airflow.quality_tasks import (
    PlanReleases,
    PlanWaivers,
    ReleaseRows,
    ReprocessWaivedSlices,
    RunWaivedSlices,
    WaiveExpectations,
)
from tidemark.airflow.repair import ApproveRepair, PlanRepair, RepairSlices
from tidemark.config import Pipeline

INTERVAL = ("{{ data_interval_start | ts }}", "{{ data_interval_end | ts }}")
RANGE_PARAMS = ("{{ params['from'] }}", "{{ params['to'] }}")
PLANNED = tuple(f"{{{{ ti.xcom_pull(task_ids='{PLAN_TASK}')['plan']['{end}'] }}}}" for end in ("from", "to"))
"""Templates of the bounds of a planned repair."""
POOLS = "TIDEMARK_POOLS"
"""Environment variable: if set, each pipeline's jobs run in a pool of its name (`tidemark.airflow.pools`)."""


def add_slice_tasks(
    pipeline: Pipeline,
    file: Path,
    project: Project,
    start: str,
    end: str,
    extra_options: list[str] | None = None,
    spark_conf: Mapping[str, str] | None = None,
    ignore_completeness: str = "false",
) -> None:
    """Add the tasks wait, run, report and done."""
    wait = WaitForInputs(
        task_id="wait",
        file=file,
        project=project,
        start=start,
        end=end,
        ignore_completeness=f"{{{{ {ignore_completeness} }}}}",
        inlets=input_assets(pipeline),
    )
    options = ["--from", start, "--to", end, *(extra_options or []), *_list_asset_options(pipeline)]
    run = _create_run_task(pipeline, file, project, spark_conf, f"{pipeline.name} {start} to {end}", options)
    wait >> run
    _add_report_tasks(run, pipeline, file, project)


def _list_asset_options(pipeline: Pipeline) -> list[str]:
    """Return the option for a job whose DAG has checked the events of the inputs' assets."""
    has_asset = any(source.complete and source.complete.asset for source in (pipeline.left, pipeline.right))
    return ["--skip-asset-check"] if has_asset else []


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


def _add_report_tasks(last_job: BaseOperator, pipeline: Pipeline, file: Path, project: Project) -> None:
    """Add the tasks report and done after the last job.

    `report` is a teardown, so it also runs after a failed job. Airflow does not count the state of a teardown for the
    DAG run. `done` is the leaf that counts: it fails if a job or the report fails. If the slices were skipped because
    they are committed, it succeeds, so that tasks after a task group run.
    """
    report = ReportSlices(
        task_id="report",
        file=file,
        project=project,
        outlets=output_assets(pipeline, project.lake),
        depends_on_past=False,
    )
    report.as_teardown()
    done = EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED, depends_on_past=False)
    last_job >> report >> done
    last_job >> done


def _slice_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    add_slice_tasks(pipeline, file, project, *INTERVAL, spark_conf=spark_conf)


def _range_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    extra_options = [
        *("--slices-per-job", "{{ params['slices_per_job'] }}"),
        "--{{ '' if params['ignore_completeness'] else 'no-' }}ignore-completeness",
    ]
    add_slice_tasks(
        pipeline,
        file,
        project,
        *RANGE_PARAMS,
        extra_options,
        spark_conf,
        ignore_completeness="params['ignore_completeness']",
    )


def _reprocess_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    start, end = RANGE_PARAMS
    arguments = ["--from", start, "--to", end, "--{{ '' if params['dry_run'] else 'no-' }}dry-run"]
    run = _create_run_task(
        pipeline, file, project, spark_conf, f"{pipeline.name} again {start} to {end}", arguments, ("reprocess",)
    )
    _add_report_tasks(run, pipeline, file, project)


def _repair_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """Add the tasks plan, approve, reprocess, compare (if the pipeline has it), report and done."""

    def create_task(
        task_id: str, operator: type[RunSlices], command: tuple[str, ...], options: list[str] | None = None
    ) -> RunSlices:
        name = f"{pipeline.name} repair, {task_id}"
        return _create_run_task(pipeline, file, project, spark_conf, name, options or [], command, task_id, operator)

    approve = _create_approve_task(pipeline, ApproveRepair, "run outdated slices again?")
    last_job = run = create_task("reprocess", RepairSlices, ("reprocess", "--outdated"))
    create_task(PLAN_TASK, PlanRepair, ("reprocess", "--outdated", "--dry-run")) >> approve >> run
    if pipeline.compare:
        # With `every`, later slices are left to NAME__compare: the stream may not have written their rows.
        interval = ["--from", PLANNED[0], "--to", PLANNED[1]] if pipeline.compare.every else []
        last_job = create_task("compare", RunSlices, ("compare", "run", "--save"), ["--only-due", *interval])
        run >> last_job
    _add_report_tasks(last_job, pipeline, file, project)


def _create_approve_task(pipeline: Pipeline, operator: type[ApprovePlan], question: str, **options: Any) -> ApprovePlan:
    settings = pipeline.airflow.repair
    return operator(
        task_id=APPROVE_TASK,
        subject=f"{pipeline.name}: {question}",
        answer_within=settings.answer_within,
        approvers=settings.approvers,
        **options,
    )


def _release_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """Add the tasks plan, approve, release, report and done."""
    plan = PlanReleases(task_id=PLAN_TASK, file=file, project=project)
    approve = _create_approve_task(pipeline, ApproveSlices, "publish rows that are in quarantine?")
    name, command = f"{pipeline.name} release", ("quarantine", "release")
    release = _create_run_task(pipeline, file, project, spark_conf, name, [], command, "release", ReleaseRows)
    plan >> approve >> release
    _add_report_tasks(release, pipeline, file, project)


def _waive_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """Add the tasks plan, approve, waive, reprocess, run, report and done.

    `run` also runs if `reprocess` is skipped, because no approved slice has an earlier run. It does not if a person
    has rejected the plan, since then `waive` is skipped too.
    """

    def create_task(operator: type[RunSlices], command: str, options: list[str]) -> RunSlices:
        name = f"{pipeline.name} waived, {command}"
        return _create_run_task(pipeline, file, project, spark_conf, name, options, (command,), command, operator)

    plan = PlanWaivers(task_id=PLAN_TASK, file=file, project=project)
    approve = _create_approve_task(pipeline, ApproveSlices, "publish rejected slices?", needs_reason=True)
    waive = WaiveExpectations(task_id="waive", file=file, project=project)
    reprocess = create_task(ReprocessWaivedSlices, "reprocess", [])
    run = create_task(RunWaivedSlices, "run", _list_asset_options(pipeline))
    run.trigger_rule = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
    plan >> approve >> waive >> reprocess >> run
    waive >> run
    _add_report_tasks(run, pipeline, file, project)


def _landed_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """Add the tasks run, report and done. The job runs the slices whose inputs are complete, if any."""
    run = _create_run_task(pipeline, file, project, spark_conf, f"{pipeline.name} landed", [])
    _add_report_tasks(run, pipeline, file, project)


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


TASKS: Mapping[Kind, Callable[[Pipeline, Path, Project, Mapping[str, str] | None], None]] = {
    "slice": _slice_tasks,
    "range": _range_tasks,
    "reprocess": _reprocess_tasks,
    "repair": _repair_tasks,
    "release": _release_tasks,
    "waive": _waive_tasks,
    "landed": _landed_tasks,
    "compare": _compare_tasks,
    "maintenance": _maintenance_tasks,
}
"""Function that adds the tasks of a pipeline file to the current DAG, with further Spark settings."""
