"""Workers of the simulation: threads that advance step by step, and fail where a schedule decides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
FAILURES = ("killed before", "killed after", "lost before", "lost after")
"""Failures of a step: the process is killed, or storage does not respond, before or after the step takes effect."""


class KilledError(BaseException):
    """The process was killed."""


class LostResponseError(Exception):
    """A call to storage failed, or its response was lost."""


class Worker:
    """A process, as a thread that takes one step at a time."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name, self.work = name, work
        self.may_step, self.has_stepped = threading.Semaphore(0), threading.Semaphore(0)
        self.failure: str | None = None
        self.is_finished = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def advance(self, failure: str | None) -> None:
        """Let the worker take its next step, with one of `FAILURES` or None."""
        self.failure = failure
        self.may_step.release()
        self.has_stepped.acquire()

    def step(self, access: Callable[[], T]) -> T:
        """Wait for the next turn, then access storage or fail."""
        self.has_stepped.release()
        self.may_step.acquire()
        failure, self.failure = self.failure, None
        match failure:
            case "killed before":
                raise KilledError
            case "lost before":
                raise LostResponseError("storage does not respond")
        result = access()
        match failure:
            case "killed after":
                raise KilledError
            case "lost after":
                raise LostResponseError("storage has not responded")
        return result

    def _run(self) -> None:
        self.may_step.acquire()
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - a process may end with any error
            self.error = error
        self.is_finished = True
        self.has_stepped.release()
