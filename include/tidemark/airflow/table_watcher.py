"""Start DAGs when rows land in a Delta table or a query commits a batch, by triggers that read logs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any, ClassVar

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from tidemark.airflow.project import Project
from tidemark.errors import UserError


def watch_tables(name: str, tables: Iterable[str], project: Project, every: timedelta = timedelta(minutes=1)) -> Asset:
    """Return an asset that gets an event when rows are committed to one of several Delta tables.

    Args:
        name: Name of the asset. No other asset may have it, not even as an inlet: Airflow would remove the watchers.
        tables: Paths of the tables, as in the pipeline file.
        project: The project, which has the lake.
        every: Interval between two checks of a log.
    """
    seconds = every.total_seconds()
    triggers = {
        table: TableVersions(table=table, lake=project.lake, poll_interval=seconds, asset=name) for table in tables
    }
    return Asset(name, watchers=[AssetWatcher(name=table, trigger=trigger) for table, trigger in triggers.items()])


def watch_checkpoint(name: str, checkpoint: str, project: Project, every: timedelta = timedelta(minutes=1)) -> Asset:
    """Return an asset that gets an event when a Structured Streaming query commits a micro-batch.

    Args:
        name: Name of the asset, as for `watch_tables`.
        checkpoint: Path of the query's checkpoint, as in the pipeline file.
        project: The project, which has the lake.
        every: Interval between two checks of the checkpoint.
    """
    trigger = CheckpointBatches(
        checkpoint=checkpoint, lake=project.lake, poll_interval=every.total_seconds(), asset=name
    )
    return Asset(name, watchers=[AssetWatcher(name=checkpoint, trigger=trigger)])


class LogVersions(BaseEventTrigger, ABC):
    """Trigger that fires when a log has a new version, once for all versions between two checks.

    The version is kept in Airflow's state store of the asset, so commits during a restart of the triggerer are not
    missed. Commits before the first check do not fire.
    """

    path_name: ClassVar[str]
    """Name of the path, as an argument of the trigger and in its event."""

    def __init__(self, path: str, lake: str, poll_interval: float, asset: str) -> None:
        """Create the trigger.

        Args:
            path: Path of the folder with the log, relative to the lake root or absolute.
            lake: The lake root.
            poll_interval: Seconds between two checks.
            asset: Name of the watched asset.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.path, self.lake, self.poll_interval, self.asset = path, lake, poll_interval, asset

    @abstractmethod
    def read_version(self) -> int:
        """Read the newest version in the log; -1 without a log. It runs in a thread of the triggerer."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments."""
        arguments = {name: getattr(self, name) for name in ("lake", "poll_interval", "asset")}
        return f"{type(self).__module__}.{type(self).__name__}", {self.path_name: self.path, **arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check the log repeatedly, in a thread since other triggers share the event loop."""
        seen = await self._load_seen()
        while True:
            version = await self._find_version()
            if version is not None and version != seen:
                if seen is not None:
                    yield TriggerEvent({self.path_name: self.path, "version": version})  # type: ignore[no-untyped-call]
                seen = version
                await self._store_seen(version)
            await asyncio.sleep(self.poll_interval)

    async def _find_version(self) -> int | None:
        """Return the newest version in the log, -1 without a log; None if the check failed."""
        try:
            return await asyncio.to_thread(self.read_version)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - the storage may recover
            self.log.warning("the log of %s could not be read, the next check tries again: %s", self.path, error)
            return None

    async def _load_seen(self) -> int | None:
        stored = await self._store.aget(self._key) if self._store else None
        return stored if isinstance(stored, int) else None

    async def _store_seen(self, version: int) -> None:
        if self._store:
            await self._store.aset(self._key, version)

    @property
    def _store(self) -> Any:
        """Airflow's state store of the asset; None outside the triggerer."""
        return self.asset_state_store and self.asset_state_store[Asset(self.asset)]

    @property
    def _key(self) -> str:
        """Key in the store: the version of the log up to which events were sent."""
        return f"version of {self.path}"


class TableVersions(LogVersions):
    """Trigger that fires when rows were committed to a Delta table. Maintenance, such as OPTIMIZE, does not fire."""

    path_name = "table"

    def __init__(self, *, table: str, lake: str, poll_interval: float, asset: str) -> None:
        """Create the trigger for a table's path, as `LogVersions`."""
        super().__init__(table, lake, poll_interval, asset)

    def read_version(self) -> int:
        """Read the version of the last commit with rows; -1 without one."""
        from tidemark.airflow.status_queries import find_last_write_version  # noqa: PLC0415 - opens tables

        return find_last_write_version(self.lake, self.path)


class CheckpointBatches(LogVersions):
    """Trigger that fires when a Structured Streaming query has committed a micro-batch."""

    path_name = "checkpoint"

    def __init__(self, *, checkpoint: str, lake: str, poll_interval: float, asset: str) -> None:
        """Create the trigger for a checkpoint's path, as `LogVersions`."""
        super().__init__(checkpoint, lake, poll_interval, asset)

    def read_version(self) -> int:
        """Read the number of the last committed batch; -1 before the first one."""
        from tidemark.airflow.status_queries import find_last_batch  # noqa: PLC0415 - opens storage

        return find_last_batch(self.lake, self.path)
