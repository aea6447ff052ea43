"""Create Airflow DAGs, task groups and operators from pipeline files.

A complete DAG file::

    from pathlib import Path
    from tidemark.airflow import TidemarkDag

    dag = TidemarkDag(Path(__file__).with_name("orders.yaml"))

Needs `pip install tidemark[airflow]`. Importing it starts no Spark and opens no table.
"""

from tidemark.airflow.assets import partition_asset, slices_asset
from tidemark.airflow.dags import TidemarkDag, TidemarkTaskGroup, pipeline_dags
from tidemark.airflow.operators import ReportSlices, RunSlices, VacuumTables, VerifyTables, WaitForInputs
from tidemark.airflow.project import Project
from tidemark.airflow.table_watcher import CheckpointBatches, TableVersions, watch_checkpoint, watch_tables
from tidemark.airflow.triggers import InputsComplete
from tidemark.airflow_provider.deadlines import DataIntervalEnd

__all__ = [
    "CheckpointBatches",
    "DataIntervalEnd",
    "InputsComplete",
    "Project",
    "ReportSlices",
    "RunSlices",
    "TableVersions",
    "TidemarkDag",
    "TidemarkTaskGroup",
    "VacuumTables",
    "VerifyTables",
    "WaitForInputs",
    "partition_asset",
    "pipeline_dags",
    "slices_asset",
    "watch_checkpoint",
    "watch_tables",
]
