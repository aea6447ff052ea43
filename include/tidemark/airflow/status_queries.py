"""What tasks ask of the tables: whether slices are committed, whether inputs are complete, what a run has committed.

Ledgers and logs tell it, without Spark; nothing is written, and only `vacuumed` removes files. delta-rs does not
survive `fork`, so that this is imported where the work is, in a task's or the triggerer's own process, and by no DAG
file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset as ds

from tidemark.config import Pipeline, load_pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaLog
from tidemark.errors import OlderFormatError
from tidemark.formatting import counted
from tidemark.integrity.check import check
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import stale
from tidemark.maintenance.vacuum import vacuum
from tidemark.quality.gx.project import docs_page
from tidemark.sources.completeness import reaches
from tidemark.timegrid.slices import Grid

AGREEMENT = ("same", "only_batch", "only_stream", "unexplained", "pending")
"""Counts of the table `agreement`."""
MOST_FINDINGS = 10
"""Of an event: the database keeps each."""


def are_committed(pipeline: Pipeline, lake: str, start: datetime, end: datetime) -> bool:
    """Whether the slices from `start` to `end` (exclusive) are committed, and every committed slice still holds.

    An instant off the grid is for the job to refuse, and so are other settings, by the next slice that is new.
    """
    grid = Grid.of(pipeline.slices)
    first, last = (grid.number_at(micros(instant)) for instant in (start, end))
    if [grid.datetime_of(first), grid.datetime_of(last)] != [start, end] or first >= last:
        return False
    try:
        ledger = Ledger.seen(PipelineTables.of(pipeline, lake), grid)
    except OlderFormatError:
        return False
    return all(number in ledger.entries for number in range(first, last)) and not stale(ledger)


def short_inputs(file: str, lake: str, end: str, *, assets: bool = False) -> list[str]:
    """A line for each input that is not complete up to an instant, by the rules in a pipeline file.

    Assets are left out, unless asked for.

    Raises:
        UserError: the file, or a table that it names, does not serve.
    """
    found = reaches(load_pipeline(Path(file)), lake, assets_seen=not assets)
    return [one.told() for one in found if not one.covers(datetime.fromisoformat(end))]


def committed_since(pipeline: Pipeline, lake: str, since: datetime) -> dict[str, Any] | None:
    """What was committed at an instant or after, summed up for people and events: JSON-ready; None for nothing."""
    tables, grid = PipelineTables.of(pipeline, lake), Grid.of(pipeline.slices)
    ledger = Ledger.seen(tables, grid)
    if ledger.rows.empty:
        return None
    rows = ledger.rows[ledger.rows["committed_at"] >= pd.Timestamp(since)]
    if rows.empty:
        return None
    numbers = rows["number"].astype(int)
    sides: dict[str, Any] = {
        side: {name: int(sum(counts[name] for counts in rows[side])) for name in ("read", "late", "rejected")}
        for side in SIDES
    }
    return {
        "pipeline": pipeline.name,
        "from": grid.name(int(numbers.min())),
        "to": grid.name(int(numbers.max()) + 1),
        "slices": len(rows),
        "again": int((rows["attempt"] > 1).sum()),
        "emissions": int(rows["emissions"].sum()),
        "seconds": round(float(rows.drop_duplicates("run")["job_seconds"].sum()), 3),
        **sides,
        "incomplete": int(rows["incomplete"].notna().sum()),
        "quality": dict(Counter(rows["quality"])),
        "findings": _findings(rows["findings"]),
        "docs": docs_page(tables),
    }


def slices_behind(pipeline: Pipeline, lake: str, now: datetime) -> int:
    """How many slices have ended by an instant, and are behind the last one that is committed.

    Raises:
        UserError: the tables do not serve.
    """
    grid = Grid.of(pipeline.slices)
    last = Ledger.seen(PipelineTables.of(pipeline, lake), grid).last
    end = min(now, pipeline.slices.end) if pipeline.slices.end else now
    return max(0, grid.number_at(micros(end)) - (last.number + 1 if last else 0))


def agreed(pipeline: Pipeline, lake: str) -> dict[str, int]:
    """How many rows of all slices compared are the stream's, and how many differ, by kind; none where none was."""
    log = DeltaLog.open(PipelineTables.of(pipeline, lake).agreement)
    if log is None or pipeline.compare is None:
        return {}
    mine = ds.field("compared_with") == pipeline.compare.table
    rows = log.read(["compared_with", *AGREEMENT], mine).to_pandas()
    return {name: int(rows[name].sum()) for name in AGREEMENT}


def vacuumed(pipeline: Pipeline, lake: str) -> str:
    """What was removed by the pipeline's `retention`, but for states, in a line.

    Raises:
        UserError: the tables do not serve.
    """
    found = vacuum(pipeline, lake)
    files = {
        "of what was never committed": found.garbage,
        "of what was superseded": found.superseded,
        "of logs": found.logs,
        "of Data Docs": found.docs,
    }
    told = ", ".join(f"{counted(len(kind.files), 'file')} {name}" for name, kind in files.items())
    return f"{pipeline.name}: removed {told}"


def damages(pipeline: Pipeline, lake: str) -> list[str]:
    """What is not as it was committed, a line each, the first `MOST_FINDINGS`.

    Raises:
        UserError: the tables do not serve.
    """
    found = [f"{one.damage} ({one.table}): {one.detail}" for one in check(pipeline, lake).damages]
    return found[:MOST_FINDINGS]


def _findings(stored: Iterable[str]) -> list[str]:
    """What did not hold, each once, the first `MOST_FINDINGS`."""
    told = (f"{one['expectation']} {one['detail']}" for text in stored for one in json.loads(text))
    return list(dict.fromkeys(told))[:MOST_FINDINGS]
