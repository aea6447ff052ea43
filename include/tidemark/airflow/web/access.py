"""Let Airflow's auth manager decide who may read the slices of a pipeline.

Airflow does not protect the routes of plugins, so each route depends on a function of this module.
"""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from fastapi import Depends, HTTPException, Request, status

from tidemark.airflow.dag_kinds import format_dag_id
from tidemark.airflow.project import Project
from tidemark.airflow.web.pipeline_files import find_pipeline, list_pipelines, open_project
from tidemark.config import Pipeline

NOT_FOUND = "There is no such page. Start at the list of pipelines."
LOGGED_IN = Depends(get_user)
"""Dependency of all routes: the request has a valid token of Airflow, in a cookie or a header."""
ProjectDep = Annotated[Project, Depends(open_project)]


def get_readable_pipeline(name: str, request: Request, user: GetUserDep, project: ProjectDep) -> Pipeline:
    """Return the pipeline of a path if the user may read its DAG NAME__slice.

    The answer is 403 without permission, and 404 if there is no such pipeline. Permission is checked first, so that
    the answer does not show which pipelines exist.
    """
    requires_access_dag("GET", param_dag_id=format_dag_id(name, "slice"))(request, user)
    pipeline = find_pipeline(project, name)
    if pipeline is None:
        raise HTTPException(
            status.HTTP_404_NOT_FOUND,
            f"There is no valid pipeline file of {name} in the pipelines folder of the API server. Set "
            "TIDEMARK_PIPELINES for the API server to the folder that the DAGs use.",
        )
    return pipeline


def list_readable_pipelines(request: Request, user: GetUserDep, project: ProjectDep) -> list[Pipeline]:
    """Return the pipelines whose DAG NAME__slice the user may read."""
    return [pipeline for pipeline in list_pipelines(project) if _can_read(pipeline, request, user)]


ReadablePipelineDep = Annotated[Pipeline, Depends(get_readable_pipeline)]
ReadablePipelinesDep = Annotated[list[Pipeline], Depends(list_readable_pipelines)]


def _can_read(pipeline: Pipeline, request: Request, user: GetUserDep) -> bool:
    try:
        requires_access_dag("GET", param_dag_id=format_dag_id(pipeline.name, "slice"))(request, user)
    except HTTPException as error:
        if error.status_code != status.HTTP_403_FORBIDDEN:
            raise
        return False
    return True
