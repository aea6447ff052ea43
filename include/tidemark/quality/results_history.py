"""What the tables `quality` and `refused` tell over all slices, by expectation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from tidemark.config.types import format_instant
from tidemark.delta.table import DeltaLog
from tidemark.quality.results_table import SCHEMA

OUTCOMES = ("passed", "warned", "failed", "waived", "quarantined")


@dataclass(frozen=True)
class Seen:
    """One expectation over the slices that it was judged in."""

    expectation: str
    severity: str
    judged: int
    """Committed slices, and attempts of slices that were refused."""
    outcomes: dict[str, int]
    """Those by verdict (`OUTCOMES`), as far as there are any; `failed` are refused."""
    least: float | None
    """What a value must not be below, as the last slice was judged; None for no bound."""
    greatest: float | None
    worst: float | None
    """The value furthest outside of its bounds, or nearest to one; None without values or bounds."""
    worst_in: str | None
    """The first slice that has it, UTC."""


def stored(path: str) -> pd.DataFrame:
    """The rows of the table `quality`, or `refused`, by slice; none where there is no table."""
    log = DeltaLog.open(path)
    if log is None:
        return pd.DataFrame(SCHEMA.empty_table().to_pydict())
    rows: pd.DataFrame = log.read(SCHEMA.names).to_pandas().sort_values("slice", kind="stable")
    return rows


def seen(*tables: pd.DataFrame) -> list[Seen]:
    """Each expectation's history in these tables together, those that did not hold most often first."""
    rows = pd.concat([table for table in tables if len(table)] or tables).sort_values("slice", kind="stable")
    found = list(_seen(rows))
    return sorted(found, key=lambda one: one.outcomes.get("passed", 0) - one.judged)


def describe(found: list[Seen]) -> list[dict[str, Any]]:
    """Give it to scripts: JSON-ready."""
    return [asdict(one) for one in found]


def _seen(rows: pd.DataFrame) -> Iterator[Seen]:
    for (expectation, severity), mine in rows.groupby(["expectation", "severity"], sort=False):
        outside = _outside(mine)
        records = mine.to_dict("records")
        worst = records[int(outside.argmax())] if outside.notna().any() else None
        last = records[-1]
        yield Seen(
            str(expectation),
            str(severity),
            len(mine),
            {name: int(count) for name in OUTCOMES if (count := (mine["verdict"] == name).sum())},
            _known(last["least"]),
            _known(last["greatest"]),
            None if worst is None else float(worst["value"]),
            None if worst is None else format_instant(worst["slice"].to_pydatetime()),
        )


def _outside(mine: pd.DataFrame) -> pd.Series[float]:
    """How far values are beyond the nearer bound, less than 0 within; NaN where there is no value or no bound."""
    below, above = mine["least"] - mine["value"], mine["value"] - mine["greatest"]
    return pd.concat([below, above], axis=1).max(axis=1)


def _known(value: float) -> float | None:
    return None if pd.isna(value) else float(value)
