"""Run a DAG by `dag.test()` and print its run, with the states of its tasks, as JSON in the last line.

Arguments: DAG id, logical date or `-`, configuration as JSON.
"""

import json
import os
import sys
from datetime import datetime
from pathlib import Path

from airflow.dag_processing.dagbag import BundleDagBag

dag_id, date, conf = sys.argv[1:]
folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
dag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder").dags[dag_id]
options = {} if date == "-" else {"logical_date": datetime.fromisoformat(date)}
run = dag.test(run_conf=json.loads(conf), **options)
interval = [run.data_interval_start, run.data_interval_end]
result = {
    "state": run.state,
    "interval": None if date == "-" else [instant.isoformat() for instant in interval],
    "tasks": {task_instance.task_id: task_instance.state for task_instance in run.get_task_instances()},
}
sys.stdout.write("\n" + json.dumps(result))
