"""Decide which DAGs a pipeline has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from tidemark.config import Pipeline
from tidemark.config.quality import OnFailure

Kind = Literal["slice", "range", "reprocess", "repair", "release", "waive", "landed", "compare", "maintenance"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TITLES: Mapping[Kind, str] = {
    "slice": "slice by slice",
    "range": "a range of slices at once",
    "reprocess": "committed slices again",
    "repair": "outdated slices again, after approval",
    "release": "quarantined rows, released after approval",
    "waive": "rejected slices, waived after approval",
    "landed": "when rows land",
    "compare": "compared with a streamed table",
    "maintenance": "maintenance of its tables",
}


def has_dag(pipeline: Pipeline, kind: Kind) -> bool:
    """Return True if a pipeline file has the settings that a kind of DAG needs."""
    conditions: dict[Kind, bool] = {
        "release": _has_consequence(pipeline, "quarantine"),
        # An expectation that raises an error, instead of finding rows that fail, stops the slice too.
        "waive": _has_consequence(pipeline, "stop", "quarantine"),
        "landed": pipeline.airflow.watch_inputs,
        "compare": pipeline.compare is not None,
        "maintenance": pipeline.compact is not None or bool(pipeline.retention.model_fields_set),
    }
    return conditions.get(kind, True)


def format_dag_id(pipeline: str, kind: Kind) -> str:
    """Return the id of a pipeline's DAG.

    >>> format_dag_id("orders", "slice")
    'orders__slice'
    """
    return f"{pipeline}__{kind}"


def _has_consequence(pipeline: Pipeline, *consequences: OnFailure) -> bool:
    """Return True if a failed expectation on a slice has one of these consequences."""
    return any(
        expectation.per == "slice" and expectation.on_failure in consequences for expectation in pipeline.quality
    )
