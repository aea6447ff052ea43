"""What a slice waits on in the triggerer: neither a worker's slot nor a JVM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark.airflow.metrics import tell_behind
from tidemark.config import load_pipeline
from tidemark.errors import UserError


class InputsComplete(BaseTrigger):
    """Fires when the inputs of a pipeline are complete up to an instant; assets are left to the task.

    Its event has `give_up`, and `mistake`, what the user has to mend, or `gave_up`, what was not complete at the end.
    """

    def __init__(self, *, file: str, lake: str, end: str, poll: float, give_up: str | None = None) -> None:
        """`end` and `give_up` are instants, ISO 8601; `poll` is how often to look, in seconds."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.file, self.lake, self.end, self.poll, self.give_up = file, lake, end, poll, give_up

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments."""
        names = ("file", "lake", "end", "poll", "give_up")
        return f"{type(self).__module__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, again and again, in a thread: others wait in the same loop."""
        while True:
            # The task has just looked.
            await asyncio.sleep(self.poll)
            try:
                short = await asyncio.to_thread(self._look)
            except UserError as error:
                yield self._event(mistake=str(error))
                return
            except Exception as error:  # noqa: BLE001 - the storage may answer the next time
                short = [f"it could not be told: {error}"]
            if not short:
                yield self._event()
                return
            self.log.info("not complete up to %s: %s", self.end, "; ".join(short))
            if self.give_up and datetime.now(UTC) >= datetime.fromisoformat(self.give_up):
                yield self._event(gave_up="; ".join(short))
                return

    def _look(self) -> list[str]:
        from tidemark.airflow.status_queries import short_inputs  # noqa: PLC0415 - the triggerer opens tables here alone

        tell_behind(load_pipeline(Path(self.file)), self.lake)
        return short_inputs(self.file, self.lake, self.end)

    def _event(self, **told: str) -> TriggerEvent:
        return TriggerEvent({"give_up": self.give_up, **told})  # type: ignore[no-untyped-call]
