"""Show invalid pipeline files as an import error of Airflow.

Airflow stops every DAG of a file with an import error. The valid pipelines' DAGs are in another file.
"""

from pathlib import Path

from tidemark.airflow import Project

Project(Path(__file__).resolve().parents[1]).raise_errors()
