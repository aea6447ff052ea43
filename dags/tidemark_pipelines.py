"""Create the Airflow DAGs of each pipeline file in `include/pipelines`."""

from pathlib import Path

from tidemark.airflow import Project, pipeline_dags

dags = pipeline_dags(Project(Path(__file__).resolve().parents[1]))
