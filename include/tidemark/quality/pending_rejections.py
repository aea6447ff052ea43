"""Find the slices that the quality gate rejected and that no later run has committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

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
    committed = _read_publication_times(ledger, rows["slice"].unique())
    rejections = []
    for _, attempts in rows.groupby("slice"):
        rejected_at = attempts[REJECTED_AT.name].max()
        if (start := attempts["slice"].iloc[0]) not in committed or committed[start] < rejected_at:
            number = ledger.grid.number_at(to_micros(start.to_pydatetime()))
            newest = attempts[attempts[REJECTED_AT.name] == rejected_at]
            label, instant = ledger.grid.label(number), format_instant(rejected_at.floor("s").to_pydatetime())
            rejections.append(PendingRejection(label, instant, tuple(newest["expectation"]), newest["run"].iloc[0]))
    return rejections


def _read_publication_times(ledger: Ledger, slices: Iterable[pd.Timestamp]) -> dict[pd.Timestamp, pd.Timestamp]:
    """Return when the newest attempt of some slices was published, by start of the slice.

    A release of quarantined rows and an erasure commit the row of an attempt again, without a run.
    """
    log = DeltaTableHandle.open(ledger.tables.ledger)
    if log is None:
        return {}
    is_listed = ds.field("slice").isin(pa.array(slices, pa.timestamp("us", "UTC")))
    rows: pd.DataFrame = log.read(["slice", "attempt", "committed_at"], is_listed).to_pandas()
    newest = rows[rows["attempt"] == rows.groupby("slice")["attempt"].transform("max")]
    first = newest.groupby("slice")["committed_at"].min()
    return dict(zip(first.index, first, strict=True))
