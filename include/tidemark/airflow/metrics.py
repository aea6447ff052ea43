"""What monitoring is told of slices, by Airflow's own metrics: StatsD, OpenTelemetry or Datadog, as Airflow is set.

Each has the pipeline behind its name, for StatsD, which has no tags, and once more without it and tagged `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from airflow.sdk.configuration import conf
from airflow.sdk.observability.stats import gauge, incr, timing

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.errors import UserError

_PREFIX = "tidemark"
_WAYS = ("statsd_on", "otel_on", "statsd_datadog_enabled")
"""Airflow's settings of which one says that somebody listens."""


def tell_committed(found: Mapping[str, Any]) -> None:
    """Tell what a run has committed (`look.committed_since`)."""
    pipeline = found["pipeline"]
    _tell(timing, "slice.duration", 1000 * found["seconds"] / found["slices"], pipeline)
    _tell(incr, "slices", found["slices"], pipeline)
    _tell(incr, "emissions", found["emissions"], pipeline)
    for side in SIDES:
        for name in ("read", "late", "rejected"):
            _tell(incr, f"rows.{name}.{side}", found[side][name], pipeline)
    for verdict, slices in found["quality"].items():
        _tell(incr, f"quality.{verdict}", slices, pipeline)


def tell_behind(pipeline: Pipeline, lake: str) -> None:
    """Tell how many slices have ended and are not committed; what is wrong with the tables others tell."""
    if _is_wanted():
        from tidemark.airflow.status_queries import slices_behind  # noqa: PLC0415 - opens tables

        with suppress(UserError):
            _tell(gauge, "behind", slices_behind(pipeline, lake, datetime.now(UTC)), pipeline.name)


def tell_agreement(pipeline: Pipeline, lake: str) -> None:
    """Tell how many rows of all slices compared are the stream's, and how many differ, by kind."""
    if _is_wanted():
        from tidemark.airflow.status_queries import agreed  # noqa: PLC0415 - opens tables

        with suppress(UserError):
            for name, rows in agreed(pipeline, lake).items():
                _tell(gauge, f"agreement.{name}", rows, pipeline.name)


def _is_wanted() -> bool:
    return any(conf.getboolean("metrics", name, fallback=False) for name in _WAYS)


def _tell(how: Callable[..., None], name: str, value: float, pipeline: str) -> None:
    how(f"{_PREFIX}.{name}.{pipeline}", value)
    how(f"{_PREFIX}.{name}", value, tags={"pipeline": pipeline})
