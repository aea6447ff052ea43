"""Serve the pages: the pipelines, the slices of one as a grid, and one slice.

Every route requires a login of Airflow, also paths that do not exist. All routes are read-only. This module is
imported at the first request in each worker of the API server, because delta-rs does not survive `fork`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import quote

import pyarrow as pa
from airflow.api_fastapi.core_api.security import requires_access_dag
from deltalake.exceptions import DeltaError
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from tidemark.airflow.web.access import LOGGED_IN, ProjectDep, ReadablePipelineDep, ReadablePipelinesDep
from tidemark.airflow.web.error_pages import (
    show_http_error,
    show_invalid_request,
    show_unreadable_table,
    show_user_error,
)
from tidemark.airflow.web.overview import count_ended, count_states, list_attention, summarize_pipeline
from tidemark.airflow.web.pipeline_files import find_pipeline, name_of_dag
from tidemark.airflow.web.rendering import read_template, render_page
from tidemark.airflow.web.slice_detail import read_slice
from tidemark.airflow.web.slice_grid import build_page, find_end
from tidemark.airflow.web.slice_states import SliceStates
from tidemark.config.types import format_duration, parse_instant
from tidemark.errors import SliceOrderError, UserError

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_ALL_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
Measure = Literal["state", "late", "match"]
"""Quantity that the cells of a grid show."""
_states = SliceStates()


def create_app() -> FastAPI:
    """Create the application that Airflow mounts. It has no pages about its schema, which would need no login."""
    app = FastAPI(title="Tidemark", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[LOGGED_IN])
    app.middleware("http")(_add_headers)
    app.get("/")(show_pipelines)
    app.get("/pipelines/{name}")(show_slices)
    app.get("/pipelines/{name}/slices/{start}")(show_slice)
    app.get("/dags/{dag_id}")(show_dag)
    app.get("/slices.css")(get_style)
    app.get("/{name}.js")(get_script)
    # A path without a route would be answered without a login.
    app.api_route("/{path:path}", methods=_ALL_METHODS)(refuse)
    app.exception_handler(StarletteHTTPException)(show_http_error)
    app.exception_handler(RequestValidationError)(show_invalid_request)
    app.exception_handler(UserError)(show_user_error)
    for kind in (DeltaError, pa.ArrowException, OSError):
        app.exception_handler(kind)(show_unreadable_table)
    return app


def show_pipelines(request: Request, pipelines: ReadablePipelinesDep, project: ProjectDep) -> Response:
    """Show the pipelines that the user may read."""
    now = datetime.now(UTC)
    overviews = [summarize_pipeline(_states, pipeline, project.lake, now) for pipeline in pipelines]
    return render_page(request, "pipelines", pipelines=overviews)


def show_slices(
    request: Request,
    pipeline: ReadablePipelineDep,
    project: ProjectDep,
    show: Measure = "state",
    page: Annotated[str | None, Query(max_length=20)] = None,
) -> Response:
    """Show the slices of a pipeline as a grid."""
    slices, ended = _states.read(pipeline, project.lake), count_ended(pipeline, datetime.now(UTC))
    grid_page = build_page(slices, ended, page)
    if grid_page is None and page is not None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"{pipeline.name} has no slices in {page}.")
    settings = pipeline.slices
    return render_page(
        request,
        "slices",
        slices=slices,
        length=format_duration(settings.every) if settings.time_zone == "UTC" else f"1 day of {settings.time_zone}",
        counts=count_states(slices, ended),
        attention=list(list_attention(slices, ended)),
        page=grid_page,
        show=show,
    )


def show_slice(request: Request, pipeline: ReadablePipelineDep, project: ProjectDep, start: str) -> Response:
    """Show one slice."""
    slices = _states.read(pipeline, project.lake)
    end = find_end(slices, count_ended(pipeline, datetime.now(UTC)))
    try:
        number = slices.grid.parse_boundary(parse_instant(start), "slice")
    except (SliceOrderError, ValueError):
        number = end
    if number >= end:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"{pipeline.name} has no slice that starts at {start}.")
    return render_page(request, "slice", pipeline=pipeline.name, slice=read_slice(slices, project.lake, number, end))


def show_dag(
    request: Request, dag_id: str, project: ProjectDep, _: Annotated[None, Depends(requires_access_dag("GET"))]
) -> Response:
    """Redirect to the pipeline of a DAG. Airflow shows the tab on all DAGs, also on those without a pipeline."""
    name = name_of_dag(dag_id)
    if not name or find_pipeline(project, name) is None:
        return render_page(
            request, "error", title="No slices", message=f"{dag_id} is not a DAG of a Tidemark pipeline."
        )
    return RedirectResponse(f"{request.scope['root_path']}/pipelines/{quote(name, safe='')}")


def get_style() -> Response:
    """Return the style sheet."""
    return Response(read_template("slices.css.j2"), media_type="text/css")


def get_script(name: Literal["grid", "links"]) -> Response:
    """Return the script that moves between slices by the arrow keys, or that follows links to pages of Airflow."""
    return Response(read_template(f"{name}.js"), media_type="text/javascript")


def refuse() -> None:
    """Answer requests of logged-in users for paths and methods that do not exist with 404."""
    raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such page. Start at the list of pipelines.")


async def _add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers.update(_HEADERS)
    return response
