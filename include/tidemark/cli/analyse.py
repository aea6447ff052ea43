"""Implement the commands `tidemark what-if` and `tidemark explain`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated

import typer

from tidemark.cli.common import (
    CandidateOption,
    FirstSliceOption,
    LastSliceOption,
    PipelineArgument,
    get_lake_root,
    naming_option,
    parse_instant_option,
    print_result,
)
from tidemark.cli.read_only_session import read_only_session
from tidemark.cli.render_comparison import render_row_histories, render_what_if
from tidemark.comparison.chain_history import explain_rows
from tidemark.comparison.row_lookup import parse_row
from tidemark.comparison.what_if import VARIABLE_SETTINGS, get_current_value, select_slices, vary_setting
from tidemark.config import load_pipeline
from tidemark.config.candidate_version import to_candidate
from tidemark.config.sides import SIDES
from tidemark.config.types import parse_duration
from tidemark.errors import UserError


def what_if(
    pipeline: PipelineArgument,
    max_value: Annotated[str, typer.Option("--max", metavar="DURATION", help="Largest value to try.")],
    vary: Annotated[
        str, typer.Option("--vary", metavar="SETTING", help=f"One of {', '.join(VARIABLE_SETTINGS)}.")
    ] = VARIABLE_SETTINGS[0],
    min_value: Annotated[str, typer.Option("--min", metavar="DURATION", help="Smallest value to try.")] = "0 s",
    steps: Annotated[
        int,
        typer.Option(
            "--steps", min=1, max=60, help="Number of equal steps from --min to --max; N + 1 values are tried."
        ),
    ] = 8,
    start: FirstSliceOption = None,
    end: LastSliceOption = None,
) -> None:
    """Show how late rows, lost pairs and state would change with another delay, lateness or bound. Read-only.

    The value in the pipeline file is one of the rows.

    Example: `tidemark what-if flights_weather --vary left.watermark_delay --max "2 hours" --steps 12`
    """
    settings = load_pipeline(pipeline)
    with naming_option("--min"):
        minimum = parse_duration(min_value)
    with naming_option("--max"):
        maximum = parse_duration(max_value)
    if maximum <= minimum:
        raise UserError(f"--max {max_value} is not above --min {min_value}. Pass a greater --max.")
    start_instant, end_instant = parse_instant_option("--from", start), parse_instant_option("--to", end)
    root = get_lake_root()
    values = set(_list_steps(minimum, maximum, steps))
    if (current := get_current_value(settings, vary)) is not None:
        values.add(current)
    with read_only_session(root, "tidemark what-if", settings) as spark:
        slices = select_slices(spark, settings, root, start_instant, end_instant)
        result = vary_setting(spark, settings, root, vary, sorted(values), slices)
    print_result(result, lambda: render_what_if(result))


def _list_steps(minimum: timedelta, maximum: timedelta, steps: int) -> Iterator[timedelta]:
    """Yield the values from the minimum to the maximum, in whole milliseconds as settings have them.

    >>> [value / timedelta(milliseconds=1) for value in _list_steps(timedelta(), timedelta(seconds=1), 3)]
    [0.0, 333.0, 666.0, 1000.0]
    """
    for number in range(steps + 1):
        value = minimum + (maximum - minimum) * number / steps
        yield value - value % timedelta(milliseconds=1)


def explain(
    pipeline: PipelineArgument,
    left: Annotated[str, typer.Option("--left", metavar="ROW", help="Column values of a left row: a=1,b=null.")] = "",
    right: Annotated[
        str, typer.Option("--right", metavar="ROW", help="Column values of a right row: a=1,b=null.")
    ] = "",
    candidate: CandidateOption = None,
) -> None:
    """Explain what happened to an input row: arrival, lateness, matches and eviction. Read-only.

    In a chain its emissions are explained too, in the pipelines that read them. Put quotes around a text
    that has a comma, and around the text 'null'. Without quotes, null finds rows without a value.

    Example: `tidemark explain flights_weather --left "carrier=UA,flight=1545,scheduled_departure=2013-01-01T10:15Z"`
    """
    settings = to_candidate(load_pipeline(pipeline), candidate)
    rows_by_side = {}
    for side, values in zip(SIDES, (left, right), strict=True):
        if values:
            with naming_option(f"--{side}"):
                rows_by_side[side] = parse_row(values)
    if not rows_by_side:
        raise UserError("no row is named. Pass --left or --right with column values, such as 'carrier=UA,flight=1545'.")
    root = get_lake_root()
    with read_only_session(root, "tidemark explain", settings) as spark:
        histories = [
            history for side, row in rows_by_side.items() for history in explain_rows(spark, settings, root, side, row)
        ]
    print_result([history.to_dict() for history in histories], lambda: render_row_histories(histories), soft_wrap=True)
