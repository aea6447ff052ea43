"""Query ledgers and Delta logs for Airflow's tasks, without Spark.

Nothing is written, and only `vacuum_tables` removes files. delta-rs does not survive `fork`: import this module only
inside the process of a task or of the triggerer, never in a DAG file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from tidemark.config import Pipeline, load_pipeline
from tidemark.config.chain_files import load_upstreams
from tidemark.config.sides import SIDES
from tidemark.config.types import format_micros
from tidemark.delta.filesystem import has_file, list_file_sizes, open_filesystem
from tidemark.delta.paths import resolve_path
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.snapshot import DeltaSnapshot
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import UserError
from tidemark.formatting import format_count
from tidemark.integrity.check import check_integrity
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import find_stale_slices
from tidemark.maintenance.vacuum import vacuum
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.gx.data_docs import get_docs_index
from tidemark.sources.completeness import measure_completeness
from tidemark.spark.lazy_session import SparkNeededError, create_refusing_session
from tidemark.watermarks.values import END_OF_INPUT, NO_WATERMARK

AGREEMENT = ("same", "only_batch", "only_stream", "unexplained", "pending")
"""Columns of the table `agreement` that count rows."""
REPORT_PAGE = "report.html"
"""Name of a comparison's report in the folder of a pipeline's tables, to which pages of Airflow link."""
MAX_LINES = 10
"""Maximum number of lines in an event, since Airflow's database stores each event."""


def plan_outdated_slices(pipeline: Pipeline, lake: str) -> dict[str, Any] | None:
    """Plan which committed slices have to run again, from settings and table logs.

    Returns:
        The plan (`Plan.to_dict`); None if Spark has to read rows.

    Raises:
        UserError: The planner refuses.
    """
    try:
        request = Request(reprocess=True, outdated=True)
        return create_plan(create_refusing_session(), pipeline, lake, request).to_dict()
    except SparkNeededError:
        return None


def describe_outdated_upstreams(pipeline: Pipeline, lake: str) -> list[str]:
    """Describe which pipelines before this one in a chain have outdated slices themselves, one line per pipeline.

    Args:
        pipeline: The pipeline.
        lake: The lake root.

    Raises:
        PipelineFileError: A file of the chain is not valid.
    """
    lines = []
    for name, upstream in {upstream.name: upstream for upstream in load_upstreams(pipeline).values()}.items():
        lines += describe_outdated_upstreams(upstream, lake)
        try:
            plan = plan_outdated_slices(upstream, lake)
        except UserError as error:
            lines.append(f"{name} cannot be planned: {error}")
            continue
        if plan is None or plan["slices"]:
            count = format_count(plan["slices"], "outdated slice") if plan else "perhaps outdated slices"
            lines.append(f"{name} has {count}. Start {name}__repair first: it may change more slices here.")
    return list(dict.fromkeys(lines))


def are_committed(pipeline: Pipeline, lake: str, start: datetime, end: datetime) -> bool:
    """Return True if the slices from `start` to `end` (exclusive) are committed and no committed slice is stale.

    Raises:
        SliceOrderError: An instant is no slice boundary.
        UserError: A table is not valid.
    """
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    first = ledger.grid.parse_boundary(start, "start")
    last = ledger.grid.parse_boundary(end, "end")
    are_present = first < last and all(number in ledger.entries for number in range(first, last))
    return are_present and not find_stale_slices(ledger)


def find_start_of_uncommitted(pipeline: Pipeline, lake: str, start: datetime) -> datetime:
    """Return the end of the last committed slice, or `start` if that is later.

    Raises:
        UserError: The tables are not valid.
    """
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    return max(start, ledger.grid.datetime_of(ledger.last.number + 1)) if ledger.last else start


def describe_incomplete_inputs(file: str, lake: str, end: str, *, assets: bool = False) -> list[str]:
    """Return one line per input that is not complete up to an instant, by the rules in a pipeline file.

    Args:
        file: The pipeline file.
        lake: The lake root.
        end: The instant, ISO 8601.
        assets: Also check rules that name an asset.

    Raises:
        UserError: The file or a table is not valid.
    """
    inputs = measure_completeness(load_pipeline(Path(file)), lake, assets_updated=not assets)
    return [input_.explain() for input_ in inputs if not input_.covers(datetime.fromisoformat(end))]


def select_rows_since(ledger: Ledger, since: datetime | Mapping[str, Any]) -> pd.DataFrame:
    """Select the newest rows of a ledger that were committed since an instant (inclusive) or after a commit.

    Args:
        ledger: The ledger.
        since: The instant, or the commit as `last_commit` of a summary. If the ledger does not have its run, all rows
            are later: the tables were deleted and written again.
    """
    rows = ledger.rows
    if rows.empty:
        return rows
    if isinstance(since, datetime):
        return rows[rows["committed_at"] >= pd.Timestamp(since)]
    return rows[rows["commit"] > (since["number"] if since["run"] in ledger.runs else 0)]


def summarize_commits_since(
    pipeline: Pipeline, lake: str, since: datetime | Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a JSON-ready summary of what was committed since then (`select_rows_since`), or None for nothing.

    `amended` slices had run before, and rows of them were released or erased since. `released` is the number of rows
    that they gained. All counts but these two are of the other slices, which have run since.
    """
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    tables, grid = ledger.tables, ledger.grid
    rows = select_rows_since(ledger, since)
    if rows.empty:
        return None
    numbers = rows["number"].astype(int)
    earlier = _read_earlier_emissions(ledger, rows, since)
    is_amended = pd.Series([key in earlier for key in zip(rows["slice"], rows["attempt"], strict=True)], rows.index)
    amended, run = rows[is_amended], rows[~is_amended]
    sides: dict[str, Any] = {
        side: {name: int(sum(counts[name] for counts in run[side])) for name in ("read", "late", "rejected")}
        for side in SIDES
    }
    return {
        "pipeline": pipeline.name,
        "from": grid.label(int(numbers.min())),
        "to": grid.label(int(numbers.max()) + 1),
        "slices": len(run),
        "rerun": int((run["attempt"] > 1).sum()),
        "amended": len(amended),
        "emissions": int(run["emissions"].sum()),
        "released": _count_released(amended, earlier),
        "seconds": round(float(run.drop_duplicates("run")["job_seconds"].sum()), 3),
        **sides,
        "incomplete_slices": int(run["incomplete_inputs"].notna().sum()),
        "quality": dict(Counter(run["quality"])),
        "failed_expectations": _failed_expectations(run["quality_results"]),
        "docs": get_docs_index(tables),
        "last_commit": {"number": ledger.last_commit, "run": str(rows.sort_values("commit")["run"].iloc[-1])},
        "last_slice": grid.label(int(ledger.rows["number"].max())),
        "watermark": _format_watermark(ledger),
    }


def _read_earlier_emissions(
    ledger: Ledger, rows: pd.DataFrame, since: datetime | Mapping[str, Any]
) -> dict[tuple[pd.Timestamp, int], float]:
    """Read the emissions of runs of which a release or an erasure has changed rows since an instant or a commit.

    Args:
        ledger: The ledger.
        rows: Rows of the ledger that were committed since.
        since: The instant or the commit, as for `select_rows_since`.

    Returns:
        The number of emissions before, by slice and attempt.
    """
    # A promotion also commits a row again, but publishes another run.
    is_again = rows["original_commit"].notna() & rows["promotion"].isna()
    log = DeltaTableHandle.open(ledger.tables.ledger)
    if log is None or not is_again.any():
        return {}
    is_earlier = (
        ds.field("committed_at") < pa.scalar(since, pa.timestamp("us", "UTC"))
        if isinstance(since, datetime)
        else ds.field("commit") <= (since["number"] if since["run"] in ledger.runs else 0)
    )
    columns = ("slice", "attempt", "commit", "committed_at", "emissions")
    stored = log.read(columns, is_earlier).to_pandas().sort_values("commit")
    emissions = dict(zip(zip(stored["slice"], stored["attempt"], strict=True), stored["emissions"], strict=True))
    again = rows[is_again]
    return {key: emissions[key] for key in zip(again["slice"], again["attempt"], strict=True) if key in emissions}


def _count_released(amended: pd.DataFrame, earlier: Mapping[tuple[pd.Timestamp, int], float]) -> int:
    """Count the rows that slices gained; a slice that lost rows to an erasure gained none."""
    slices = amended[["slice", "attempt", "emissions"]].dropna()
    gained = (int(rows - earlier[slice_, attempt]) for slice_, attempt, rows in slices.itertuples(index=False))
    return sum(max(0, rows) for rows in gained)


def _format_watermark(ledger: Ledger) -> str | None:
    """Return the combined watermark at the end of the last slice; None before the first row and after the last one."""
    watermark = ledger.last.watermarks.combined if ledger.last else NO_WATERMARK
    return None if watermark in {NO_WATERMARK, END_OF_INPUT} else format_micros(watermark * 1000)


def find_data_docs(pipeline: Pipeline, lake: str) -> str | None:
    """Return the path of the first page of the pipeline's Data Docs below the lake root; None if there is none.

    An output outside the lake root has no such path.
    """
    return _find_page(get_docs_index(PipelineTables.from_config(pipeline, lake)), lake)


def find_report(pipeline: Pipeline, lake: str) -> str | None:
    """Return the path below the lake root of the report (`REPORT_PAGE`) in the pipeline's folder; None without it."""
    return _find_page(f"{PipelineTables.from_config(pipeline, lake).root}/{REPORT_PAGE}", lake)


def _find_page(page: str, lake: str) -> str | None:
    path = page.removeprefix(f"{lake.rstrip('/')}/")
    return path if path != page and has_file(lake, path) else None


def find_last_write_version(lake: str, table: str) -> int:
    """Return the version of the last commit with rows of an input; -1 if there is none, or no table.

    Raises:
        ForbiddenPathError: The operator does not allow the path.
    """
    snapshot = DeltaSnapshot.open(resolve_path(lake, table))
    version = snapshot.last_write_version if snapshot else None
    return -1 if version is None else version


def find_last_batch(lake: str, checkpoint: str) -> int:
    """Return the number of the last micro-batch that a Structured Streaming query has committed; -1 if there is none.

    Raises:
        ForbiddenPathError: The operator does not allow the path.
    """
    commits = list_file_sizes(open_filesystem(f"{resolve_path(lake, checkpoint)}/commits"))
    return max((int(name) for name in commits if name.isdigit()), default=-1)


def count_uncommitted_slices(pipeline: Pipeline, lake: str, now: datetime) -> int:
    """Count the slices after the last committed slice that have ended by an instant.

    Raises:
        UserError: The tables are not valid.
    """
    return Ledger.from_pipeline(pipeline, lake, applies_commits=False).count_uncommitted(pipeline.slices, now)


def count_agreement(pipeline: Pipeline, lake: str) -> dict[str, int]:
    """Return how many rows of all compared slices are the same as the stream's, and how many differ, by kind."""
    table = DeltaTableHandle.open(PipelineTables.from_config(pipeline, lake).agreement)
    if table is None or pipeline.compare is None:
        return {}
    of_table = ds.field("compared_with") == pipeline.compare.table
    rows = table.read(["compared_with", *AGREEMENT], of_table).to_pandas()
    return {name: int(rows[name].sum()) for name in AGREEMENT}


def vacuum_tables(pipeline: Pipeline, lake: str) -> str:
    """Remove files by the pipeline's `retention`, except checkpoints, and return a line about it.

    Raises:
        UserError: The tables are not valid.
    """
    removed = vacuum(pipeline, lake)
    files = {
        "uncommitted file": removed.uncommitted_files,
        "replaced file": removed.replaced_files,
        "log file": removed.log_files,
        "Data Docs file": removed.data_docs,
    }
    parts = ", ".join(format_count(len(removed_files.files), noun) for noun, removed_files in files.items())
    return f"{pipeline.name}: removed {parts}"


def describe_integrity_issues(pipeline: Pipeline, lake: str) -> list[str]:
    """Check the tables against the ledger and return one line per issue, at most `MAX_LINES`.

    Raises:
        UserError: The tables are not valid.
    """
    lines = [f"{issue.damage} ({issue.table}): {issue.detail}" for issue in check_integrity(pipeline, lake).damages]
    return lines[:MAX_LINES]


def _failed_expectations(stored: Iterable[str]) -> list[str]:
    """Return the distinct failed expectations, at most `MAX_LINES`."""
    lines = (f"{result['expectation']} {result['detail']}" for results in stored for result in json.loads(results))
    return list(dict.fromkeys(lines))[:MAX_LINES]
