"""Refuse a plan that runs more slices or rows than the plan that was approved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidemark.config.types import Instant
from tidemark.errors import SliceOrderError, UserError
from tidemark.planning.plan import Plan, SliceRange
from tidemark.timegrid.slices import Grid, group_consecutive

CHANGED_INPUT = "changed input"
"""Reason of slices whose input rows were deleted or changed: `on_input_delete` may refuse them."""
_PLAN_AGAIN = "Plan again, and approve the new plan."


class _SliceExtent(BaseModel):
    """Consecutive slices in the JSON of a plan."""

    model_config = ConfigDict(frozen=True)

    start: Instant = Field(alias="from")
    end: Instant = Field(alias="to")
    reason: str


class ApprovedPlan(BaseModel):
    """The part of a stored plan that limits what may run. `Plan.to_dict` has the fields."""

    model_config = ConfigDict(frozen=True)

    pipeline: str
    slice_ranges: tuple[_SliceExtent, ...]
    estimated_rows: int

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a plan that `tidemark reprocess --dry-run --plan-file` has written.

        Raises:
            UserError: The file cannot be read, or is not a plan.
        """
        try:
            return cls.model_validate_json(file.read_text())
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}. Check the path.") from None
        except (UnicodeDecodeError, ValidationError):
            raise UserError(f"{file} is not a plan. Write one with --dry-run --plan-file FILE.") from None

    def require_covers(self, plan: Plan) -> None:
        """Check that a new plan runs no more than this one. It may run less, such as after a fault half-way.

        Slices that follow the first approved one because they are stale were approved with it.

        Raises:
            UserError: The plan is of another pipeline.
            SliceOrderError: The plan has more slices, or more rows for the approved slices, or applies changed rows of
                a slice that was approved for another reason.
        """
        if self.pipeline != plan.pipeline.name:
            raise UserError(f"the approved plan is of {self.pipeline}, not of {plan.pipeline.name}. {_PLAN_AGAIN}")
        approved = self._list_reasons(plan.grid)
        if added := _list_added_slices(plan, approved):
            raise SliceOrderError(f"the plan has changed since it was approved. New in it: {added}. {_PLAN_AGAIN}")
        rows = round(sum(rows for job, rows in plan.rows_by_job.items() if approved.keys() >= set(job)))
        if rows > self.estimated_rows:
            raise SliceOrderError(
                f"the inputs have changed since the plan was approved: its slices read about {rows:,} rows now, and "
                f"{self.estimated_rows:,} were approved. {_PLAN_AGAIN}"
            )

    def _list_reasons(self, grid: Grid) -> dict[int, str]:
        """Return the reason of each approved slice."""
        return {
            number: extent.reason
            for extent in self.slice_ranges
            for number in range(grid.parse_boundary(extent.start, "from"), grid.parse_boundary(extent.end, "to"))
        }


def write_plan(plan: Plan, file: Path) -> None:
    """Write a plan as JSON, to be approved.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        file.write_text(json.dumps(plan.to_dict(), indent=1))
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}. Name a file in a folder that exists.") from None


def _list_added_slices(plan: Plan, approved: Mapping[int, str]) -> str:
    """List the slices of a plan that neither are approved nor follow an approved slice as stale ones."""
    first = min(approved, default=None)
    added = []
    for part in plan.slice_ranges:
        if part.reason == "stale" and first is not None and part.slices[0] > first:
            continue
        numbers = [number for number in part.slices if not _is_approved(part, approved.get(number))]
        added += [f"{_format_extent(plan.grid, slices)} ({part.reason})" for slices in group_consecutive(numbers)]
    return ", ".join(added)


def _is_approved(part: SliceRange, reason: str | None) -> bool:
    """Return True if a slice was approved, and for changed input rows if they were approved."""
    return reason is not None and (part.reason != CHANGED_INPUT or reason == CHANGED_INPUT)


def _format_extent(grid: Grid, slices: range) -> str:
    return f"{grid.label(slices[0])} to {grid.label(slices[-1] + 1)}"
