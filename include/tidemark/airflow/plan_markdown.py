"""Render plans in Markdown, for the person who approves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidemark.config import Pipeline
from tidemark.formatting import format_count, format_duration_estimate, format_estimate

MAX_RANGES = 50
"""Ranges of slices that a page lists at most."""


def list_approval_reasons(pipeline: Pipeline, plan: Mapping[str, Any]) -> list[str]:
    """List why a person has to approve a plan (`Plan.to_dict`); empty if nobody has to."""
    limits = pipeline.airflow.repair.approve_above
    reasons = []
    if limits is None:
        reasons.append("the pipeline file has no `airflow.repair.approve_above`, so each repair is approved")
    else:
        sizes = {"slices": (plan["slices"], limits.slices), "rows": (plan["estimated_rows"], limits.rows)}
        reasons += [
            f"{size:,} {name} are more than `airflow.repair.approve_above.{name}` ({limit:,})"
            for name, (size, limit) in sizes.items()
            if limit is not None and size > limit
        ]
    is_changed = any(part["reason"] == "changed input" for part in plan["slice_ranges"])
    if is_changed and pipeline.on_input_delete == "refuse":
        reasons.append("input rows were deleted or changed, and the pipeline file has `on_input_delete: refuse`")
    return reasons


def render_plan(plan: Mapping[str, Any], approval_reasons: Iterable[str]) -> str:
    """Return a plan (`Plan.to_dict`) as Markdown: slices, reasons, cost, and the slices that may follow."""
    figures = {
        "input rows to read": format_estimate(plan["estimated_rows"], "row"),
        "estimated time": format_duration_estimate(plan["estimate"]),
        "Spark jobs": f"{len(plan['jobs']):,}",
        "slices that may follow": _describe_following(plan["may_follow"]),
        **{side: f"{source['table']}, version {source['version']}" for side, source in plan["inputs"].items()},
    }
    sections = [
        f"**{plan['pipeline']}: {format_count(plan['slices'], 'outdated slice')} would run again**",
        render_table(("slices", "number", "reason"), _list_ranges(plan["slice_ranges"])),
        render_table(("", ""), figures.items()),
        *_render_list("Notes", plan["notes"]),
        *_render_list("A person is asked because", approval_reasons),
    ]
    return "\n\n".join(sections)


def render_releases(plan: Mapping[str, Any]) -> str:
    """Return the slices with rows in quarantine as Markdown.

    Args:
        plan: The slices (`withheld_slices.plan_releases`).
    """
    slices = plan["slices"]
    rows = sum(item["rows"] for item in slices)
    failures = (
        (item["slice"], f"{failure['rows']:,}", failure["expectation"], failure["result"])
        for item in slices
        for failure in item["failures"]
    )
    sections = [
        f"**{plan['pipeline']}: {format_count(rows, 'row')} of {format_count(len(slices), 'slice')} in quarantine**",
        render_table(("slice", "rows", "failed expectation", "result"), failures),
        "Approve publishes the rows of the chosen slices. Reject publishes nothing.",
        *_render_list("Notes", plan["notes"]),
    ]
    return "\n\n".join(sections)


def render_waivers(plan: Mapping[str, Any]) -> str:
    """Return rejected slices as Markdown.

    Args:
        plan: The slices (`withheld_slices.plan_waivers`).
    """
    failures = (
        (
            item["slice"],
            "an earlier run" if item["is_committed"] else "no",
            item["rejected_at"],
            failure["expectation"],
            _format_number(failure["value"]),
            _format_bounds(failure["min_value"], failure["max_value"]),
        )
        for item in plan["slices"]
        for failure in item["failures"]
    )
    header = ("slice", "published", "rejected at", "failed expectation", "value", "allowed")
    sections = [
        f"**{plan['pipeline']}: {format_count(len(plan['slices']), 'slice')} rejected by the quality gate**",
        render_table(header, failures),
        "The value of an expectation on single rows is the share of values that violate it.",
        "Approve waives these expectations for the next run of the chosen slices, and runs them.",
        "Reject waives nothing.",
        *_describe_reprocess(plan["slices"]),
        *_render_list("Notes", plan["notes"]),
    ]
    return "\n\n".join(sections)


def _describe_reprocess(slices: Iterable[Mapping[str, Any]]) -> list[str]:
    if not any(item["is_committed"] for item in slices):
        return []
    return [
        "After a slice that an earlier run has published, later slices run again until their state no longer changes."
    ]


def _format_bounds(low: float | None, high: float | None) -> str:
    """Format the bounds of a value.

    >>> _format_bounds(None, 0.01), _format_bounds(1, None), _format_bounds(1, 2), _format_bounds(None, None)
    ('at most 0.01', 'at least 1', '1 to 2', '')
    """
    if low is None:
        return "" if high is None else f"at most {_format_number(high)}"
    return f"at least {_format_number(low)}" if high is None else f"{_format_number(low)} to {_format_number(high)}"


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:,.6g}"


def render_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    names = tuple(header)
    lines = [names, ["---"] * len(names), *([_escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list_ranges(slice_ranges: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    rows = [
        (f"{part['from']} to {part['to']}", f"{part['slices']:,}", f"{part['reason']}: {part['explanation']}")
        for part in slice_ranges[:MAX_RANGES]
    ]
    hidden = slice_ranges[MAX_RANGES:]
    if hidden:
        more = f"{format_count(len(hidden), 'range')} more"
        rows.append((more, f"{sum(part['slices'] for part in hidden):,}", "see the XCom of the task plan"))
    return rows


def _describe_following(extents: list[dict[str, Any]]) -> str:
    if not extents:
        return "none"
    count = format_count(sum(extent["slices"] for extent in extents), "slice")
    return f"at most {count}, up to {extents[-1]['to']}: until their state no longer changes"


def _render_list(title: str, lines: Iterable[str]) -> list[str]:
    items = "\n".join(f"- {line}" for line in lines)
    return [f"{title}:\n\n{items}"] if items else []


def _escape(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")
