"""Create the DAGs and task groups of pipeline files.

| DAG | purpose |
| --- | --- |
| NAME__slice | run each slice when its data interval has ended |
| NAME__range | run a range of slices at once |
| NAME__reprocess | run committed slices again |
| NAME__repair | run outdated slices again, once a person has approved the plan |
| NAME__release | publish rows in quarantine, once a person has approved them |
| NAME__waive | waive failed expectations, once a person has approved it, and run the slices |
| NAME__landed | run slices when rows land in the inputs |
| NAME__compare | compare slices with the streamed table |
| NAME__maintenance | compact, vacuum and verify the tables |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, TaskGroup, get_parsing_context
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from tidemark.airflow.dag_kinds import KINDS, TITLES, Kind, format_dag_id, has_dag
from tidemark.airflow.dag_options import OPTIONS
from tidemark.airflow.dag_tasks import INTERVAL, TASKS, add_slice_tasks
from tidemark.airflow.project import Project, document_pipeline
from tidemark.airflow_provider.deadlines import DataIntervalEnd
from tidemark.config import Pipeline, load_pipeline
from tidemark.errors import PipelineFileError
from tidemark.formatting import to_single_line

_LOG = logging.getLogger(__name__)


async def log_missed_deadline(pipeline: str, **_: Any) -> None:
    """Log a missed deadline in the triggerer: the default callback."""
    _LOG.error("%s: a run missed its deadline (airflow.deadline). See the log of its running task.", pipeline)


class TidemarkTaskGroup(TaskGroup):
    """Task group with the tasks wait, run, report and done for the slices between two instants.

    It fits into any DAG. `depends_on_past` and `retries` are inherited from the DAG. Tasks after the group run if the
    slices are committed, also if an earlier run has committed them.
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
            add_slice_tasks(pipeline, path, project, start, end, spark_conf=spark_conf)


class TidemarkDag(DAG):
    """One DAG of a pipeline file. Arguments of `airflow.sdk.DAG` override the settings in the file."""

    def __init__(
        self,
        file: Path | str,
        kind: Kind = "slice",
        *,
        project: Project | None = None,
        pipeline: Pipeline | None = None,
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
            pipeline: The file's settings. By default the file is read.
            dag_id: Id of the DAG. By default NAME__KIND.
            spark_conf: Spark settings. They override the sizes in the pipeline file.
            on_deadline: Async callable for a missed `airflow.deadline`; the triggerer must be able to import it.
            default_args: Arguments of the tasks.
            kwargs: Further arguments of `airflow.sdk.DAG`.

        Raises:
            PipelineFileError: The file is not valid, or lacks the settings that the kind needs.
        """
        path, pipeline, project = _load(file, project, pipeline)
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
            **OPTIONS[kind](pipeline, path, project),
            **_deadline_options(pipeline, on_deadline),
            **kwargs,
        }
        super().__init__(
            dag_id or format_dag_id(pipeline.name, kind), default_args=defaults | dict(default_args or {}), **options
        )
        with self:
            TASKS[kind](pipeline, path, project, spark_conf)


def pipeline_dags(project: Project, **options: Any) -> list[TidemarkDag]:
    """Create the DAGs of a project's valid pipelines. In a task's process, create only that task's DAG.

    Call it in a DAG file. Airflow recognises the file by the words airflow and dag in it.

    Args:
        project: Folders of pipelines, lake and jars.
        options: Further arguments of each `TidemarkDag`.

    Returns:
        The DAGs. Pipelines whose files are not valid have none (`Project.raise_errors` shows why).

    Raises:
        PipelineFileError: `options` are not valid: Airflow creates the DAGs without them.
    """
    parsed_dag_id = get_parsing_context().dag_id
    name, _, kind = (parsed_dag_id or "").rpartition("__")
    if kind in KINDS and (match := _find_by_file_name(project, name)):
        file, pipeline = match
        return [TidemarkDag(file, kind, project=project, pipeline=pipeline, **options)]
    dags, errors = create_dags(project, **options)
    if options and errors and (caused_by_options := sorted(set(errors) - set(create_dags(project)[1]))):
        raise PipelineFileError("\n".join(caused_by_options))
    for dag in dags:
        dag.auto_register = options.get("auto_register", True)
        with dag:  # registers the DAG at its end
            pass
    return dags


def create_dags(project: Project, **options: Any) -> tuple[list[TidemarkDag], list[str]]:
    """Create the DAGs of a project's valid pipelines, without registering them with the current DAG file.

    A DAG that cannot be created stops the DAGs of its pipeline only.

    Args:
        project: Folders of pipelines, lake and jars.
        options: Further arguments of each `TidemarkDag`.

    Returns:
        The DAGs, and one error line per file that has none.
    """
    pipelines, errors = project.pipelines()
    dags: list[TidemarkDag] = []
    for file, pipeline in pipelines.items():
        try:
            dags += _create_pipeline_dags(project, file, pipeline, options)
        except PipelineFileError as error:
            errors.append(str(error))
    return dags, errors


def _create_pipeline_dags(
    project: Project, file: Path, pipeline: Pipeline, options: Mapping[str, Any]
) -> list[TidemarkDag]:
    """Create all DAGs of a pipeline.

    Raises:
        PipelineFileError: One of them cannot be created.
    """
    dags = []
    for kind in (kind for kind in KINDS if has_dag(pipeline, kind)):
        try:
            # Airflow would also register a DAG that lacks tasks after an error.
            unregistered = {**options, "auto_register": False}
            dags.append(TidemarkDag(file, kind, project=project, pipeline=pipeline, **unregistered))
        except PipelineFileError:
            raise
        except Exception as error:  # Airflow raises many kinds
            dag_id = format_dag_id(pipeline.name, kind)
            message = f"{file}: Airflow cannot create the DAG {dag_id}: {error}"
            raise PipelineFileError(to_single_line(message)) from error
    return dags


def _find_by_file_name(project: Project, name: str) -> tuple[Path, Pipeline] | None:
    try:
        return project.find_pipeline(name)
    except PipelineFileError:
        return None


def _load(
    file: Path | str, project: Project | None, pipeline: Pipeline | None = None
) -> tuple[Path, Pipeline, Project]:
    path = Path(file).resolve()
    return path, pipeline or load_pipeline(path), project or Project(path.parent)


def _deadline_options(pipeline: Pipeline, on_deadline: Callable[..., Any] | str | None) -> dict[str, Any]:
    deadline: timedelta | None = pipeline.airflow.deadline
    if deadline is None:
        return {}
    callback = AsyncCallback(on_deadline or log_missed_deadline, {"pipeline": pipeline.name})
    is_from_interval = pipeline.airflow.deadline_from == "interval_end"
    reference = DataIntervalEnd() if is_from_interval else DeadlineReference.DAGRUN_QUEUED_AT
    return {"deadline": DeadlineAlert(reference, deadline, callback)}
