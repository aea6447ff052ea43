"""Model a streaming join that a plan or two tables describe, before a user adds the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tidemark.config.sides import SideName
from tidemark.errors import ImportRefusedError
from tidemark.importing.draft import Omission, Section, Setting

T = TypeVar("T")


@dataclass(frozen=True)
class StreamInput:
    """One input of a streaming join."""

    source: str
    """Name of the table in the job."""
    settings: Section
    """Settings of the input that the plan has: event_time, watermark_delay, where and so on."""
    connector: str = ""
    """Kind of source, such as kafka; empty if unknown."""
    path: str = ""
    """Path of the Delta table that the stream reads; empty for another source."""
    checkpoint_settings: Section = field(default_factory=dict)
    """Settings of the arrival that a checkpoint lacks."""
    join: StreamJoin | None = None
    """The join whose output the input is; None for a table."""


@dataclass(frozen=True)
class StreamJoin:
    """A streaming join, as settings with their origins."""

    title: str
    """The join in one line, for the head of the file."""
    name: str
    """Name that the job gives to the result."""
    name_origin: str
    """Place of the name in the job."""
    dialect: Setting
    inputs: dict[SideName, StreamInput]
    join: Section
    top_level: Section = field(default_factory=dict)
    """Further settings of the pipeline, such as flink_version and time_zone."""
    select: Section = field(default_factory=dict)
    """Output columns; empty for all."""
    omissions: tuple[Omission, ...] = ()
    slices: Section = field(default_factory=dict)
    """Settings of the slices that are known, in place of defaults."""
    notes: tuple[str, ...] = ()
    """Lines for the head of the file."""

    def list_chain(self) -> Iterator[StreamJoin]:
        """Yield the joins whose output this join reads, each after those that it reads, and then this join."""
        for source in self.inputs.values():
            if source.join:
                yield from source.join.list_chain()
        yield self


def choose_join(joins: Sequence[T], number: int | None, describe: Callable[[T], str]) -> T:
    """Choose one of the joins of a job.

    Args:
        joins: The joins, at least one.
        number: Number of the join, from 1; None if it is the only one.
        describe: Describes a join in a few words, for the choice.

    Raises:
        ImportRefusedError: The number does not choose a join.
    """
    if number is None and len(joins) == 1:
        return joins[0]
    if number is None or not 1 <= number <= len(joins):
        names = "; ".join(f"{position}: {describe(join)}" for position, join in enumerate(joins, 1))
        count = "there is 1 join" if len(joins) == 1 else f"there are {len(joins)} joins"
        raise ImportRefusedError(f"{count}. Choose with --join N: {names}")
    return joins[number - 1]
