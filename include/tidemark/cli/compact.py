"""Implement the command `tidemark tables compact`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich import filesize

from tidemark.cli.common import PipelineArgument, get_lake_root, print_result
from tidemark.cli.progress import create_progress_bar
from tidemark.config import load_pipeline
from tidemark.formatting import format_count
from tidemark.maintenance.compaction import CompactionPlan, Merge, merge_files, plan_compaction
from tidemark.spark.lazy_session import create_lazy_session, resolve_session
from tidemark.spark.session import get_spark_session


def compact(
    pipeline: PipelineArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be merged without merging.")] = False,  # noqa: FBT002
) -> None:
    """Merge small files of settled slices into one file per period, by `compact` in the pipeline file.

    Rows do not change. Streams and change feeds see nothing, and slices may run meanwhile.

    Example: `tidemark tables compact flights_weather --dry-run`
    """
    loaded = load_pipeline(pipeline)
    planned = plan_compaction(loaded, get_lake_root())
    merged, conflicting = ([], []) if dry_run else _merge(planned)
    merges_by_outcome = {"planned": planned.merges, "merged": merged, "skipped": conflicting}
    described = {
        name: [planned.merge_to_dict(merge) for merge in merges_by_outcome[name]] for name in merges_by_outcome
    }
    lines = [
        *(
            _describe_merge(planned, merge, "would merge" if dry_run else "merged")
            for merge in (planned.merges if dry_run else merged)
        ),
        *(
            f"{_describe_merge(planned, merge, 'skipped')}: another process has changed its files"
            for merge in conflicting
        ),
    ]
    print_result(
        {"pipeline": loaded.name, "dry_run": dry_run, **described},
        lambda: "\n".join(lines or [f"{loaded.name}: nothing to merge"]),
        soft_wrap=True,
    )


def _merge(planned: CompactionPlan) -> tuple[list[Merge], list[Merge]]:
    """Merge the planned files. Return the merges done, and those whose files other processes changed."""
    spark = create_lazy_session(partial(get_spark_session, "tidemark tables compact", cluster=planned.pipeline.cluster))
    merges: dict[bool, list[Merge]] = {True: [], False: []}
    with create_progress_bar("merges") as progress_bar:
        task = progress_bar.add_task(planned.pipeline.name, total=len(planned.merges))
        for merge in planned.merges:
            merges[merge_files(resolve_session(spark), planned, merge)].append(merge)
            progress_bar.advance(task)
    return merges[True], merges[False]


def _describe_merge(planned: CompactionPlan, merge: Merge, action: str) -> str:
    described = planned.merge_to_dict(merge)
    files = f"{format_count(len(merge.files), 'file')} ({filesize.decimal(merge.bytes)}) into {merge.target_files}"
    return f"{planned.pipeline.name}: {action} {merge.table} {described['start']} to {described['end']}: {files}"
