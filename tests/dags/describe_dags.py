"""Print the DAGs that Airflow creates from the project's DAG files, as JSON in the last line.

The script runs in another process, because it also prints the modules that the DAG files import.
"""

import json
import os
import sys
from copy import deepcopy
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

from airflow.dag_processing.dagbag import BundleDagBag
from airflow.listeners.listener import get_listener_manager
from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID
from airflow.sdk.exceptions import AirflowException, ParamValidationError
from airflow.sdk.execution_time.supervisor import block_orm_access
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import TimeRestriction

from tidemark.airflow import Project, pipeline_dags

DAYS = {"from": "2013-01-01T00:00Z", "to": "2013-01-02T00:00:00Z"}
PLANNED = SimpleNamespace(xcom_pull=lambda **_: {"plan": DAYS, "markdown": "| 1 slice |"})
"""Task instance of a repair whose plan is a day."""


def generate_intervals(dag):
    """Yield the data intervals of the scheduler's runs, without an end."""
    timetable = coerce_to_core_timetable(dag.timetable)
    restriction = TimeRestriction(earliest=dag.start_date, latest=None, catchup=dag.catchup)
    last = None
    while run := timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction):
        last = run.data_interval
        yield last


def render_command(dag, task):
    """Render the spark-submit command of a run for the DAG's first interval."""
    context = {"params": DAYS | {name: value for name, value in dag.params.dump().items() if value is not None}}
    if dag.start_date:
        context |= dict(zip(("data_interval_start", "data_interval_end"), next(generate_intervals(dag)), strict=True))
    task.render_template_fields(context)
    hook = task._get_hook()
    rendered = {field: getattr(task, field) for field in task.template_fields}
    return {"command": hook._build_spark_submit_command(task.application), "env": hook._env, "rendered": rendered}


def get_refusal(params, values):
    """Return the message with which Airflow refuses parameters, None if it accepts them."""
    try:
        params.update(values)
    except ParamValidationError as error:
        return str(error).splitlines()[0]
    return None


def get_outcome(task, exit_code):
    """Execute a task with a job that ends with an exit code; return its result, or the exception's class and text."""
    job = Path(os.environ["AIRFLOW_HOME"], f"exit-{exit_code}")
    job.write_text(f"#!/bin/sh\necho tidemark: the reason >&2\nexit {exit_code}\n")
    job.chmod(0o755)
    task._hook, task._spark_binary = None, str(job)
    try:
        return task.execute({})
    except AirflowException as error:
        return [type(error).__name__, str(error)]


def get_submit_task(dag):
    """Return the task that submits a job; of a repair, the one that runs slices."""
    tasks = {task.task_id: task for task in dag.tasks if hasattr(task, "application")}
    return next((tasks[name] for name in ("run", "reprocess") if name in tasks), next(iter(tasks.values())))


def describe_approval(dag):
    """Return the form of the task that a person answers; none for a DAG without one."""
    task = next((task for task in dag.tasks if task.task_id == "approve"), None)
    if task is None:
        return None
    task.render_template_fields({"ti": PLANNED})
    fields = {name: getattr(task, name) for name in ("options", "defaults", "assigned_users", "body")}
    return fields | {"response_timeout": task.response_timeout and task.response_timeout.total_seconds()}


def render_comparison(dag):
    """Return the arguments of the comparison after a repair; none for a DAG without one."""
    task = next((task for task in dag.tasks if task.task_id == "compare"), None)
    if task is None or len(dag.tasks) == 1:
        return None
    task.render_template_fields({"ti": PLANNED})
    return task.application_args


def describe(dag):
    """Return the properties of a DAG and of its tasks."""
    task, report = get_submit_task(dag), next((task for task in dag.tasks if task.task_id == "report"), None)
    after = coerce_to_core_timetable(dag.timetable).asset_condition.iter_assets()
    intervals = islice(generate_intervals(dag), 3) if dag.start_date else ()
    return {
        "intervals": [[start.isoformat(), end.isoformat()] for start, end in intervals],
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
        "deadline": [str(deadline.interval) for deadline in dag.deadline or ()],
        "params": dag.params.dump(),
        "allowed_run_types": sorted(dag.allowed_run_types or ()),
        "tags": sorted(dag.tags),
        "publishes": [asset.name for asset in (report.outlets if report else ())],
        "after": sorted(key.name for key, _ in after),
        "doc": dag.doc_md,
        "approve": describe_approval(dag),
        "compare": render_comparison(dag),
        **render_command(dag, task),
    }


def describe_task_process(dag_id):
    """Return the DAGs that the process of a DAG's task creates, and the pipeline files that it reads."""
    files, original = [], Path.open
    os.environ[_AIRFLOW_PARSING_CONTEXT_DAG_ID] = dag_id

    def open_and_record(path, *arguments, **options):
        if path.suffix == ".yaml":
            files.append(path.name)
        return original(path, *arguments, **options)

    Path.open = open_and_record
    try:
        return {"dags": [dag.dag_id for dag in pipeline_dags(Project(folder.parent))], "files": sorted(set(files))}
    finally:
        Path.open = original


# The DAG processor loads plugins when it starts. Then it hides the database in each fork that parses a file.
get_listener_manager()
block_orm_access()
folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")
result = {"imported": sorted(sys.modules), "errors": bag.import_errors}
match sys.argv[1:]:
    case ["outcomes", dag_id, *codes]:
        result["outcomes"] = {code: get_outcome(get_submit_task(bag.dags[dag_id]), code) for code in codes}
    case ["refusals", dag_id, *ranges]:
        result["refusals"] = [get_refusal(deepcopy(bag.dags[dag_id].params), json.loads(values)) for values in ranges]
    case ["task-process", dag_id]:
        result |= describe_task_process(dag_id)
    case ["example"]:
        slices = {dag_id: dag for dag_id, dag in bag.dags.items() if dag_id.endswith("__slice")}
        result["publishes"] = {
            name: [asset.name for asset in slices[name].get_task("report").outlets] for name in slices
        }
        result["reads"] = {name: [asset.name for asset in slices[name].get_task("wait").inlets] for name in slices}
        result["consumers"] = sorted(dag_id for dag_id in bag.dags if dag_id.endswith("__daily_example"))
    case _:
        result["dags"] = {dag_id: describe(dag) for dag_id, dag in bag.dags.items()}
sys.stdout.write(json.dumps(result))
