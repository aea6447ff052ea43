"""Mark slices whose output another system has written, before the pipeline took over.

An adopted slice has run for its state only: its rows are in the adopted table, and none are in the pipeline's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from tidemark.config import Pipeline
from tidemark.errors import UserError
from tidemark.ledger.entry import Entry


@dataclass(frozen=True)
class AdoptedTable:
    """Table with the output of adopted slices, as `Entry.adopted_from` stores it."""

    table: str
    version: int
    """Version of the table when it was adopted."""

    def to_json(self) -> str:
        """Serialize the table for the ledger."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> AdoptedTable:
        """Parse a table of the ledger."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Adoption:
    """Adopted slices of a pipeline, and the table with their output."""

    source: AdoptedTable
    start: int
    """First adopted slice in the ledger. The state of the pipeline begins there."""
    end: int
    """First slice whose output is the pipeline's own."""


def find_adoption(entries: Mapping[int, Entry]) -> Adoption | None:
    """Find the adopted slices among the newest entries; None without any."""
    adopted = {number: entry.adopted_from for number, entry in entries.items() if entry.adopted_from}
    if not adopted:
        return None
    first, last = min(adopted), max(adopted)
    return Adoption(AdoptedTable.from_json(adopted[last]), first, last + 1)


def list_adopted_slices(entries: Mapping[int, Entry], numbers: Iterable[int]) -> dict[int, str]:
    """Return `Entry.adopted_from` by number, for those slices whose output is not published.

    Slices without an entry count as adopted if a later slice is.
    """
    adoption = find_adoption(entries)
    if adoption is None:
        return {}
    adopted_table = adoption.source.to_json()
    tables = dict[int, str]()
    for number in numbers:
        entry = entries.get(number)
        adopted_from = entry.adopted_from if entry else adopted_table if number < adoption.end else None
        if adopted_from:
            tables[number] = adopted_from
    return tables


def require_no_output_stream(pipeline: Pipeline) -> None:
    """Check that no pipeline reads the output of one with adopted slices: its output stream would lack their rows.

    Raises:
        UserError: The pipeline writes an output stream.
    """
    if pipeline.output_stream:
        raise UserError(
            f"{pipeline.name} has output_stream: true, and its output stream would lack the rows and watermarks of "
            "adopted slices, which the next join needs. Remove output_stream, or give the pipeline a new `output` and "
            "run it from its first slice instead of adopting a table."
        )
