"""Shows pipeline files that do not validate as an import error of Airflow.

Airflow stops every DAG of a file that has an import error, so it must not be the file of the healthy pipelines' DAGs.
"""

from pathlib import Path

from tidemark.airflow import Project

Project(Path(__file__).resolve().parents[1]).refuse_errors()
