"""The DAGs of each pipeline file: by slices, by ranges, again, and compared with a stream where the file says so."""

from pathlib import Path

from tidemark.airflow import Project, pipeline_dags

dags = pipeline_dags(Project(Path(__file__).resolve().parents[1]))
