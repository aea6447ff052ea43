"""DAGs and task groups of pipeline files, for this project's `dags/` and for other teams' own.

NAME__slice follows the clock slice by slice, NAME__range runs a range at once, NAME__reprocess runs one again,
NAME__compare says how far they are what a stream wrote, and NAME__upkeep keeps the tables in order.
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
    Asset,
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

from tidemark.airflow.operators import (
    ReportSlices,
    RunSlices,
    VacuumTables,
    VerifyTables,
    WaitForInputs,
    inlets_of,
)
from tidemark.airflow.project import Project, page, refuse_two_midnights
from tidemark.config import Pipeline, load_pipeline, load_reference
from tidemark.config.types import format_instant
from tidemark.errors import PipelineFileError

Kind = Literal["slice", "range", "reprocess", "compare", "upkeep"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TITLES: Mapping[Kind, str] = {
    "slice": "slice by slice",
    "range": "a range of slices at once",
    "reprocess": "committed slices again",
    "compare": "compared with what a stream wrote",
    "upkeep": "its tables kept in order",
}
INSTANT: dict[str, Any] = {
    "type": "string",
    "format": "date-time",
    # Airflow shows a calendar for the format, but checks only the pattern.
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?$",
}
INTERVAL = ("{{ data_interval_start | ts }}", "{{ data_interval_end | ts }}")
ASKED = ("{{ params['from'] }}", "{{ params['to'] }}")
POOLS = "TIDEMARK_POOLS"
"""The environment variable that says that each pipeline has a pool of its name (`tidemark.airflow.pools`)."""
_LOG = logging.getLogger(__name__)


def slices_of(pipeline: Pipeline) -> Asset:
    """What is published where slices are committed."""
    return Asset(f"{pipeline.name}__slices")


async def tell_of_deadline(pipeline: str, **_: Any) -> None:
    """What a missed deadline calls by default: a line in the triggerer's log."""
    _LOG.error(
        "%s: a run is not over by its deadline (airflow.deadline); its task waiting or running tells why", pipeline
    )


class TidemarkTaskGroup(TaskGroup):
    """wait, run and report, of the slices between two instants, in a DAG of any kind.

    The tasks' `depends_on_past` and `retries` are the DAG's own, unless it names none.
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
        """`start` and `end` are templates; `spark_conf` comes before the sizes in the pipeline file.

        Raises:
            PipelineFileError: the file does not validate.
        """
        path, pipeline, place = _found(file, project)
        super().__init__(group_id or pipeline.name, tooltip=f"{pipeline.name}, {TITLES['slice']}", **kwargs)
        with self:
            _slices(pipeline, path, place, start, end, spark_conf=spark_conf)


class TidemarkDag(DAG):
    """One of the DAGs of a pipeline file; whatever `airflow.sdk.DAG` takes comes before what the file says."""

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
        """`on_deadline` is an async callable that the triggerer can import, called where `airflow.deadline` is missed.

        Raises:
            PipelineFileError: the file does not validate, or says nothing to compare with, or of upkeep.
        """
        path, pipeline, place = _found(file, project)
        own = pipeline.airflow
        defaults = {
            "owner": own.owner,
            "retries": own.retries,
            "retry_delay": own.retry_delay,
            **({"depends_on_past": True} if kind == "slice" else {}),
        }
        options: dict[str, Any] = {
            "description": f"{pipeline.name}, {TITLES[kind]}",
            "doc_md": page(pipeline, path, place.lake),
            "tags": ["tidemark", pipeline.dialect, kind],
            "max_active_runs": 1,
            **_BY_KIND[kind](pipeline, path),
            **_deadline(pipeline, on_deadline),
            **kwargs,
        }
        super().__init__(
            dag_id or f"{pipeline.name}__{kind}", default_args=defaults | dict(default_args or {}), **options
        )
        with self:
            _TASKS[kind](pipeline, path, place, spark_conf)


def pipeline_dags(project: Project, **options: Any) -> list[TidemarkDag]:
    """All DAGs of a project's valid pipelines; in a task's process that task's own alone. Options are `TidemarkDag`'s.

    Call it in a DAG file, which Airflow takes for one by the words airflow and dag in it.
    """
    asked = get_parsing_context().dag_id
    name, _, kind = (asked or "").rpartition("__")
    if kind in KINDS and (found := _only(project, name)):
        return [TidemarkDag(found[0], kind, project=project, **options)]
    return [
        TidemarkDag(file, kind, project=project, **options)
        for file, pipeline in project.pipelines()[0].items()
        for kind in KINDS
        if (kind != "compare" or pipeline.compare) and (kind != "upkeep" or _is_kept_up(pipeline))
    ]


def _is_kept_up(pipeline: Pipeline) -> bool:
    return pipeline.compact is not None or bool(pipeline.retention.model_fields_set)


def _only(project: Project, name: str) -> tuple[Path, Pipeline] | None:
    try:
        return project.pipeline_named(name)
    except PipelineFileError:
        return None


def _found(file: Path | str, project: Project | None) -> tuple[Path, Pipeline, Project]:
    path = Path(file).resolve()
    return path, load_pipeline(path), project or Project(path.parent)


def _intervals(pipeline: Pipeline, file: Path, every: timedelta) -> BaseTimetable:
    """Data intervals of a length on the pipeline's grid: of a day, where slices are local days."""
    if pipeline.slices.time_zone == "UTC":
        return DeltaDataIntervalTimetable(every)
    refuse_two_midnights(pipeline, file)
    return CronDataIntervalTimetable("0 0 * * *", timezone=pipeline.slices.time_zone)


def _slice_options(pipeline: Pipeline, file: Path) -> dict[str, Any]:
    """Each data interval is a slice, in order: the timetable's intervals go on from `start_date`, on no other grid."""
    return {
        "schedule": _intervals(pipeline, file, pipeline.slices.every),
        "start_date": pipeline.slices.start,
        # Airflow's is that of the last run, inclusive.
        "end_date": pipeline.slices.last,
        "catchup": True,
        # The run after a failed one would wait for it and, as the only active run, keep it from running again.
        "max_consecutive_failed_dag_runs": 1,
        **_without_backfills(),
    }


def _range_options(pipeline: Pipeline, _: Path) -> dict[str, Any]:
    return {
        "schedule": None,
        "params": {
            "from": Param(
                format_instant(pipeline.slices.start),
                **INSTANT,
                description="Start of the first slice; slices that are committed already are passed over.",
            ),
            "to": Param(**INSTANT, description="End of the last slice, exclusive."),
            "slices_per_job": Param(
                "auto",
                type=["string", "integer"],
                pattern=r"^(auto|[1-9]\d*)$",
                minimum=1,
                description="How many slices are computed together: a number, or auto.",
            ),
            "not_complete_yet": Param(
                default=False, type="boolean", description="Do not wait for the inputs; the ledger will say so."
            ),
        },
    }


def _reprocess_options(_: Pipeline, __: Path) -> dict[str, Any]:
    return {
        "schedule": None,
        "params": {
            "from": Param(**INSTANT, description="Start of the first slice to run again."),
            "to": Param(**INSTANT, description="End of the last slice, exclusive."),
            "dry_run": Param(
                default=True,
                type="boolean",
                description="Only plan: the log shows which slices would run again, and why.",
            ),
        },
    }


def _compare_options(pipeline: Pipeline, file: Path) -> dict[str, Any]:
    """`every`, or whenever the pipeline has committed, or the one that tells of the stream."""
    settings = pipeline.compare
    if settings is None:
        raise PipelineFileError(f"{file}: compare: is missing, so there is nothing to compare with")
    if settings.every:
        return {
            "schedule": _intervals(pipeline, file, settings.every),
            "start_date": pipeline.slices.start,
            "catchup": True,
            **_without_backfills(),
        }
    committed = AssetAny(*(slices_of(one) for one in (pipeline, load_reference(file)) if one))
    return {"schedule": committed, "start_date": None, "catchup": False}


def _upkeep_options(pipeline: Pipeline, file: Path) -> dict[str, Any]:
    """Once a day, the last one alone: what it leaves, the next one does."""
    if not _is_kept_up(pipeline):
        raise PipelineFileError(f"{file}: neither compact: nor retention: is there, so there is no upkeep")
    return {
        "schedule": DeltaDataIntervalTimetable(timedelta(days=1)),
        "start_date": pipeline.slices.start,
        "catchup": False,
        **_without_backfills(),
    }


_BY_KIND: Mapping[Kind, Callable[[Pipeline, Path], dict[str, Any]]] = {
    "slice": _slice_options,
    "range": _range_options,
    "reprocess": _reprocess_options,
    "compare": _compare_options,
    "upkeep": _upkeep_options,
}


def _slice_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    _slices(pipeline, file, project, *INTERVAL, spark_conf=spark_conf)


def _range_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    more = [
        *("--slices-per-job", "{{ params['slices_per_job'] }}"),
        "--{{ '' if params['not_complete_yet'] else 'no-' }}not-complete-yet",
    ]
    _slices(pipeline, file, project, *ASKED, more, spark_conf, waits_unless="params['not_complete_yet']")


def _reprocess_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    start, end = ASKED
    options = ["--from", start, "--to", end, "--{{ '' if params['dry_run'] else 'no-' }}dry-run"]
    run = _run(pipeline, file, project, spark_conf, f"{pipeline.name} again {start} to {end}", options, ("reprocess",))
    run >> _report(pipeline, file, project)


def _compare_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """By `every` the interval's slices are compared, and those that earlier runs left: not committed in time."""
    interval = ["--from", INTERVAL[0], "--to", INTERVAL[1]] if pipeline.compare and pipeline.compare.every else []
    options = ["--due", *interval]
    command = ("compare", "--record")
    _run(pipeline, file, project, spark_conf, f"{pipeline.name} compared", options, command, task_id="compare")


def _upkeep_tasks(pipeline: Pipeline, file: Path, project: Project, spark_conf: Mapping[str, str] | None) -> None:
    """Small files are merged, what is not needed goes, and what is left is held against the ledger.

    Which states a plan needs Spark may have to be asked, so that the command is submitted where some expire.
    """

    def submitted(name: str, done: str) -> RunSlices:
        return _run(pipeline, file, project, spark_conf, f"{pipeline.name} {done}", [], (name,), task_id=name)

    vacuum = (
        submitted("vacuum", "vacuumed")
        if pipeline.retention.states
        else VacuumTables(task_id="vacuum", file=file, project=project)
    )
    vacuum >> VerifyTables(task_id="verify", file=file, project=project)
    if pipeline.compact:
        submitted("compact", "compacted") >> vacuum


_TASKS: Mapping[Kind, Callable[[Pipeline, Path, Project, Mapping[str, str] | None], None]] = {
    "slice": _slice_tasks,
    "range": _range_tasks,
    "reprocess": _reprocess_tasks,
    "compare": _compare_tasks,
    "upkeep": _upkeep_tasks,
}


def _slices(
    pipeline: Pipeline,
    file: Path,
    project: Project,
    start: str,
    end: str,
    more: list[str] | None = None,
    spark_conf: Mapping[str, str] | None = None,
    waits_unless: str = "false",
) -> None:
    """The tasks wait, run and report."""
    wait = WaitForInputs(
        task_id="wait",
        file=file,
        project=project,
        start=start,
        end=end,
        unless=f"{{{{ {waits_unless} }}}}",
        inlets=inlets_of(pipeline),
    )
    seen = ["--assets-seen"] if any(s.complete and s.complete.asset for s in (pipeline.left, pipeline.right)) else []
    options = ["--from", start, "--to", end, *(more or []), *seen]
    run = _run(pipeline, file, project, spark_conf, f"{pipeline.name} {start} to {end}", options)
    wait >> run >> _report(pipeline, file, project)


def _run(
    pipeline: Pipeline,
    file: Path,
    project: Project,
    spark_conf: Mapping[str, str] | None,
    name: str,
    options: list[str],
    command: tuple[str, ...] = ("run",),
    task_id: str = "run",
) -> RunSlices:
    own = pipeline.airflow
    pool = own.pool or (pipeline.name if os.environ.get(POOLS) else None)
    return RunSlices(
        task_id=task_id,
        name=name,
        file=file,
        project=project,
        command=command,
        options=options,
        conn_id=own.connection,
        conf=dict(spark_conf or {}) or None,
        execution_timeout=own.execution_timeout,
        inlets=inlets_of(pipeline),
        **({"pool": pool} if pool else {}),
    )


def _report(pipeline: Pipeline, file: Path, project: Project) -> ReportSlices:
    """A teardown: it comes also after a run that has failed half-way, and the DAG's run is still failed."""
    report = ReportSlices(
        task_id="report",
        file=file,
        project=project,
        outlets=[slices_of(pipeline)],
        depends_on_past=False,
    )
    report.as_teardown()
    return report


def _deadline(pipeline: Pipeline, on_deadline: Callable[..., Any] | str | None) -> dict[str, Any]:
    span: timedelta | None = pipeline.airflow.deadline
    if span is None:
        return {}
    callback = AsyncCallback(on_deadline or tell_of_deadline, {"pipeline": pipeline.name})
    return {"deadline": DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, span, callback)}


def _without_backfills() -> dict[str, Any]:
    """On SQLite a backfill locks the database and ends the scheduler, so that Airflow is to refuse it."""
    if conf.get("database", "sql_alchemy_conn", fallback="sqlite").startswith("sqlite"):
        return {"allowed_run_types": ["scheduled", "manual"]}
    return {}
