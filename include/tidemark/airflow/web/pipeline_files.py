"""Find the pipelines that Airflow's API server shows.

A name from a request is compared with the names in the pipeline files. It is never part of a path.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from airflow.sdk.configuration import conf

from tidemark.airflow.project import Project, select_owners
from tidemark.config import Pipeline, list_pipeline_files, load_pipeline
from tidemark.errors import PipelineFileError


def open_project() -> Project:
    """Return the project of this Airflow: the folder with the DAGs folder, as in `dags/tidemark_pipelines.py`.

    `lake` and `pipelines` of the section `[tidemark]`, or their environment variables, override its folders.
    """
    return Project(Path(conf.get("core", "dags_folder")).resolve().parent)


def list_pipelines(project: Project) -> list[Pipeline]:
    """List the pipelines with a valid file, by file name; of files with the same name in them, the one with DAGs."""
    pipelines: dict[Path, Pipeline] = {}
    for file in list_pipeline_files(project.pipelines_folder):
        with suppress(PipelineFileError):
            pipelines[file] = load_pipeline(file)
    return list(select_owners(pipelines).values())


def find_pipeline(project: Project, name: str) -> Pipeline | None:
    """Return the pipeline with a name; None if no valid file has it."""
    files = list_pipeline_files(project.pipelines_folder)
    # As in `select_owners`. The file usually has the name of its pipeline, so that no other file is read.
    for file in sorted(files, key=lambda file: file.stem != name):
        with suppress(PipelineFileError):
            pipeline = load_pipeline(file)
            if pipeline.name == name:
                return pipeline
    return None


def name_of_dag(dag_id: str) -> str:
    """Return the name in the id of a pipeline's DAG, NAME__KIND; empty for other ids.

    >>> name_of_dag("flights__weather__slice"), name_of_dag("other")
    ('flights__weather', '')
    """
    return dag_id.rpartition("__")[0]
