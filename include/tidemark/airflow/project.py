"""Locate a project's pipelines, tables and jars for its DAG files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.airflow_provider import has_provider
from tidemark.airflow_provider.settings import read_option
from tidemark.config import (
    CompareSettings,
    Completeness,
    Input,
    Pipeline,
    list_pipeline_files,
    load_pipeline,
    load_reference,
)
from tidemark.config.local_days import find_repeated_midnight, to_local_day
from tidemark.config.quality import DATA_DOCS_INDEX
from tidemark.config.types import format_duration, format_instant, to_micros
from tidemark.errors import PipelineFileError

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Project:
    """A project folder, to which relative paths refer. DAG files are parsed in any working directory."""

    root: Path
    """Absolute path."""

    @property
    def pipelines_folder(self) -> Path:
        """Folder of pipeline files: `TIDEMARK_PIPELINES`, or `pipelines` in Airflow's section `[tidemark]`.

        By default `include/pipelines`.
        """
        return self.root / (_read_setting("pipelines") or "include/pipelines")

    @property
    def lake(self) -> str:
        """Lake root, an absolute path or a URI: `TIDEMARK_LAKE`, or `lake` in Airflow's section `[tidemark]`.

        By default `lake`.
        """
        root = _read_setting("lake") or "lake"
        return root if "://" in root else str(self.root / root)

    @property
    def jars(self) -> list[str]:
        """Jars submitted with each job: those in `TIDEMARK_JARS`, by default in `.jars`."""
        return sorted(map(str, (self.root / os.environ.get("TIDEMARK_JARS", ".jars")).glob("*.jar")))

    def pipelines(self) -> tuple[dict[Path, Pipeline], list[str]]:
        """Return the valid pipelines by file, and one error line per other file."""
        loaded: dict[Path, Pipeline] = {}
        errors: list[str] = []
        for file in list_pipeline_files(self.pipelines_folder):
            try:
                loaded[file] = load_pipeline(file)
            except PipelineFileError as error:
                errors.append(str(error))
        owned = select_owners(loaded)
        owners = {pipeline.name: file for file, pipeline in owned.items()}
        schedulable: dict[Path, Pipeline] = {}
        for file, pipeline in loaded.items():
            if file not in owned:
                owner = owners[pipeline.name].name
                errors.append(f"{file}: name: {owner} already defines {pipeline.name}. Choose another name.")
                continue
            try:
                _require_schedulable(file, pipeline)
                schedulable[file] = pipeline
            except PipelineFileError as error:
                errors.append(str(error))
        return schedulable, errors

    def find_pipeline(self, name: str) -> tuple[Path, Pipeline] | None:
        """Return the pipeline whose file and `name` are `name`, without reading other files; None if there is none.

        Raises:
            PipelineFileError: The file is not valid.
        """
        for file in (self.pipelines_folder / f"{name}{suffix}" for suffix in _SUFFIXES):
            if file.is_file() and (pipeline := load_pipeline(file)).name == name:
                _require_schedulable(file, pipeline)
                return file, pipeline
        return None

    def raise_errors(self) -> None:
        """Raise if a pipeline file is not valid, or if its DAGs cannot be created.

        Call it in a DAG file of its own: Airflow stops all DAGs of a file with an import error.

        Raises:
            PipelineFileError: One line per invalid file.
        """
        from tidemark.airflow.dags import create_dags  # noqa: PLC0415 - that module imports this one

        if errors := create_dags(self)[1]:
            raise PipelineFileError("\n".join(errors))


def select_owners(pipelines: Mapping[Path, Pipeline]) -> dict[Path, Pipeline]:
    """Select one file for each pipeline name: the file with that name, or else the first file.

    Args:
        pipelines: Pipelines by file, in order.
    """
    owners: dict[str, Path] = {}
    for file, pipeline in pipelines.items():
        is_first = owners.setdefault(pipeline.name, file) is file
        if not is_first and file.stem == pipeline.name != owners[pipeline.name].stem:
            owners[pipeline.name] = file
    return {file: pipeline for file, pipeline in pipelines.items() if owners[pipeline.name] is file}


def _require_schedulable(file: Path, pipeline: Pipeline) -> None:
    """Require that Airflow can schedule a pipeline.

    Raises:
        PipelineFileError: The file of its reference is not valid, or Airflow cannot schedule it.
    """
    load_reference(file)
    require_timetable(pipeline, file)
    require_provider(pipeline, file)


def _read_setting(name: str) -> str:
    """Return the environment variable of a setting, else the option of Airflow's configuration; empty by default."""
    return os.environ.get(f"TIDEMARK_{name.upper()}") or read_option(name)


def require_timetable(pipeline: Pipeline, file: Path) -> None:
    """Check that Airflow has a timetable for a pipeline's slices.

    Raises:
        PipelineFileError: The slices are local days, and a day has two midnights, of which Airflow uses the second.
    """
    zone = pipeline.slices.time_zone
    first = to_local_day(to_micros(pipeline.slices.start), zone)
    if zone != "UTC" and (day := find_repeated_midnight(first, zone)):
        raise PipelineFileError(
            f"{file}: slices.time_zone: Airflow has no timetable for days of {zone}, where {day} has two midnights. "
            "Use `tidemark run` without Airflow, or leave time_zone out."
        )


def require_provider(pipeline: Pipeline, file: Path) -> None:
    """Check that Airflow has registered the deadlines of this package, without which its scheduler would fail.

    Raises:
        PipelineFileError: The package is on the Python path only, and not installed.
    """
    if pipeline.airflow.deadline_from == "interval_end" and not has_provider():
        raise PipelineFileError(
            f"{file}: airflow.deadline_from: Airflow does not know Tidemark's deadlines, because the package is not "
            "installed with its entry points. Install it again by pip, or set deadline_from to queued."
        )


def document_pipeline(pipeline: Pipeline, file: Path, lake: str) -> str:
    """Return a pipeline's settings in Markdown, for the pages of its DAGs."""
    slices = pipeline.slices
    keys = ", ".join(k.left if k.left == k.right else f"{k.left} = {k.right}" for k in pipeline.join.keys)
    inputs = "\n".join(
        f"| {side} | `{table.table}` | `{table.event_time.column}` | `{pipeline.get_clock_source(table)}` "
        f"| {_describe_watermark(table)} "
        f"| {_describe_completeness(table.complete)} |"
        for side, table in (("left", pipeline.left), ("right", pipeline.right))
    )
    each = "every " + format_duration(slices.every) if slices.time_zone == "UTC" else f"days of {slices.time_zone}"
    until = f" to {format_instant(slices.end)}" if slices.end else ""
    return f"""\
**{pipeline.name}**: {pipeline.join.type} join with the semantics of `{pipeline.dialect}`, from `{file.name}`.

| input | table | event time | {pipeline.clock} clock | watermark delay | complete by |
| --- | --- | --- | --- | --- | --- |
{inputs}

- keys: {keys}
- {pipeline.join.describe()}
{_describe_expressions(pipeline)}- slices: {each} from {format_instant(slices.start)}{until}
- tables: `{lake}/{pipeline.output}`
- validation results: `{lake}/{pipeline.output}/{DATA_DOCS_INDEX}`, and over time `tidemark quality show {file.stem}`
- use `{pipeline.name}__range` for a range of slices and `{pipeline.name}__reprocess` for committed slices, not a
  backfill: on SQLite, Airflow refuses backfills, because they lock the database
{_describe_comparison(pipeline.compare) if pipeline.compare else ""}"""


def _describe_expressions(pipeline: Pipeline) -> str:
    """Return the condition of the join and the filters of the inputs, as lines of Markdown."""
    expressions = {
        "condition": pipeline.join.condition,
        **{f"filter of {table.table}": table.where for table in (pipeline.left, pipeline.right)},
    }
    return "".join(f"- {name}: `{sql}`\n" for name, sql in expressions.items() if sql)


def _describe_watermark(table: Input) -> str:
    if table.recorded_watermark:
        return f"none, it is recorded in `{table.recorded_watermark.column}`"
    return "none" if table.watermark_delay is None else format_duration(table.watermark_delay)


def _describe_completeness(rule: Completeness | None) -> str:
    if rule is None:
        return "nothing, it does not wait"
    return f"{rule.by}, {format_duration(rule.grace_period)} later" if rule.grace_period else rule.by


def _describe_comparison(settings: CompareSettings) -> str:
    """Return what a pipeline is compared with, as a line of Markdown."""
    reference = f", with the reference `{settings.reference}`" if settings.reference else ""
    when = f"every {format_duration(settings.every)}" if settings.every else "when slices are committed"
    budget = settings.budget
    total = f", {budget.differing} differing" if budget.differing else ""
    return f"- compared with `{settings.table}`{reference}, {when}; budget: {budget.unexplained} unexplained{total}\n"
