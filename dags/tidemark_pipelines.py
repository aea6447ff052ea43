"""Three DAGs for each pipeline file, and a fourth where it says what to compare with.

NAME__slice follows the clock slice by slice, NAME__range runs a range at once, NAME__reprocess runs one again, and
NAME__compare says how far they are what a stream wrote.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetAny, DeltaDataIntervalTimetable, Param
from tidemark_project import page, pipelines
from tidemark_spark import RunSlices

from tidemark.settings import CompareSettings, Pipeline, load_reference
from tidemark.settings.values import format_instant

INSTANT: dict[str, Any] = {
    "type": "string",
    "format": "date-time",
    # Airflow shows a calendar for the format, but checks only the pattern.
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?$",
}
INTERVAL = ["--from", "{{ data_interval_start | ts }}", "--to", "{{ data_interval_end | ts }}"]
RETRIES = {"retries": 2, "retry_delay": timedelta(minutes=1)}


def slices_of(pipeline: Pipeline) -> Asset:
    """What every task publishes that commits slices."""
    return Asset(f"{pipeline.name}__slices")


def slice_dag(pipeline: Pipeline, file: Path) -> DAG:
    """Each data interval is a slice, in order: this timetable's intervals go on from `start_date`, on no other grid."""
    with DAG(
        f"{pipeline.name}__slice",
        description=f"{pipeline.name}, slice by slice",
        doc_md=page(pipeline, file),
        tags=["tidemark", pipeline.dialect, "slice"],
        schedule=DeltaDataIntervalTimetable(pipeline.slices.every),
        start_date=pipeline.slices.start,
        catchup=True,
        max_active_runs=1,
        # The run after a failed one would wait for it and, as the only active run, keep it from running again.
        max_consecutive_failed_dag_runs=1,
        default_args={"depends_on_past": True, **RETRIES},
    ) as dag:
        RunSlices(
            task_id="run_slice",
            name=f"{pipeline.name} {{{{ data_interval_start | ts }}}}",
            file=file,
            options=INTERVAL,
            outlets=[slices_of(pipeline)],
        )
    return dag


def range_dag(pipeline: Pipeline, file: Path) -> DAG:
    """A range of slices in one Spark application, when asked."""
    with DAG(
        f"{pipeline.name}__range",
        description=f"{pipeline.name}, a range of slices at once",
        doc_md=page(pipeline, file),
        tags=["tidemark", pipeline.dialect, "range"],
        schedule=None,
        max_active_runs=1,
        default_args=RETRIES,
        params={
            "from": Param(
                format_instant(pipeline.slices.start),
                **INSTANT,
                description="Start of the first slice; slices that are committed already are passed over.",
            ),
            "to": Param(**INSTANT, description="End of the last slice, exclusive."),
            "slices_per_job": Param(
                "auto",
                type=["string", "integer"],
                pattern=r"^(auto|[1-9]\d*)$",
                minimum=1,
                description="How many slices are computed together: a number, or auto.",
            ),
        },
    ) as dag:
        RunSlices(
            task_id="run_range",
            name=f"{pipeline.name} {{{{ params['from'] }}}} to {{{{ params['to'] }}}}",
            file=file,
            options=[
                *("--from", "{{ params['from'] }}", "--to", "{{ params['to'] }}"),
                *("--slices-per-job", "{{ params['slices_per_job'] }}"),
            ],
            outlets=[slices_of(pipeline)],
        )
    return dag


def reprocess_dag(pipeline: Pipeline, file: Path) -> DAG:
    """A range of committed slices again, and those behind it until the state is as it was, when asked."""
    with DAG(
        f"{pipeline.name}__reprocess",
        description=f"{pipeline.name}, committed slices again",
        doc_md=page(pipeline, file),
        tags=["tidemark", pipeline.dialect, "reprocess"],
        schedule=None,
        max_active_runs=1,
        default_args=RETRIES,
        params={
            "from": Param(format_instant(pipeline.slices.start), **INSTANT, description="Start of the first slice."),
            "to": Param(**INSTANT, description="End of the last slice, exclusive."),
        },
    ) as dag:
        RunSlices(
            task_id="reprocess",
            name=f"{pipeline.name} again {{{{ params['from'] }}}} to {{{{ params['to'] }}}}",
            file=file,
            options=["--from", "{{ params['from'] }}", "--to", "{{ params['to'] }}"],
            job="reprocess_slices.py",
            outlets=[slices_of(pipeline)],
        )
    return dag


def compare_dag(pipeline: Pipeline, settings: CompareSettings, reference: Pipeline | None, file: Path) -> DAG:
    """What is due for comparison: `every`, or whenever the pipeline has committed, or the one that tells of the stream.

    By `every` the interval's slices are compared, and what earlier runs left because it was not committed in time.
    """
    committed = AssetAny(*(slices_of(one) for one in (pipeline, reference) if one))
    with DAG(
        f"{pipeline.name}__compare",
        description=f"{pipeline.name}, compared with {settings.table}",
        doc_md=page(pipeline, file),
        tags=["tidemark", pipeline.dialect, "compare"],
        schedule=DeltaDataIntervalTimetable(settings.every) if settings.every else committed,
        start_date=pipeline.slices.start if settings.every else None,
        catchup=settings.every is not None,
        max_active_runs=1,
        default_args=RETRIES,
    ) as dag:
        RunSlices(
            task_id="compare",
            name=f"{pipeline.name} compared",
            file=file,
            options=["--due", *(INTERVAL if settings.every else [])],
            job="compare_slices.py",
        )
    return dag


for path, settings in pipelines()[0].items():
    slice_dag(settings, path)
    range_dag(settings, path)
    reprocess_dag(settings, path)
    if settings.compare:
        compare_dag(settings, settings.compare, load_reference(path), path)
