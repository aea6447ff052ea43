"""Start DAGs when rows land in a Delta table, by a trigger that reads the table's log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

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


class TableVersions(BaseEventTrigger):
    """Trigger that fires when rows were committed to a Delta table, once for all commits between two checks.

    Maintenance, such as OPTIMIZE, does not fire. The version is kept in Airflow's state store of the asset, so commits
    during a restart of the triggerer are not missed. Commits before the first check do not fire.
    """

    def __init__(self, *, table: str, lake: str, poll_interval: float, asset: str) -> None:
        """Create the trigger.

        Args:
            table: Path of the table, relative to the lake root or absolute.
            lake: The lake root.
            poll_interval: Seconds between two checks.
            asset: Name of the watched asset.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.table, self.lake, self.poll_interval, self.asset = table, lake, poll_interval, asset

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments."""
        names = ("table", "lake", "poll_interval", "asset")
        return f"{type(self).__module__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check the log repeatedly, in a thread since other triggers share the event loop."""
        seen = await self._load_seen()
        while True:
            version = await self._find_version()
            if version is not None and version != seen:
                if seen is not None:
                    yield TriggerEvent({"table": self.table, "version": version})  # type: ignore[no-untyped-call]
                seen = version
                await self._store_seen(version)
            await asyncio.sleep(self.poll_interval)

    async def _find_version(self) -> int | None:
        """Return the version of the last commit with rows, -1 without a table; None if the check failed."""
        from tidemark.airflow.status_queries import find_last_write_version  # noqa: PLC0415 - opens tables

        try:
            return await asyncio.to_thread(find_last_write_version, self.lake, self.table)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - the storage may recover
            self.log.warning("the log of %s could not be read, the next check tries again: %s", self.table, error)
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
        """Key in the store: the version of the table up to which events were sent."""
        return f"version of {self.table}"
