"""The command `tidemark compact`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from rich import filesize

from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, out, print_json
from tidemark.cli.progress import bar
from tidemark.config import load_pipeline
from tidemark.delta.paths import lake_root
from tidemark.formatting import counted
from tidemark.maintenance.compaction import Compaction, Merge, merge_files, plan_compaction
from tidemark.spark.lazy_session import awake, deferred
from tidemark.spark.session import spark_session


def compact(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be merged.")] = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Merge the small files of settled slices, period by period, as `compact` in the pipeline file says.

    No row comes or goes: neither streams nor change feeds see it, and slices may run, and run again, meanwhile.

    Example: `tidemark compact flights_weather --dry-run`
    """
    loaded = load_pipeline(pipeline)
    planned = plan_compaction(loaded, lake_root(lake))
    merged, left = ([], []) if dry_run else _merged(planned)
    if as_json:
        told: dict[str, Any] = {"pipeline": loaded.name, "dry_run": dry_run}
        parts = {"planned": planned.merges, "merged": merged, "left": left}
        print_json(told | {name: [planned.describe(one) for one in parts[name]] for name in parts})
        return
    for one in planned.merges if dry_run else merged:
        out.print(_line(planned, one, "would merge" if dry_run else "merged"), soft_wrap=True)
    for one in left:
        out.print(f"{_line(planned, one, 'left')}: another process has changed its files meanwhile", soft_wrap=True)
    if not planned.merges:
        out.print(f"{loaded.name}: nothing to merge", soft_wrap=True)


def _merged(planned: Compaction) -> tuple[list[Merge], list[Merge]]:
    """Merge what is planned: what was, and what others have changed meanwhile."""
    spark = deferred(partial(spark_session, "tidemark compact", cluster=planned.pipeline.cluster))
    found: dict[bool, list[Merge]] = {True: [], False: []}
    with bar("merges") as shown:
        task = shown.add_task(planned.pipeline.name, total=len(planned.merges))
        for one in planned.merges:
            found[merge_files(awake(spark), planned, one)].append(one)
            shown.advance(task)
    return found[True], found[False]


def _line(planned: Compaction, merge: Merge, done: str) -> str:
    told = planned.describe(merge)
    files = f"{counted(len(merge.files), 'file')} ({filesize.decimal(merge.bytes)}) into {merge.into}"
    return f"{planned.pipeline.name}: {done} {merge.table} {told['start']} to {told['end']}: {files}"
