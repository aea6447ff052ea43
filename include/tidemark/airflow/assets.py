"""Define a pipeline's assets, send their events, and find events that its inputs lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Context
from airflow.sdk.definitions.asset import AssetRef

from tidemark.config import Input, Pipeline
from tidemark.config.airflow import PartitionKind
from tidemark.config.types import parse_instant

GROUP = "tidemark"
"""Group of the assets with partition keys and of the tables, in Airflow's list of assets."""
_SUFFIXES: dict[PartitionKind, str] = {"slice": "partitions", "day": "days"}
_PROGRESS = ("last_slice", "watermark")
"""Fields of a summary of commits that Airflow's state store keeps for each asset."""
_COMMIT = "last_commit"
"""The ledger's last commit: a field of a summary of commits, which the state store keeps for the slices' asset."""
_START = "reports_since"
"""Key in the state store of the slices' asset: the instant from which the first report counts commits."""


def slices_asset(name: str) -> Asset:
    """Return the asset that gets an event when slices of the pipeline with this name are committed."""
    return Asset(f"{name}__slices")


def partition_asset(pipeline: Pipeline, lake: str, kind: PartitionKind) -> Asset:
    """Return the asset that gets an event with a partition key for each slice, or for each complete day.

    Its URI is that of the table `emissions`. In a DAG of another repository use `Asset.ref(name=...)`.

    Args:
        pipeline: The pipeline.
        lake: The lake root, an absolute path or a URI.
        kind: What a key stands for.
    """
    root = f"{lake.rstrip('/')}/{pipeline.output}" if "://" in lake else str(Path(lake, pipeline.output))
    uri = f"{root}/emissions" if "://" in root else Path(root, "emissions").as_uri()
    return Asset(
        name=f"{pipeline.name}__{_SUFFIXES[kind]}",
        # Airflow allows one asset per URI.
        uri=uri if kind == "slice" else f"{uri}?partition={kind}",
        group=GROUP,
        extra={"pipeline": pipeline.name, "partition": kind},
    )


def output_assets(pipeline: Pipeline, lake: str) -> list[Asset]:
    """Return the assets that get an event when slices are committed, by the settings of the pipeline file."""
    return [slices_asset(pipeline.name), *_partition_assets(pipeline, lake).values()]


def _partition_assets(pipeline: Pipeline, lake: str) -> dict[PartitionKind, Asset]:
    return {kind: partition_asset(pipeline, lake, kind) for kind in dict.fromkeys(pipeline.airflow.partitions)}


def read_report_start(context: Context, pipeline: Pipeline, outlets: Iterable[Any]) -> datetime | dict[str, Any]:
    """Return the last commit that a report has sent an event for, as `last_commit` of its summary.

    Before the first event, return the instant at which the first DAG run with a report has started. It is stored at
    the first try, because Airflow gives a finished run that is cleared a later `start_date`. Its other times are no
    substitute: `run_after` may be long before the run was created. Without the slices' asset among the task's outlets,
    return the start of this DAG run.
    """
    start = context["dag_run"].start_date or datetime.now(UTC) - timedelta(days=1)
    asset = slices_asset(pipeline.name)
    if asset not in outlets:
        return start
    store = context["asset_state_store"][asset]
    if isinstance(commit := store.get(_COMMIT), dict):
        return commit
    if isinstance(stored := store.get(_START), str):
        return min(start, datetime.fromisoformat(stored))
    store.set(_START, start.isoformat())
    return start


def store_reported_commit(
    context: Context, pipeline: Pipeline, outlets: Iterable[Any], commits: Mapping[str, Any]
) -> None:
    """Store the last commit of a summary as reported, for the slices' asset if it is an outlet."""
    asset = slices_asset(pipeline.name)
    if asset in outlets:
        context["asset_state_store"][asset].set(_COMMIT, commits[_COMMIT])


def record_commits(
    context: Context,
    pipeline: Pipeline,
    lake: str,
    commits: Mapping[str, Any],
    since: datetime | Mapping[str, Any],
    outlets: Iterable[Any],
) -> list[Any]:
    """Attach a summary of commits and partition keys to the events of a task's outlets, and store the last slice.

    Args:
        context: The context of the task.
        pipeline: The pipeline.
        lake: The lake root.
        commits: The summary of `status_queries.summarize_commits_since`.
        since: Start of the summary, as for `status_queries.summarize_commits_since`.
        outlets: The task's outlets.

    Returns:
        The outlets that are to get an event: a consumer with partitions cannot use an event without a key.
    """
    keys = _find_keys(pipeline, lake, since)
    # One event per key, so its summary is short.
    short = {name: commits[name] for name in ("pipeline", *_PROGRESS)}
    remaining = [outlet for outlet in outlets if keys.get(outlet) != []]
    for outlet in remaining:
        event = context["outlet_events"][outlet]
        event.extra = short if outlet in keys else dict(commits)
        if outlet in keys:
            event.add_partitions(keys[outlet])
        for name in _PROGRESS:
            if commits[name] and isinstance(outlet, Asset):
                context["asset_state_store"][outlet].set(name, commits[name])
    return remaining


def _find_keys(pipeline: Pipeline, lake: str, since: datetime | Mapping[str, Any]) -> dict[Any, list[str]]:
    """Return the keys of what was committed since then, by the asset with partition keys."""
    from tidemark.airflow.partition_keys import committed_keys  # noqa: PLC0415 - opens tables

    asset_by_kind = _partition_assets(pipeline, lake)
    keys = committed_keys(pipeline, lake, since) if asset_by_kind else {}
    return {asset: keys[kind] for kind, asset in asset_by_kind.items()}


def input_assets(pipeline: Pipeline) -> list[Asset | AssetRef]:
    """Return the inputs as assets: the slices of a pipeline, the asset of the input's rule, or else the table.

    The asset of a table is `tidemark:TABLE`, because a DAG of the user may define an asset of the table's name with
    another URI, and Airflow refuses tasks with either of the two. Names that Airflow does not accept are left out.
    """
    assets: list[Asset | AssetRef] = []
    for input_ in (pipeline.left, pipeline.right):
        # An error here would stop the DAGs of all pipelines.
        with suppress(ValueError):
            assets.append(_input_asset(input_))
    return assets


def _input_asset(source: Input) -> Asset | AssetRef:
    if source.upstream:
        return slices_asset(source.upstream.pipeline)
    rule = source.complete
    if rule and rule.asset:
        return Asset.ref(name=rule.asset)  # it may have a URI of its own, which only its producer knows
    return Asset(f"{GROUP}:{source.table}", group=GROUP)


def describe_missing_events(context: Context, pipeline: Pipeline, start: str, end: str) -> list[str]:
    """Return a line per asset in the inputs' rules that lacks an event of the slices.

    Args:
        context: The context of a task whose inlets are the input assets.
        pipeline: The pipeline.
        start: Start of the first slice to run (inclusive).
        end: End of the last slice (exclusive).
    """
    missing = []
    for rule in (pipeline.left.complete, pipeline.right.complete):
        if rule and rule.asset and rule.partition:
            if absent := _find_missing_keys(context, pipeline, rule.asset, rule.partition, (start, end)):
                more = f" and {len(absent) - 1:,} more" if absent[1:] else ""
                missing.append(f"asset {rule.asset} has no event of partition {absent[0]}{more}")
        elif rule and rule.asset:
            since = (parse_instant(end) + rule.grace_period).isoformat()
            if not len(context["inlet_events"][Asset.ref(name=rule.asset)].after(since).limit(1)):
                missing.append(f"asset {rule.asset} has no event since {since}")
    return missing


def _find_missing_keys(
    context: Context, pipeline: Pipeline, asset: str, key_format: str, interval: Sequence[str]
) -> list[str]:
    """Return the keys of an interval's slices of which an asset has no event."""
    from tidemark.airflow.partition_keys import input_keys  # noqa: PLC0415 - loads Spark's package

    start, end = map(parse_instant, interval)
    # A partition is complete only after its start, so its event is later.
    events = context["inlet_events"][Asset.ref(name=asset)].after(start.isoformat())
    found = {event.partition_key for event in events}
    return [key for key in input_keys(pipeline, start, end, key_format) if key not in found]
