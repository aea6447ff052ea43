"""Wait in the triggerer until inputs are complete, without a worker slot or a JVM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark.airflow.metrics import send_uncommitted_slices
from tidemark.config import load_pipeline
from tidemark.errors import UserError


class InputsComplete(BaseTrigger):
    """Trigger that fires when a pipeline's inputs are complete up to an instant. The task checks assets.

    Its event has `timeout_at`. It has `error` after an error of the user, or `incomplete` with the inputs that were
    incomplete at the timeout.
    """

    def __init__(self, *, file: str, lake: str, end: str, poll_interval: float, timeout_at: str | None = None) -> None:
        """Create the trigger.

        Args:
            file: The pipeline file.
            lake: The lake root.
            end: Instant up to which inputs must be complete, ISO 8601.
            poll_interval: Seconds between two checks.
            timeout_at: Instant of the timeout, ISO 8601; None to wait forever.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.file, self.lake, self.end, self.poll_interval, self.timeout_at = file, lake, end, poll_interval, timeout_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments."""
        names = ("file", "lake", "end", "poll_interval", "timeout_at")
        return f"{type(self).__module__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check repeatedly, in a thread since other triggers share the event loop."""
        while True:
            # The task has just checked.
            await asyncio.sleep(self.poll_interval)
            try:
                incomplete = await asyncio.to_thread(self._find_incomplete_inputs)
            except UserError as error:
                yield self._event(error=str(error))
                return
            except Exception as error:  # noqa: BLE001 - the storage may recover
                incomplete = [f"the check failed: {error}"]
            if not incomplete:
                yield self._event()
                return
            self.log.info("not complete up to %s: %s", self.end, "; ".join(incomplete))
            if self.timeout_at and datetime.now(UTC) >= datetime.fromisoformat(self.timeout_at):
                yield self._event(incomplete="; ".join(incomplete))
                return

    def _find_incomplete_inputs(self) -> list[str]:
        from tidemark.airflow.status_queries import describe_incomplete_inputs  # noqa: PLC0415 - opens tables

        send_uncommitted_slices(load_pipeline(Path(self.file)), self.lake)
        return describe_incomplete_inputs(self.file, self.lake, self.end)

    def _event(self, **fields: str) -> TriggerEvent:
        return TriggerEvent({"timeout_at": self.timeout_at, **fields})  # type: ignore[no-untyped-call]
