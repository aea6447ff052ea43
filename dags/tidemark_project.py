"""The project's folders as the DAG files see them, and the pipelines found there."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.errors import PipelineFileError
from tidemark.settings import CompareSettings, Pipeline, load_pipeline, load_reference, pipeline_files
from tidemark.settings.values import format_duration, format_instant

# DAG files are parsed in any working directory, so every folder is anchored here.
PROJECT = Path(__file__).resolve().parents[1]


def folder(variable: str, default: str) -> Path:
    """A folder named by an environment variable, else by its place in the project."""
    return PROJECT / os.environ.get(variable, default)


def lake() -> str:
    """The lake root: `TIDEMARK_LAKE`, else `lake` of the project; an absolute path or a URI."""
    root = os.environ.get("TIDEMARK_LAKE", "lake")
    return root if "://" in root else str(PROJECT / root)


def pipelines() -> tuple[dict[Path, Pipeline], list[str]]:
    """Valid pipelines by their file, and a line for each file that has none."""
    valid: dict[Path, Pipeline] = {}
    errors: list[str] = []
    owners: dict[str, Path] = {}
    for file in pipeline_files(folder("TIDEMARK_PIPELINES", "include/pipelines")):
        try:
            pipeline = load_pipeline(file)
            load_reference(file)
        except PipelineFileError as error:
            errors.append(str(error))
            continue
        owner = owners.setdefault(pipeline.name, file)
        if owner is file:
            valid[file] = pipeline
        else:
            errors.append(f"{file}: name: {pipeline.name} is already the pipeline of {owner.name}; choose another")
    return valid, errors


def page(pipeline: Pipeline, file: Path) -> str:
    """A pipeline's settings as its DAGs' pages show them, in Markdown."""
    slices = pipeline.slices
    keys = ", ".join(k.left if k.left == k.right else f"{k.left} = {k.right}" for k in pipeline.join.keys)
    inputs = "\n".join(
        f"| {side} | `{table.table}` | `{table.event_time.column}` | `{pipeline.clock_of(table)}` "
        f"| {'none' if table.watermark_delay is None else format_duration(table.watermark_delay)} |"
        for side, table in (("left", pipeline.left), ("right", pipeline.right))
    )
    return f"""\
**{pipeline.name}**: {pipeline.join.type} join, answered as `{pipeline.dialect}` would, from `{file.name}`.

| input | table | event time | {pipeline.clock} clock | watermark delay |
| --- | --- | --- | --- | --- |
{inputs}

- keys: {keys}
- {pipeline.join.describe()}
- slices: every {format_duration(slices.every)} from {format_instant(slices.start)}
- tables: `{lake()}/{pipeline.output}`
{comparison(pipeline.compare) if pipeline.compare else ""}"""


def comparison(settings: CompareSettings) -> str:
    """What a pipeline is compared with, in a line of Markdown."""
    told_by = f", as told by `{settings.told_by}`" if settings.told_by else ""
    when = f"every {format_duration(settings.every)}" if settings.every else "when slices are committed"
    budget = settings.budget
    differing = f", {budget.differing} of all that differ" if budget.differing else ""
    return f"- compared with `{settings.table}`{told_by}, {when}; budget: {budget.unexplained} unexplained{differing}\n"
