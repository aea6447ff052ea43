"""Prints what Airflow makes of the project's DAG files, as JSON in the last line.

Run in a process of its own: what an import pulls in can be seen only where nothing was imported before.
"""

import json
import os
import sys
from copy import deepcopy
from itertools import islice
from pathlib import Path

from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID
from airflow.sdk.exceptions import AirflowException, ParamValidationError
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import TimeRestriction

from tidemark.airflow import Project, pipeline_dags


def intervals(dag):
    """The data intervals that the scheduler would give, for ever."""
    timetable = coerce_to_core_timetable(dag.timetable)
    restriction = TimeRestriction(earliest=dag.start_date, latest=None, catchup=dag.catchup)
    last = None
    while run := timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction):
        last = run.data_interval
        yield last


def command(dag, task):
    """The spark-submit command of a run, rendered for the DAG's first interval."""
    days = {"from": "2013-01-01T00:00Z", "to": "2013-01-02T00:00:00Z"}
    context = {"params": days | {name: value for name, value in dag.params.dump().items() if value is not None}}
    if dag.start_date:
        context |= dict(zip(("data_interval_start", "data_interval_end"), next(intervals(dag)), strict=True))
    task.render_template_fields(context)
    hook = task._get_hook()
    shown = {field: getattr(task, field) for field in task.template_fields}
    return {"command": hook._build_spark_submit_command(task.application), "env": hook._env, "shown": shown}


def refusal(params, values):
    """The message with which Airflow refuses parameters, if it does."""
    try:
        params.update(values)
    except ParamValidationError as error:
        return str(error).splitlines()[0]
    return None


def outcome(task, exit_code):
    """The class of the exception that a job's exit code raises, and its message; else what goes to XCom."""
    fake = Path(os.environ["AIRFLOW_HOME"], f"exit-{exit_code}")
    fake.write_text(f"#!/bin/sh\necho tidemark: the reason >&2\nexit {exit_code}\n")
    fake.chmod(0o755)
    task._hook, task._spark_binary = None, str(fake)
    try:
        return task.execute({})
    except AirflowException as error:
        return [type(error).__name__, str(error)]


def run_of(dag):
    """The task that submits a job."""
    (task,) = (task for task in dag.tasks if hasattr(task, "application"))
    return task


def describe(dag):
    task, report = run_of(dag), next((task for task in dag.tasks if task.task_id == "report"), None)
    after = coerce_to_core_timetable(dag.timetable).asset_condition.iter_assets()
    first = islice(intervals(dag), 3) if dag.start_date else ()
    return {
        "intervals": [[start.isoformat(), end.isoformat()] for start, end in first],
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "max_consecutive_failed_dag_runs": dag.max_consecutive_failed_dag_runs,
        "depends_on_past": task.depends_on_past,
        "retries": task.retries,
        "end_date": dag.end_date and dag.end_date.isoformat(),
        "tasks": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
        "reads": sorted(asset.name for asset in task.inlets),
        "owner": task.owner,
        "pool": task.pool,
        "conf": task.conf,
        "execution_timeout": task.execution_timeout and task.execution_timeout.total_seconds(),
        "deadline": [str(one.interval) for one in dag.deadline or ()],
        "params": dag.params.dump(),
        "allowed_run_types": sorted(dag.allowed_run_types or ()),
        "tags": sorted(dag.tags),
        "publishes": [asset.name for asset in (report.outlets if report else ())],
        "after": sorted(key.name for key, _ in after),
        "doc": dag.doc_md,
        **command(dag, task),
    }


def only(dag_id):
    """What a task's process builds, and the pipeline files that it reads."""
    read, original = [], Path.open
    os.environ[_AIRFLOW_PARSING_CONTEXT_DAG_ID] = dag_id

    def note(path, *arguments, **options):
        if path.suffix == ".yaml":
            read.append(path.name)
        return original(path, *arguments, **options)

    Path.open = note
    try:
        return {"built": [dag.dag_id for dag in pipeline_dags(Project(folder.parent))], "read": sorted(set(read))}
    finally:
        Path.open = original


folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")
answer = {"imported": sorted(sys.modules), "errors": bag.import_errors}
match sys.argv[1:]:
    case ["outcomes", dag_id, *codes]:
        answer["outcomes"] = {code: outcome(run_of(bag.dags[dag_id]), code) for code in codes}
    case ["refusals", dag_id, *ranges]:
        answer["refusals"] = [refusal(deepcopy(bag.dags[dag_id].params), json.loads(values)) for values in ranges]
    case ["only", dag_id]:
        answer |= only(dag_id)
    case _:
        answer["dags"] = {dag_id: describe(dag) for dag_id, dag in bag.dags.items()}
sys.stdout.write(json.dumps(answer))
