"""Tidemark recomputes a streaming join over bounded Delta tables, slice by slice, with the engine's semantics.

Example, for the lake in folder `lake`::

    import tidemark

    spark = tidemark.get_spark_session("backfill")
    pipeline = tidemark.load_pipeline("orders.yaml")
    tidemark.run(spark, tidemark.plan(spark, pipeline, "lake"))
    tidemark.read_committed(spark, pipeline, "lake").show()
    tidemark.explain(spark, pipeline, "lake", "left", {"id": "7"})
    tidemark.compare(spark, pipeline, "lake", "streamed/orders").causes

Only the names exported here are a stable API. Each is imported when first used, so that Airflow, which reads pipeline
files every few seconds, does not import Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.api import (
        Comparison,
        ComparisonRequest,
        JobResult,
        Pipeline,
        Plan,
        Request,
        RowHistory,
        compare,
        explain,
        get_spark_session,
        load_pipeline,
        plan,
        read_committed,
        run,
    )

__all__ = [
    "Comparison",
    "ComparisonRequest",
    "JobResult",
    "Pipeline",
    "Plan",
    "Request",
    "RowHistory",
    "compare",
    "explain",
    "get_spark_session",
    "load_pipeline",
    "plan",
    "read_committed",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("tidemark.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
