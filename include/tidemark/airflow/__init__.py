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
from tidemark.airflow.triggers import InputsComplete

__all__ = [
    "InputsComplete",
    "Project",
    "ReportSlices",
    "RunSlices",
    "TidemarkDag",
    "TidemarkTaskGroup",
    "VacuumTables",
    "VerifyTables",
    "WaitForInputs",
    "partition_asset",
    "pipeline_dags",
    "slices_asset",
]
