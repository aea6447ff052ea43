"""Settings of expectations, which validate rows of a slice before it is published."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tidemark.config.allowed_expectations import ALLOWED_ARGUMENTS, ROW_EXPECTATIONS, check_expectation, check_name
from tidemark.config.base import Settings
from tidemark.config.baseline_metrics import (
    DEFAULT_BOUNDS,
    RANGE_EXPECTATION,
    ROWS_AHEAD,
    check_metric_expectation,
)
from tidemark.config.sides import SIDES, SideName

DATA_DOCS_INDEX = "gx/uncommitted/data_docs/local_site/index.html"
"""Path of Data Docs' first page, relative to the folder of a pipeline's tables."""
Severity = Literal["critical", "warning", "info"]
OnFailure = Literal["stop", "quarantine", "warn"]


class Expectation(Settings):
    """Great Expectations expectation, by its own type and arguments, over columns of the rows named by `on`.

    Written as `{type: expect_..., severity: warning, column: c, ...}`, with the arguments flat or under `kwargs`.
    It is evaluated on the rows of each slice, however many slices a Spark job computes.
    """

    type: str = Field(json_schema_extra={"enum": list(ALLOWED_ARGUMENTS)})
    """Expectation type of Great Expectations, or `rows`: the SQL condition `that` is true in each row."""
    kwargs: dict[str, Any] = {}
    """Arguments of the expectation."""
    severity: Severity = "critical"
    """Severity in the results of Great Expectations and in Data Docs."""
    on_failure: OnFailure = "stop"
    """Consequence of a failure. `stop`: the slice and later slices are not published. `quarantine`: the slice is
    published without the rows that violate the expectation. `warn`: the slice is published with a warning. Default:
    `stop` for critical, `warn` for warning and info."""
    on: Literal["emissions", "pairs", "late", "left", "right", "history"] = "emissions"
    """Rows to validate. `emissions`: all output rows. `pairs`: output rows that are pairs. `late`: late and rejected
    rows, with the columns of the table `late`. `left`, `right`: rows of an input before the join, with its columns.
    `history`: one row with the metrics of the slice, and their ratios to those of earlier slices."""
    per: Literal["slice", "day", "job"] = "slice"
    """Scope of an evaluation. `slice`: the rows of one slice. `day`: the rows of a day (UTC, or `slices.time_zone`),
    evaluated with the last slice that begins in it. Only this slice can fail. `job`: the rows of all slices of one
    Spark job. All of them fail together."""
    notes: str | list[str] | None = None
    """Free-text note stored with the validation result."""
    meta: dict[str, str | int | float | bool] = {}
    """Metadata for programs, stored with the validation result."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_forms(cls, value: Any) -> Any:
        if isinstance(value, str):
            check_name(value)
        if not isinstance(value, dict):
            return value
        match value:
            case {"type": _}:
                pass
            case _ if len(value) > 1 and (name := _find_misplaced_name(value)):
                check_name(name)
                raise ValueError(f"{name} has other settings beside it. Write {{type: {name}, ...}}.")
            case _ if len(value) == 1:
                [(name, arguments)] = value.items()
                if name in ALLOWED_ARGUMENTS and not isinstance(arguments, dict | None):
                    raise ValueError(
                        f"{name}: needs arguments by name instead of {arguments!r}. Write {name}: {{ARGUMENT: VALUE}}."
                    )
                value = {**arguments, "type": name} if isinstance(arguments, dict) else {"type": name}
        fields = {k: v for k, v in value.items() if k in cls.model_fields}
        flat = {k: v for k, v in value.items() if k not in cls.model_fields}
        if fields.get("severity", "critical") != "critical":
            fields.setdefault("on_failure", "warn")
        kwargs = fields.get("kwargs", {})
        return {**fields, "kwargs": {**kwargs, **flat} if isinstance(kwargs, dict) else kwargs}

    @model_validator(mode="after")
    def _check_expectation(self) -> Self:
        check_expectation(self.type, self.kwargs)
        if reserved := [name for name in self.meta if name.startswith("tidemark")]:
            raise ValueError(
                f"{self.type}: meta: names that begin with tidemark, such as {reserved[0]}, are reserved. Rename it."
            )
        if self.on == "history":
            check_metric_expectation(self.type, self.kwargs, self.per)
        if self.per == "day" and self.on in SIDES:
            raise ValueError(
                f"on: {self.on} is evaluated before the join, per slice or per job. Replace or remove per: day."
            )
        if self.on_failure == "quarantine" and self.type not in ROW_EXPECTATIONS:
            raise ValueError(
                f"{self.type}: on_failure: quarantine removes rows that violate the expectation, but this type does "
                "not validate single rows. Use stop or warn, or add an expectation on each row."
            )
        if self.on_failure == "quarantine" and self.scope:
            raise ValueError(
                f"{self.type}: on_failure: quarantine needs the emissions of a slice, not{self.scope}. Remove on and "
                "per."
            )
        return self

    @property
    def scope(self) -> str:
        """Rows and unit of an evaluation, such as ` on late per day`. Empty for the emissions of each slice."""
        on = "" if self.on == "emissions" else f" on {self.on}"
        return on if self.per == "slice" else f"{on} per {self.per}"

    @property
    def check(self) -> tuple[str, dict[str, Any], str, Severity]:
        """Type, arguments, scope and severity: results of two expectations with equal ones cannot be told apart."""
        return self.type, self.kwargs, self.scope, self.severity


def _find_misplaced_name(settings: dict[Any, Any]) -> str | None:
    """Find an expectation type, perhaps misspelt, that is a setting of an entry instead of its type."""
    return next((str(name) for name in settings if name in ALLOWED_ARGUMENTS or str(name).startswith("expect")), None)


def create_default_expectations(sides_ahead: Collection[SideName] = SIDES) -> list[Expectation]:
    """Create the warnings that every pipeline has unless its file sets `quality_defaults: off`.

    Args:
        sides_ahead: Inputs whose rows can be ahead of their arrival.
    """
    left_out = {metric for side, metric in ROWS_AHEAD.items() if side not in sides_ahead}
    return [
        Expectation(type=RANGE_EXPECTATION, kwargs={"column": column, **bounds}, severity="warning", on="history")
        for column, bounds in DEFAULT_BOUNDS
        if column not in left_out
    ]
