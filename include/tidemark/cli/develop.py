"""Implement the commands `tidemark validate`, `diff` and `schema`, which need no tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from tidemark.cli.common import (
    FirstSliceOption,
    LastSliceOption,
    get_global_options,
    get_lake_root,
    out,
    parse_instant_option,
    print_json,
    print_result,
    report_error,
)
from tidemark.cli.read_only_session import read_only_session
from tidemark.cli.render_comparison import render_changed_rows, render_setting_diff
from tidemark.comparison.config_impact import count_changed_rows
from tidemark.comparison.what_if import select_slices
from tidemark.config import Pipeline, build_json_schema, load_pipeline
from tidemark.config.diff import diff_pipelines
from tidemark.config.loader import Owners, find_conflicts, find_pipeline_file
from tidemark.config.types import format_duration, format_instant
from tidemark.errors import PipelineFileError, UserError
from tidemark.formatting import to_single_line


def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Pipeline files, or names of pipelines.")],
) -> None:
    """Check pipeline files without reading any table: fields, values, and what the dialect supports.

    All files are checked. Their names and outputs must differ. The exit code is 2 if any is invalid.

    `tidemark plan` also checks columns, types and expressions against the inputs.

    Example: `tidemark validate include/pipelines/*.yaml`
    """
    outcomes = []
    owners: Owners = {}
    paths = set[Path]()
    for file in dict.fromkeys(files):
        try:
            path = find_pipeline_file(file).resolve()
            if path in paths:
                continue
            paths.add(path)
            pipeline = _load_with_own_output(file, owners)
        except PipelineFileError as error:
            outcomes.append({"file": file, "pipeline": None, "problem": str(error)})
            report_error(error, "error", to_single_line(str(error)), error.exit_code)
            continue
        outcomes.append({"file": file, "pipeline": pipeline.name, "problem": None})
        if not get_global_options().as_json:
            out.print(f"{file}: valid. {_describe_pipeline(pipeline)}", soft_wrap=True, markup=False)
    if get_global_options().as_json:
        print_json(outcomes)
    if any(outcome["problem"] for outcome in outcomes):
        raise typer.Exit(PipelineFileError.exit_code)


def _load_with_own_output(file: str, owners: Owners) -> Pipeline:
    """Load a pipeline file whose name and output must differ from those of earlier files.

    Raises:
        PipelineFileError: The file is invalid, or has the name or output of an earlier file.
    """
    pipeline = load_pipeline(file)
    if conflicts := find_conflicts(pipeline, file, owners):
        remedy = "Give each file a name and an output of its own."
        raise PipelineFileError(f"{file}: has {' and '.join(conflicts)}. {remedy}")
    return pipeline


def _describe_pipeline(pipeline: Pipeline) -> str:
    return (
        f"{pipeline.name}: {pipeline.join.type} join, dialect {pipeline.dialect}, {pipeline.join.describe()}, slices "
        f"of {format_duration(pipeline.slices.every)} from {format_instant(pipeline.slices.start)}."
    )


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Pipeline file or name before the change.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Pipeline file or name after the change.")],
    rows: Annotated[  # noqa: FBT002
        bool,
        typer.Option("--rows", help="Replay both from empty state and count the rows that would change. Reads tables."),
    ] = False,
    start: FirstSliceOption = None,
    end: LastSliceOption = None,
) -> None:
    """Show the settings that differ between two pipeline files, and the effect of each on committed slices.

    Example: `tidemark diff flights_weather wider.yaml --rows --to 2013-01-08T00:00Z`
    """
    if (start or end) and not rows:
        raise UserError("--from and --to choose the slices of --rows. Add --rows, or leave them out.")
    old_pipeline, new_pipeline = load_pipeline(old), load_pipeline(new)
    differences = diff_pipelines(old_pipeline, new_pipeline)
    settings: Any = [asdict(difference) for difference in differences]
    if not rows:
        print_result(settings, lambda: render_setting_diff(differences))
        return
    root, instants = get_lake_root(), (parse_instant_option("--from", start), parse_instant_option("--to", end))
    with read_only_session(root, "tidemark diff", new_pipeline, old_pipeline) as spark:
        slices = select_slices(spark, new_pipeline, root, *instants)
        changed = count_changed_rows(spark, old_pipeline, new_pipeline, root, slices)
    print_result(
        {"settings": settings, "rows": changed.to_dict()},
        lambda: Group(render_setting_diff(differences), render_changed_rows(changed)),
        soft_wrap=True,
    )


def schema() -> None:
    """Print the JSON Schema of pipeline files, for editors.

    Example: `tidemark schema > docs/pipeline.schema.json`
    """
    print_json(build_json_schema())
