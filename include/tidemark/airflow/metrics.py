"""Send metrics of slices through Airflow's own backend: StatsD, OpenTelemetry or Datadog.

Each metric is sent twice: with the pipeline as suffix, since StatsD has no tags, and with the tag `pipeline`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from airflow.sdk.configuration import conf
from airflow.sdk.observability.stats import gauge, incr, timing

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES

_LOG = logging.getLogger(__name__)
_PREFIX = "tidemark"
_BACKEND_SETTINGS = ("statsd_on", "otel_on", "statsd_datadog_enabled")
"""Settings of Airflow; metrics are sent if one is on."""


def send_commit_metrics(commits: Mapping[str, Any]) -> None:
    """Send the counts of a run's commits (`status_queries.summarize_commits_since`)."""
    pipeline = commits["pipeline"]
    if commits["slices"]:
        _send(timing, "slice.duration", 1000 * commits["seconds"] / commits["slices"], pipeline)
    _send(incr, "slices", commits["slices"], pipeline)
    _send(incr, "emissions", commits["emissions"] + commits["released"], pipeline)
    for side in SIDES:
        for name in ("read", "late", "rejected"):
            _send(incr, f"rows.{name}.{side}", commits[side][name], pipeline)
    for result, slices in commits["quality"].items():
        _send(incr, f"quality.{result}", slices, pipeline)


def send_uncommitted_slices(pipeline: Pipeline, lake: str) -> None:
    """Send how many slices have ended and are not committed."""
    if _is_enabled():
        from tidemark.airflow.status_queries import count_uncommitted_slices  # noqa: PLC0415 - opens tables

        with _log_errors(pipeline):
            slices = count_uncommitted_slices(pipeline, lake, datetime.now(UTC))
            _send(gauge, "uncommitted_slices", slices, pipeline.name)


def send_agreement_metrics(pipeline: Pipeline, lake: str) -> None:
    """Send how many rows of all compared slices equal the stream's, and how many differ, by kind."""
    if _is_enabled():
        from tidemark.airflow.status_queries import count_agreement  # noqa: PLC0415 - opens tables

        with _log_errors(pipeline):
            for name, rows in count_agreement(pipeline, lake).items():
                _send(gauge, f"agreement.{name}", rows, pipeline.name)


@contextmanager
def _log_errors(pipeline: Pipeline) -> Iterator[None]:
    """Log an error of the tables instead of raising it: metrics must not fail a task, or replace its own error."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the storage raises many kinds
        _LOG.warning("metrics of %s were not sent: %s", pipeline.name, error)


def _is_enabled() -> bool:
    return any(conf.getboolean("metrics", name, fallback=False) for name in _BACKEND_SETTINGS)


def _send(send: Callable[..., None], name: str, value: float, pipeline: str) -> None:
    send(f"{_PREFIX}.{name}.{pipeline}", value)
    send(f"{_PREFIX}.{name}", value, tags={"pipeline": pipeline})
