"""Implement the command `tidemark compact`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from rich import filesize

from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, out, print_json
from tidemark.cli.progress import create_progress_bar
from tidemark.config import load_pipeline
from tidemark.delta.paths import resolve_lake_root
from tidemark.formatting import format_count
from tidemark.maintenance.compaction import CompactionPlan, Merge, merge_files, plan_compaction
from tidemark.spark.lazy_session import create_lazy_session, resolve_session
from tidemark.spark.session import get_spark_session


def compact(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be merged without merging.")] = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Merge small files of settled slices into one file per period, by `compact` in the pipeline file.

    Rows do not change. Streams and change feeds see nothing, and slices may run meanwhile.

    Example: `tidemark compact flights_weather --dry-run`
    """
    loaded = load_pipeline(pipeline)
    planned = plan_compaction(loaded, resolve_lake_root(lake))
    merged, conflicting = ([], []) if dry_run else _merge(planned)
    if as_json:
        summary: dict[str, Any] = {"pipeline": loaded.name, "dry_run": dry_run}
        merges_by_outcome = {"planned": planned.merges, "merged": merged, "left": conflicting}
        print_json(
            summary
            | {name: [planned.merge_to_dict(merge) for merge in merges_by_outcome[name]] for name in merges_by_outcome}
        )
        return
    for merge in planned.merges if dry_run else merged:
        out.print(_describe_merge(planned, merge, "would merge" if dry_run else "merged"), soft_wrap=True)
    for merge in conflicting:
        out.print(
            f"{_describe_merge(planned, merge, 'skipped')}: another process has changed its files", soft_wrap=True
        )
    if not planned.merges:
        out.print(f"{loaded.name}: nothing to merge", soft_wrap=True)


def _merge(planned: CompactionPlan) -> tuple[list[Merge], list[Merge]]:
    """Merge the planned files. Return the merges done, and those whose files other processes changed."""
    spark = create_lazy_session(partial(get_spark_session, "tidemark compact", cluster=planned.pipeline.cluster))
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
