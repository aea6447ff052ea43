"""Example: a DAG that starts when a day's slices are committed, and again when one of them was reprocessed.

It exists for the pipelines with `airflow: {partitions: [day]}`.
"""

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, StartOfDayMapper, task

from tidemark.airflow import Project


def create_consumer(pipeline: Any) -> DAG:
    """Create the DAG that consumes a pipeline's days. The key of its runs is the day, such as 2024-01-01."""
    days = Asset.ref(name=f"{pipeline.name}__days")
    # The key stays as it is. The mapper adds the partition date, by which runs are found and cleared.
    same_day = StartOfDayMapper(
        input_format="%Y-%m-%d", timezone=pipeline.airflow.day_time_zone or pipeline.slices.time_zone
    )
    with DAG(
        f"{pipeline.name}__daily_example",
        schedule=PartitionedAssetTimetable(assets=days, default_partition_mapper=same_day),
        catchup=False,
        tags=["tidemark", "example"],
    ) as dag:

        @task
        def use_day(**context: Any) -> str:
            """Return the day, and up to which slice the pipeline was committed when its key was sent."""
            events = context["triggering_asset_events"][days]
            # A run or an event that a user started has no slice.
            last_slice = events[-1].extra.get("last_slice") if events else None
            return f"{context['dag_run'].partition_key} of {pipeline.name}, committed to {last_slice}"

        use_day()
    return dag


pipelines, _ = Project(Path(__file__).resolve().parents[1]).pipelines()
dags = [create_consumer(pipeline) for pipeline in pipelines.values() if "day" in pipeline.airflow.partitions]
