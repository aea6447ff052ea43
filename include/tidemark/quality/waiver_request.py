"""Letting one slice through although an expectation does not hold for it."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemark.config import Pipeline
from tidemark.errors import UserError
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx.project import name_of
from tidemark.quality.quarantine import chosen
from tidemark.quality.waivers import Waiver, next_attempt, record


def waive(pipeline: Pipeline, lake: str, start: datetime, expectation: str, because: str, by: str) -> Waiver:
    """Let the next run of the slice that starts then be published although an expectation does not hold.

    It holds for the rows of one attempt of the slice; a later reprocess of it asks for another.

    Raises:
        UserError: no such expectation, or it judges more than a slice, or does not keep a slice back; no reason.
    """
    if not because.strip():
        raise UserError("--because: say why; it stands in the ledger")
    ledger = Ledger.of(pipeline, lake)
    number = ledger.grid.boundary(start, "--slice")
    # Of two that are called the same the one that keeps a slice back.
    named = {name_of(one): one for one in sorted(pipeline.quality, key=lambda one: one.on_failure != "warn")}
    if not named:
        raise UserError(f"pipeline {pipeline.name} has no expectation; what follows from the join cannot be waived")
    name = chosen(expectation, named)
    told = named[name]
    if told.per != "slice":
        raise UserError(f"{name} judges more than a slice (per: {told.per}); change it in the pipeline file")
    if told.on_failure == "warn":
        raise UserError(f"{name} keeps no slice back (on_failure: warn); there is nothing to waive")
    slice_ = ledger.grid.datetime_of(number)
    waiver = Waiver(slice_, next_attempt(ledger, number), name, " ".join(because.split()), by, datetime.now(UTC))
    record(ledger.tables, waiver)
    return waiver
