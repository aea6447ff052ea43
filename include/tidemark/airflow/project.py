"""Where a project's pipelines, tables and jars are, as DAG files see them, and the pipelines found there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tidemark.config import (
    CompareSettings,
    Completeness,
    Input,
    Pipeline,
    load_pipeline,
    load_reference,
    pipeline_files,
)
from tidemark.config.local_days import day_of_two_midnights, local_day
from tidemark.config.quality import DOCS_PAGE
from tidemark.config.types import format_duration, format_instant, micros
from tidemark.errors import PipelineFileError

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Project:
    """The folder that relative paths are anchored in: DAG files are parsed in any working directory."""

    root: Path
    """Absolute."""

    @property
    def pipelines_folder(self) -> Path:
        """`TIDEMARK_PIPELINES`, else `include/pipelines` of the project."""
        return self.root / os.environ.get("TIDEMARK_PIPELINES", "include/pipelines")

    @property
    def lake(self) -> str:
        """The lake root: `TIDEMARK_LAKE`, else `lake` of the project; an absolute path or a URI."""
        root = os.environ.get("TIDEMARK_LAKE", "lake")
        return root if "://" in root else str(self.root / root)

    @property
    def jars(self) -> list[str]:
        """What goes to Spark with each job: the jars in `TIDEMARK_JARS`, else `.jars` of the project; maybe none."""
        return sorted(map(str, (self.root / os.environ.get("TIDEMARK_JARS", ".jars")).glob("*.jar")))

    def pipelines(self) -> tuple[dict[Path, Pipeline], list[str]]:
        """Valid pipelines by their file, and a line for each file that has none."""
        valid: dict[Path, Pipeline] = {}
        errors: list[str] = []
        owners: dict[str, Path] = {}
        for file in pipeline_files(self.pipelines_folder):
            try:
                pipeline = load_pipeline(file)
                load_reference(file)
                refuse_two_midnights(pipeline, file)
            except PipelineFileError as error:
                errors.append(str(error))
                continue
            owner = owners.setdefault(pipeline.name, file)
            if owner is file:
                valid[file] = pipeline
            else:
                errors.append(f"{file}: name: {pipeline.name} is already the pipeline of {owner.name}; choose another")
        return valid, errors

    def pipeline_named(self, name: str) -> tuple[Path, Pipeline] | None:
        """The pipeline of that name where its file is called so, as most are: no other file is read."""
        for file in (self.pipelines_folder / f"{name}{suffix}" for suffix in _SUFFIXES):
            if file.is_file() and (pipeline := load_pipeline(file)).name == name:
                return file, pipeline
        return None

    def refuse_errors(self) -> None:
        """Fail where a pipeline file does not validate: for a DAG file of its own, since Airflow stops all DAGs of one.

        Raises:
            PipelineFileError: a line for each file.
        """
        if errors := self.pipelines()[1]:
            raise PipelineFileError("\n".join(errors))


def refuse_two_midnights(pipeline: Pipeline, file: Path) -> None:
    """See that Airflow has data intervals for a pipeline's slices.

    Raises:
        PipelineFileError: they are days of which one has two midnights; Airflow's timetables go by the second.
    """
    zone = pipeline.slices.time_zone
    first = local_day(micros(pipeline.slices.start), zone)
    if zone != "UTC" and (found := day_of_two_midnights(first, zone)):
        raise PipelineFileError(
            f"{file}: slices.time_zone: Airflow has no timetable for days of {zone}, where {found} has two midnights; "
            "use `tidemark run` without Airflow, or leave time_zone out"
        )


def page(pipeline: Pipeline, file: Path, lake: str) -> str:
    """A pipeline's settings as its DAGs' pages show them, in Markdown."""
    slices = pipeline.slices
    keys = ", ".join(k.left if k.left == k.right else f"{k.left} = {k.right}" for k in pipeline.join.keys)
    inputs = "\n".join(
        f"| {side} | `{table.table}` | `{table.event_time.column}` | `{pipeline.clock_of(table)}` "
        f"| {_watermark(table)} "
        f"| {_complete(table.complete)} |"
        for side, table in (("left", pipeline.left), ("right", pipeline.right))
    )
    each = "every " + format_duration(slices.every) if slices.time_zone == "UTC" else f"days of {slices.time_zone}"
    until = f" to {format_instant(slices.end)}" if slices.end else ""
    return f"""\
**{pipeline.name}**: {pipeline.join.type} join, answered as `{pipeline.dialect}` would, from `{file.name}`.

| input | table | event time | {pipeline.clock} clock | watermark delay | complete by |
| --- | --- | --- | --- | --- | --- |
{inputs}

- keys: {keys}
- {pipeline.join.describe()}
- slices: {each} from {format_instant(slices.start)}{until}
- tables: `{lake}/{pipeline.output}`
- what was judged: `{lake}/{pipeline.output}/{DOCS_PAGE}`, and over time `tidemark quality {file.name}`
- a range at once is `{pipeline.name}__range`, committed slices again `{pipeline.name}__reprocess`: use these, not a
  backfill, which Airflow refuses here on SQLite, whose lock it would not survive
{_comparison(pipeline.compare) if pipeline.compare else ""}"""


def _watermark(table: Input) -> str:
    if table.watermark:
        return f"none, it is recorded in `{table.watermark.column}`"
    return "none" if table.watermark_delay is None else format_duration(table.watermark_delay)


def _complete(rule: Completeness | None) -> str:
    if rule is None:
        return "nothing, it does not wait"
    return f"{rule.by}, {format_duration(rule.settle)} later" if rule.settle else rule.by


def _comparison(settings: CompareSettings) -> str:
    """What a pipeline is compared with, in a line of Markdown."""
    told_by = f", as told by `{settings.told_by}`" if settings.told_by else ""
    when = f"every {format_duration(settings.every)}" if settings.every else "when slices are committed"
    budget = settings.budget
    differing = f", {budget.differing} of all that differ" if budget.differing else ""
    return f"- compared with `{settings.table}`{told_by}, {when}; budget: {budget.unexplained} unexplained{differing}\n"
