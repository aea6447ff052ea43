"""Find the slices that the quality gate rejected and that no later run has committed."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from tidemark.config.types import format_instant, to_micros
from tidemark.delta.table import DeltaTableHandle
from tidemark.formatting import ToDict
from tidemark.ledger.ledger import Ledger
from tidemark.quality.results_table import REJECTED_AT


@dataclass(frozen=True)
class PendingRejection(ToDict):
    """Newest rejection of a slice, without a commit of the slice since."""

    slice: str
    """Start of the slice, UTC."""
    rejected_at: str
    """Time of the rejection in whole seconds, UTC."""
    expectations: tuple[str, ...]
    """Names of the failed expectations."""
    run: str
    """Identifier of the rejected run."""


def list_pending_rejections(ledger: Ledger) -> list[PendingRejection]:
    """List the slices whose newest run was rejected, in order, from the table `rejection_results`.

    Slices that failed only an invariant of the join have no row in the table.
    """
    log = DeltaTableHandle.open(ledger.tables.rejection_results)
    if log is None:
        return []
    rows: pd.DataFrame = log.read(["slice", "run", "expectation", REJECTED_AT.name]).to_pandas()
    published = dict(zip(ledger.rows["number"], ledger.rows.get("published_at", []), strict=True))
    rejections = []
    for _, attempts in rows.groupby("slice"):
        rejected_at = attempts[REJECTED_AT.name].max()
        number = ledger.grid.number_at(to_micros(attempts["slice"].iloc[0].to_pydatetime()))
        if number not in published or published[number] < rejected_at:
            newest = attempts[attempts[REJECTED_AT.name] == rejected_at]
            label, instant = ledger.grid.label(number), format_instant(rejected_at.floor("s").to_pydatetime())
            rejections.append(PendingRejection(label, instant, tuple(newest["expectation"]), newest["run"].iloc[0]))
    return rejections
