"""Answer requests that fail with a page that names the reason, and the status code."""

from __future__ import annotations

import logging

from fastapi import Request, Response, status
from starlette.exceptions import HTTPException

from tidemark.airflow.web.rendering import render_page

_LOG = logging.getLogger(__name__)
_TITLES = {401: "Log in to Airflow first", 403: "No permission", 404: "Not found"}


def show_http_error(request: Request, error: Exception) -> Response:
    """Answer an error with a status code of its own, such as a missing permission."""
    assert isinstance(error, HTTPException), "the registered class"
    return _show(request, error.status_code, _TITLES.get(error.status_code, "Not possible"), str(error.detail))


def show_invalid_request(request: Request, _: Exception) -> Response:
    """Answer a request with an invalid parameter."""
    message = "A parameter in the address is not valid. Start at the list of pipelines."
    return _show(request, status.HTTP_400_BAD_REQUEST, "Not possible", message)


def show_user_error(request: Request, error: Exception) -> Response:
    """Answer a request for tables that are not valid."""
    return _show(request, status.HTTP_500_INTERNAL_SERVER_ERROR, "The tables cannot be shown", str(error))


def show_unreadable_table(request: Request, error: Exception) -> Response:
    """Answer a request for tables that cannot be read; the reason is logged only, since it may have addresses."""
    _LOG.error("slices could not be shown", exc_info=error)
    message = "The API server cannot read the tables. The reason is in its log, after 'slices could not be shown'."
    return _show(request, status.HTTP_500_INTERNAL_SERVER_ERROR, "The tables cannot be read", message)


def _show(request: Request, code: int, title: str, message: str) -> Response:
    return render_page(request, "error", code, title=title, message=message)
