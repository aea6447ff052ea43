"""Run DAGs by `dag.test()`, then let Airflow's scheduler create runs of DAGs whose partitions are there, and run those.

Argument: JSON list of DAG id, logical date and pattern of the tasks that do not run but succeed. The last line is JSON:
the states, all events of assets, the stored progress of assets, and the runs that a partition started.
"""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from airflow.dag_processing.dagbag import BundleDagBag
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.asset_state_store import AssetStateStoreModel
from airflow.models.dagrun import DagRun
from airflow.sdk import DagRunState
from airflow.sdk.definitions.dag import _run_task
from airflow.utils.session import create_session
from sqlalchemy import select

folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")
states = [
    bag.dags[dag_id].test(logical_date=datetime.fromisoformat(date), mark_success_pattern=pattern).state
    for dag_id, date, pattern in json.loads(sys.argv[1])
]
with create_session() as session:
    SchedulerJobRunner(Job())._create_dagruns_for_partitioned_asset_dags(session)
# The tasks' requests close this thread's session, so this one is another.
with create_session(scoped=False) as session:
    for run in session.scalars(select(DagRun).where(DagRun.state == DagRunState.QUEUED)).all():
        run.state, run.start_date = DagRunState.SUCCESS, datetime.now(UTC)  # Airflow cannot list events of runs without
        for task_instance in run.task_instances:
            task_instance.try_number += 1
            session.commit()
            _run_task(ti=task_instance, task=bag.dags[run.dag_id].get_task(task_instance.task_id))
with create_session() as session:
    columns = (AssetModel.name, AssetModel.uri, AssetModel.group, AssetEvent.partition_key)
    events = session.execute(select(*columns).join(AssetEvent, AssetEvent.asset_id == AssetModel.id))
    stored = session.execute(
        select(AssetModel.name, AssetStateStoreModel.key, AssetStateStoreModel.value).join(
            AssetStateStoreModel, AssetStateStoreModel.asset_id == AssetModel.id
        )
    )
    partitioned = select(DagRun).where(DagRun.partition_key.is_not(None))
    runs = [(run.dag_id, run.partition_key, run.partition_date) for run in session.scalars(partitioned)]
    result = {
        "states": states,
        "events": [list(event) for event in events],
        "runs": sorted([dag_id, key, day and day.isoformat()] for dag_id, key, day in runs),
        "stored": [list(row) for row in stored],
    }
sys.stdout.write("\n" + json.dumps(result))
