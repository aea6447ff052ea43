"""Schedules and parameters of a pipeline's DAGs, by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import AssetAny, CronDataIntervalTimetable, DeltaDataIntervalTimetable, Param
from airflow.sdk.bases.timetable import BaseTimetable

from tidemark.airflow.assets import slices_asset
from tidemark.airflow.dag_kinds import Kind, has_dag
from tidemark.airflow.project import Project, require_timetable
from tidemark.airflow.table_watcher import watch_checkpoint, watch_tables
from tidemark.airflow_provider.database import read_database_kind
from tidemark.config import Pipeline, load_reference
from tidemark.config.types import format_instant
from tidemark.errors import PipelineFileError

INSTANT: dict[str, Any] = {
    "type": "string",
    "format": "date-time",
    # Airflow shows a calendar for the format, but checks only the pattern.
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?$",
}


def _create_timetable(pipeline: Pipeline, file: Path, every: timedelta) -> BaseTimetable:
    """Return data intervals of a length on the pipeline's grid; local days if the slices are."""
    if pipeline.slices.time_zone == "UTC":
        return DeltaDataIntervalTimetable(every)
    require_timetable(pipeline, file)
    return CronDataIntervalTimetable("0 0 * * *", timezone=pipeline.slices.time_zone)


def _slice_options(pipeline: Pipeline, file: Path, _: Project) -> dict[str, Any]:
    """Schedule one run per slice, in order. The timetable counts its intervals from `start_date`."""
    return {
        "schedule": _create_timetable(pipeline, file, pipeline.slices.every),
        "start_date": pipeline.slices.start,
        # In Airflow this is the start of the last run, inclusive.
        "end_date": pipeline.slices.last_start,
        "catchup": True,
        # The run after a failed run would wait for it. As the only active run, it would block the retry.
        "max_consecutive_failed_dag_runs": 1,
        **_refuse_backfills_on_sqlite(),
    }


def _range_options(pipeline: Pipeline, _: Path, __: Project) -> dict[str, Any]:
    return {
        "schedule": None,
        "params": {
            "from": Param(
                format_instant(pipeline.slices.start),
                **INSTANT,
                description="Start of the first slice. Committed slices are skipped.",
            ),
            "to": Param(**INSTANT, description="End of the last slice, exclusive."),
            "slices_per_job": Param(
                "auto",
                type=["string", "integer"],
                pattern=r"^(auto|[1-9]\d*)$",
                minimum=1,
                description="Number of slices per Spark job, or auto.",
            ),
            "ignore_completeness": Param(
                default=False, type="boolean", description="Do not wait for the inputs; the ledger will say so."
            ),
        },
    }


def _reprocess_options(_: Pipeline, __: Path, ___: Project) -> dict[str, Any]:
    return {
        "schedule": None,
        "params": {
            "from": Param(**INSTANT, description="Start of the first slice to reprocess."),
            "to": Param(**INSTANT, description="End of the last slice, exclusive."),
            "dry_run": Param(
                default=True,
                type="boolean",
                description="Plan only. The log shows which slices would run again, and why.",
            ),
        },
    }


def _repair_options(pipeline: Pipeline, _: Path, __: Project) -> dict[str, Any]:
    """Schedule questions to a person `every` interval without catch-up; by default the DAG is started by hand."""
    every = pipeline.airflow.repair.every
    if every is None:
        return {"schedule": None}
    return {
        "schedule": DeltaDataIntervalTimetable(every),
        "start_date": pipeline.slices.start,
        "catchup": False,
        **_refuse_backfills_on_sqlite(),
    }


def _landed_options(pipeline: Pipeline, _: Path, project: Project) -> dict[str, Any]:
    """Schedule a run for each commit that may complete a slice. Commits during a run give one more run.

    These are commits of rows to an input or to the marker table of its rule. With a streaming checkpoint, they are
    commits of the query: rows in the input do not count before the query has read them. An input that is another
    pipeline is not watched: that pipeline's DAGs send an event for its commits.
    """
    name, every = f"{pipeline.name}__landed", pipeline.airflow.poll_interval
    landed = [slices_asset(upstream.pipeline) for upstream in pipeline.upstreams.values()]
    if checkpoint := pipeline.checkpoint_arrival:
        landed.append(watch_checkpoint(name, checkpoint.streaming_checkpoint, project, every))
    elif tables := list(_list_watched_tables(pipeline)):
        landed.append(watch_tables(name, tables, project, every))
    return {"schedule": AssetAny(*landed), "start_date": None, "catchup": False}


def _list_watched_tables(pipeline: Pipeline) -> Iterator[str]:
    """Yield the tables of the inputs, except outputs of other pipelines, and the marker tables of their rules."""
    for source in (pipeline.left, pipeline.right):
        if not source.upstream:
            yield source.table
        if source.complete and source.complete.table:
            yield source.complete.table


def _compare_options(pipeline: Pipeline, file: Path, _: Project) -> dict[str, Any]:
    """Schedule comparisons `every` interval, or after each commit of the pipeline or of its reference."""
    settings = pipeline.compare
    if settings is None:
        raise PipelineFileError(f"{file}: compare: is missing. Name the streamed table to compare with.")
    if settings.every:
        return {
            "schedule": _create_timetable(pipeline, file, settings.every),
            "start_date": pipeline.slices.start,
            "end_date": _find_last_comparison(pipeline, settings.every),
            "catchup": True,
            **_refuse_backfills_on_sqlite(),
        }
    producers = [producer for producer in (pipeline, load_reference(file)) if producer]
    committed = AssetAny(*(slices_asset(producer.name) for producer in producers))
    return {"schedule": committed, "start_date": None, "catchup": False}


def _find_last_comparison(pipeline: Pipeline, every: timedelta) -> datetime | None:
    """Return the start of the last comparison's interval; None if slices have no end.

    It is the interval after the last slice, for rows that the stream has written late.
    """
    start, end = pipeline.slices.start, pipeline.slices.end
    if end is None or pipeline.slices.time_zone != "UTC":  # an interval is a slice, and begins where one ends
        return end
    return end + (start - end) % every


def _maintenance_options(pipeline: Pipeline, file: Path, _: Project) -> dict[str, Any]:
    """Schedule maintenance once a day without catch-up."""
    if not has_dag(pipeline, "maintenance"):
        raise PipelineFileError(f"{file}: compact: and retention: are missing. Set one of them to have maintenance.")
    return {
        "schedule": DeltaDataIntervalTimetable(timedelta(days=1)),
        "start_date": pipeline.slices.start,
        "catchup": False,
        **_refuse_backfills_on_sqlite(),
    }


def _refuse_backfills_on_sqlite() -> dict[str, Any]:
    """Let Airflow refuse backfills on SQLite, where they lock the database and stop the scheduler."""
    if read_database_kind() == "sqlite":
        return {"allowed_run_types": ["scheduled", "manual"]}
    return {}


OPTIONS: Mapping[Kind, Callable[[Pipeline, Path, Project], dict[str, Any]]] = {
    "slice": _slice_options,
    "range": _range_options,
    "reprocess": _reprocess_options,
    **dict.fromkeys(("repair", "release", "waive"), _repair_options),
    "landed": _landed_options,
    "compare": _compare_options,
    "maintenance": _maintenance_options,
}
"""Function that returns the arguments of `airflow.sdk.DAG` for a pipeline, its file and its project."""
