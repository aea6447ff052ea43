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
from airflow.sdk.exceptions import AirflowException, ParamValidationError
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import TimeRestriction


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
    context = {"params": {**dag.params.dump(), "to": "2013-01-02T00:00:00Z"}}
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


def describe(dag):
    (task,) = dag.tasks
    after = coerce_to_core_timetable(dag.timetable).asset_condition.iter_assets()
    first = islice(intervals(dag), 3) if dag.start_date else ()
    return {
        "intervals": [[start.isoformat(), end.isoformat()] for start, end in first],
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "max_consecutive_failed_dag_runs": dag.max_consecutive_failed_dag_runs,
        "depends_on_past": task.depends_on_past,
        "retries": task.retries,
        "tags": sorted(dag.tags),
        "publishes": [asset.name for asset in task.outlets],
        "after": sorted(key.name for key, _ in after),
        "doc": dag.doc_md,
        **command(dag, task),
    }


folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")
answer = {"imported": sorted(sys.modules), "errors": bag.import_errors}
match sys.argv[1:]:
    case ["outcomes", dag_id, *codes]:
        answer["outcomes"] = {code: outcome(bag.dags[dag_id].tasks[0], code) for code in codes}
    case ["refusals", dag_id, *ranges]:
        answer["refusals"] = [refusal(deepcopy(bag.dags[dag_id].params), json.loads(values)) for values in ranges]
    case _:
        answer["dags"] = {dag_id: describe(dag) for dag_id, dag in bag.dags.items()}
sys.stdout.write(json.dumps(answer))
