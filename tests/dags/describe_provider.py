"""Print how Airflow knows the provider, a deadline, links, and the watchers of a DAG, as JSON in the last line.

The pipeline `clicked_views` has a deadline after its data interval, and watches its inputs.
"""

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from airflow import plugins_manager
from airflow.configuration import conf
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.models.asset import AssetDagRunQueue
from airflow.models.deadline import Deadline
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.trigger import Trigger
from airflow.models.xcom import XComModel
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DagRunState
from airflow.sdk.definitions.dag import _run_task
from airflow.sdk.module_loading import import_string
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from deltalake import write_deltalake
from sqlalchemy import select

NAME = "clicked_views"


def describe_provider():
    """Return what Airflow reads of the provider's description."""
    manager = ProvidersManager()
    info = manager.providers["tidemark"]
    return {
        "version": info.version,
        "links": [name for name in manager.extra_links_class_names if "tidemark" in name],
        "plugins": [plugin.plugin_class for plugin in manager.plugins if plugin.provider_name == "tidemark"],
        "deadlines": [name for name in plugins_manager.get_deadline_references_plugins() if "tidemark" in name],
        "modules": [
            name for kind in ("operators", "triggers") for part in info.data[kind] for name in part["python-modules"]
        ],
        "lake_url": conf.get("tidemark", "lake_url"),
        "spark_history_url": conf.get("tidemark", "spark_history_url"),
    }


def append_click():
    """Commit a row to the left input."""
    row = {"user": ["z"], "at": pa.array([datetime(2013, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))}
    write_deltalake(Path(os.environ["TIDEMARK_LAKE"], "clicks"), pa.table(row), mode="append")


async def wait_for_rows(trigger):
    """Return the trigger's event after a commit of rows to its table."""
    events = trigger.run()
    waiting = asyncio.create_task(anext(events))
    done, _ = await asyncio.wait([waiting], timeout=3)
    assert not done, "rows that are there already are no event"
    append_click()
    return await asyncio.wait_for(waiting, 60)


folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")
assert not bag.import_errors, bag.import_errors
DagBundlesManager().sync_bundles_to_db()
sync_bag_to_db(bag, "dags-folder", None)
# `dag.test` creates no deadlines.
with create_session(scoped=False) as session:
    stored_dag = SerializedDagModel.get_dag(f"{NAME}__slice", session=session)
    start, end = (datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (0, 1))
    run = stored_dag.create_dagrun(
        run_id="scheduled__first",
        logical_date=start,
        data_interval=(start, end),
        run_after=end,
        start_date=end,
        run_type=DagRunType.SCHEDULED,
        triggered_by=DagRunTriggeredByType.TEST,
        state=DagRunState.RUNNING,
        session=session,
    )
    session.commit()
    report = run.get_task_instance("report", session=session)
    report.try_number += 1
    session.commit()
    _run_task(ti=report, task=bag.dags[f"{NAME}__slice"].get_task("report"))
result = describe_provider()
with create_session() as session:
    result["deadlines_of_run"] = [time.isoformat() for time in session.scalars(select(Deadline.deadline_time))]
    rows = session.execute(
        select(XComModel.task_id, XComModel.key, XComModel.value).where(XComModel.key.like("_link%"))
    )
    result["stored_links"] = [list(row) for row in rows]
    result["links_of_run"] = sorted(stored_dag.get_task("run").extra_links)
    triggers = {trigger.kwargs["table"]: trigger for trigger in session.scalars(select(Trigger))}
    result["watched"] = sorted(triggers)
    clicks = triggers["clicks"]
    event = asyncio.run(wait_for_rows(import_string(clicks.classpath)(**clicks.kwargs)))
    Trigger.submit_event(clicks.id, event, session=session)
    session.flush()
    result["payload"] = event.payload
    result["queued"] = list(session.scalars(select(AssetDagRunQueue.target_dag_id)))
sys.stdout.write("\n" + json.dumps(result))
