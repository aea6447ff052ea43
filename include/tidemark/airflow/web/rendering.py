"""Render the pages from templates. Values are escaped, since tables and files may have any text."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from tidemark.airflow_provider.settings import PAGES_PATH
from tidemark.formatting import format_count, format_span
from tidemark.report.narrative import format_share
from tidemark.report.render import create_environment

STATE_MARKS = {
    "rejected": "×",  # noqa: RUF001 - a multiplication sign
    "stale": "↻",
    "quarantined": "q",
    "waived": "w",
    "warned": "!",
    "released": "r",
    "adopted": "a",
    "committed": "",
    "due": "",
    "skipped": "-",
}
"""Character in the cell of a slice by its state, so that color is not the only difference."""
STATE_MEANINGS = {
    "rejected": "the newest run failed an expectation and was not published",
    "stale": "must run again, because an earlier slice or a setting has changed",
    "quarantined": "published without rows that fail an expectation",
    "waived": "published although an expectation failed",
    "warned": "published with a warning",
    "released": "published, with rows that were in quarantine",
    "adopted": "output is in another table",
    "committed": "published",
    "due": "ended, not committed",
    "skipped": "not run, and a later slice began without it",
}
"""Meaning of each state."""
MATCH_MARKS = {"unexplained": "≠", "pending": "…", "explained": "~", "equal": "=", "recomputed": "?"}
"""Character in the cell of a slice by its match with the stream."""
MATCH_MEANINGS = {
    "unexplained": "rows differ without a cause",
    "pending": "rows of the stream are still to come",
    "explained": "rows differ, all with a known cause",
    "equal": "all rows are equal",
    "recomputed": "the slice ran again after its comparison",
}
"""Meaning of each match."""
LATE_LIMITS = (0.0, 0.001, 0.01, 0.05, 0.2)
"""Shares of late rows (inclusive) up to which a cell has the step 0 to 4; larger shares have step 5."""


def render_page(request: Request, template: str, code: int = 200, **values: Any) -> Response:
    """Render a page.

    Args:
        request: The request, whose mount point all links begin with.
        template: Name of the template.
        code: Status code of the response.
        values: Values of the template.
    """
    root = request.scope["root_path"]
    helpers = {
        "root": root,
        "airflow": root.removesuffix(f"/{PAGES_PATH}"),
        "format_count": format_count,
        "format_span": format_span,
        "format_share": format_share,
        "late_step": get_late_step,
        "state_marks": STATE_MARKS,
        "state_meanings": STATE_MEANINGS,
        "match_marks": MATCH_MARKS,
        "match_meanings": MATCH_MEANINGS,
    }
    template_ = create_environment(__package__).get_template(f"{template}.html.j2")
    return HTMLResponse(template_.render(**helpers, **values), code)


def read_template(name: str) -> str:
    """Return the text of a style sheet or script."""
    return create_environment(__package__).get_template(name).render()


def get_late_step(share: float | None) -> int | None:
    """Return the step of a share of late rows, 0 to 5; None without a share.

    >>> [get_late_step(share) for share in (None, 0.0, 0.0005, 0.2, 0.5)]
    [None, 0, 1, 4, 5]
    """
    return None if share is None else sum(share > limit for limit in LATE_LIMITS)
