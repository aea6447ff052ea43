"""Render plans, and what a reprocess has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from rich import filesize
from rich.console import Group, RenderableType
from rich.text import Text

from tidemark.cli.rich_table import create_table
from tidemark.execution.job import JobResult
from tidemark.formatting import format_count, format_duration_estimate, format_estimate
from tidemark.planning.plan import Plan
from tidemark.timegrid.slices import Grid


def render_plan(plan: Plan) -> RenderableType:
    """Show which slices a plan would run, and why."""
    described = plan.to_dict()
    title = f"Plan of {described['pipeline']} ({described['clock']} clock)"
    table = create_table(("", ""), title=title, show_header=False)
    table.columns[0].style = "bold"
    table.add_row(
        "slices",
        format_count(plan.slice_count, "slice")
        + (f", {plan.already_committed} committed already" if plan.already_committed else ""),
    )
    if plan.jobs:
        table.add_row("from, to", f"{described['from']} to {described['to']} (exclusive)")
    for segment in described["slice_ranges"]:
        extent = f"{segment['from']} to {segment['to']}, {format_count(segment['slices'], 'slice')}"
        table.add_row(segment["reason"], Text(f"{segment['explanation']} ({extent})"))  # may quote SQL
    if not described["slice_ranges"]:
        table.add_row("why", Text(described["explanation"]))
    if plan.jobs:
        table.add_row("Spark jobs", describe_jobs(plan))
        strategies = Counter(job["replay"] for job in described["jobs"])
        by_strategy = [f"{format_count(jobs, 'job')}: {text}" for text, jobs in strategies.items()]
        table.add_row("replay", "; ".join(by_strategy if len(strategies) > 1 else strategies))
    if plan.atomic:
        table.add_row("commit", "all slices at once, at the end, or none")
    table.add_row("state", f"continues {described['continues']}" if described["continues"] else "starts empty")
    for side, source in described["inputs"].items():
        rows = "unknown" if source["rows"] is None else f"{source['rows']:,}"
        reads = (
            f": up to {rows} rows in {format_count(source['files'], 'file')}, {filesize.decimal(source['bytes'])}"
            if plan.jobs
            else ""
        )
        table.add_row(side, Text(f"{source['table']}, version {source['version']}{reads}"))
    if plan.jobs:
        table.add_row("time", format_duration_estimate(described["estimate"]))
    if plan.slices_left_outdated:
        because = "because input rows have arrived or changed since"
        count = format_count(len(plan.slices_left_outdated), "slice")
        table.add_row("outdated slices", f"{count} would change, {because}: {_describe_ranges(described)}")
        table.add_row("", Text(f"{plan.proposed_command}"))
    complete = (f"{input_.table} up to {input_.until_text}: {input_.reason}" for input_ in plan.input_completeness)
    for label, text in [
        *(("end of input", line) for line in _describe_end_of_input(plan)),
        *(("complete", line) for line in complete),
        *(("note", note) for note in plan.notes),
        *(("Spark query", query) for query in plan.spark_queries),
    ]:
        table.add_row(label, Text(text))
    return table


def _describe_end_of_input(plan: Plan) -> Iterator[str]:
    """Yield after which slice the inputs end, if the plan runs slices and they end."""
    if plan.drain_after is not None and plan.jobs:
        consequence = "" if plan.pipeline.dialect == "spark" else "; no slice can follow"
        yield f"after slice {plan.grid.label(plan.drain_after)}{consequence}"


def describe_jobs(plan: Plan) -> str:
    """Describe the number and size of the jobs, and the capacity by which memory limits them."""
    rows = format_estimate(sum(plan.rows_by_job.values()), "row")
    smallest, largest = min(map(len, plan.jobs)), max(map(len, plan.jobs))
    size = format_count(largest, "slice") if smallest == largest else f"{smallest:,} to {largest:,} slices"
    if len(plan.jobs) == 1:
        return f"1 job for {size}, {rows}"
    limit = ""
    if plan.capacity and plan.is_cut_by_memory:
        limit = f"; memory holds {format_estimate(plan.capacity.rows, 'row')} of a job"
    return f"{len(plan.jobs):,} jobs of {size} each, {rows} in all{limit}"


def render_reprocess_changes(grid: Grid, results: Iterable[JobResult]) -> RenderableType:
    """Show what a reprocess changed per slice, and how many slices did not change."""
    changes = describe_changes(grid, results)
    table = create_table(("slice",), ("added", "removed", "same"), title="Changed")
    for line in changes:
        if line["added"] or line["removed"]:
            table.add_row(line["slice"], *(f"{line[name]:,}" for name in ("added", "removed", "same")))
    unchanged = sum(not line["added"] and not line["removed"] for line in changes)
    return Group(
        table, f"{format_count(len(changes), 'slice')} run again, {unchanged:,} of them with the same emissions"
    )


def describe_changes(grid: Grid, results: Iterable[JobResult]) -> list[dict[str, Any]]:
    """Return the emissions added, removed and unchanged of each reprocessed slice, JSON-ready."""
    return [
        {"slice": grid.label(number), **asdict(change)}
        for result in results
        for number, change in sorted(result.changes.items())
    ]


def _describe_ranges(described: dict[str, Any]) -> str:
    return ", ".join(
        range_["from"] if range_["slices"] == 1 else f"{range_['from']} to {range_['to']}"
        for range_ in described["slices_to_reprocess"]
    )
