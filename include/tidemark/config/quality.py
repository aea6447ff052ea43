"""What a pipeline file expects of its output, and of a comparison with what a stream wrote."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tidemark.config.allowed_expectations import ARGUMENTS, ON_SINGLE_ROWS, check_expectation
from tidemark.config.base import Settings
from tidemark.config.baseline_metrics import DEFAULTS, TYPE, check_history
from tidemark.config.sides import SIDES
from tidemark.config.types import PositiveDuration, Rows

DOCS_PAGE = "gx/uncommitted/data_docs/local_site/index.html"
"""Where Data Docs' first page is, in the folder of a pipeline's tables."""
Severity = Literal["critical", "warning", "info"]
OnFailure = Literal["stop", "quarantine", "warn"]


class Expectation(Settings):
    """An expectation by Great Expectations' own name and arguments, over the columns of what it is on.

    Read from `{type: expect_..., severity: warning, column: c, ...}`, with the arguments flat or under `kwargs`.
    It is judged on the rows of each slice by itself, however many one Spark job takes.
    """

    type: str = Field(json_schema_extra={"enum": list(ARGUMENTS)})
    kwargs: dict[str, Any] = {}
    severity: Severity = "critical"
    """How grave it is, as Great Expectations and Data Docs tell it."""
    on_failure: OnFailure = "stop"
    """What becomes of a slice for which it does not hold. stop: that slice and those after it are not published;
    quarantine: it is published without the rows that break the expectation; warn: it is published, and told of. By
    default critical stops, warning and info warn."""
    on: Literal["emissions", "pairs", "late", "left", "right", "history"] = "emissions"
    """The rows: emissions; those that are pairs; late and rejected rows, with the columns of the table `late`; the
    left or the right input's, with its own columns, before they are joined; or the slice's figures beside those of
    earlier slices (`config.baseline_metrics.COLUMNS`), a number each."""
    per: Literal["slice", "day", "job"] = "slice"
    """What it is judged on: the rows of each slice; of each day (UTC, or that of `slices.time_zone`),
    once the last slice that begins in it is there, which then fails; or of all slices that one Spark job takes, which
    then fail all."""
    notes: str | list[str] | None = None
    """What there is to say of it, which its results hold."""
    meta: dict[str, str | int | float | bool] = {}
    """What programs are to know of it, which its results hold."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        match value:
            case {"type": _}:
                pass
            case _ if len(value) == 1:
                [(name, arguments)] = value.items()
                value = {**arguments, "type": name} if isinstance(arguments, dict) else {"type": name}
        own = {k: v for k, v in value.items() if k in cls.model_fields}
        flat = {k: v for k, v in value.items() if k not in cls.model_fields}
        if own.get("severity", "critical") != "critical":
            own.setdefault("on_failure", "warn")
        given = own.get("kwargs", {})
        return {**own, "kwargs": {**given, **flat} if isinstance(given, dict) else given}

    @model_validator(mode="after")
    def _confined(self) -> Self:
        check_expectation(self.type, self.kwargs)
        if ours := [name for name in self.meta if name.startswith("tidemark")]:
            raise ValueError(f"{self.type}: meta: names that begin with tidemark, as {ours[0]}, are taken; use another")
        if self.on == "history":
            check_history(self.type, self.kwargs, self.per)
        if self.per == "day" and self.on in SIDES:
            raise ValueError(f"on: {self.on} is judged before the join, per slice or per job; not per day")
        if self.on_failure == "quarantine" and self.type not in ON_SINGLE_ROWS:
            raise ValueError(
                f"{self.type}: on_failure: quarantine takes out the rows that break it, and this one is not about "
                "single rows; let it stop or warn, or expect something of each row beside it"
            )
        if self.on_failure == "quarantine" and self.looks_at:
            raise ValueError(
                f"{self.type}: on_failure: quarantine goes by the emissions of a slice, not{self.looks_at}; leave out "
                "on and per"
            )
        return self

    @property
    def looks_at(self) -> str:
        """What it is judged on, where that is not the emissions of each slice: ` on late per day`."""
        on = "" if self.on == "emissions" else f" on {self.on}"
        return on if self.per == "slice" else f"{on} per {self.per}"


def default_expectations() -> list[Expectation]:
    """What every pipeline warns of."""
    return [
        Expectation(type=TYPE, kwargs={"column": column, **bounds}, severity="warning", on="history")
        for column, bounds in DEFAULTS
    ]


class Budget(Settings):
    """How many rows may differ before a comparison fails: a number, or a share of the rows compared such as 0.1 %."""

    unexplained: Rows = Field(default=0, validate_default=True)
    """Rows that differ without a cause."""
    differing: Rows | None = None
    """All rows that differ, but for those not due yet; by default any number."""


class CompareSettings(Settings):
    """What `tidemark compare` does by default; its options come before these."""

    table: str = Field(alias="with")
    """What the stream wrote: a Delta path relative to the lake root, or a catalog name."""
    told_by: str | None = None
    """A pipeline that has replayed how the stream ran: its name, or its file in this one's folder or that of
    pipelines."""
    on: list[str] = []
    """Columns that tell rows apart, but for a changed value; by default keys, event times and windows."""
    ignore: list[str] = []
    """Columns that are not compared."""
    within: float = Field(default=0.0, ge=0)
    """How much fractions may differ."""
    every: PositiveDuration | None = None
    """Airflow: how often to compare, whole slices from `slices.start`; by default whenever slices are committed."""
    lag: PositiveDuration | None = None
    """How much the stream may be behind this machine's clock: what was due after that is pending, not lost."""
    budget: Budget = Budget()
