"""Read the inputs of committed slices at the versions that the slices have read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tidemark.config import Pipeline
from tidemark.ledger.entry import Entry
from tidemark.ledger.erasure_records import predicates_from_json
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import ConsumedVersions, compute_consumed_versions
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import StoredInput, read_input_slices


def split_into_jobs(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Split consecutive slices into jobs, which read one version of the inputs each.

    A job begins at another input version, and at a slice that consumed late-arriving rows.
    """
    job: list[Entry] = []
    for entry in entries:
        needs_new_job = job and (
            entry.excluded_predicates != job[-1].excluded_predicates or entry.versions != job[-1].versions
        )
        if needs_new_job or entry.late_arriving_rows:
            yield from [job] if job else []
            job = []
        job.append(entry)
    yield job


@dataclass(frozen=True)
class JobInputs:
    """The inputs of a job of committed slices, as they were when the slices ran."""

    stored: tuple[StoredInput, StoredInput]
    ledger: Ledger
    entries: Sequence[Entry]
    """The slices, an item of `split_into_jobs`."""

    @classmethod
    def open(
        cls, spark: SparkSession, pipeline: Pipeline, lake: str, ledger: Ledger, entries: Sequence[Entry]
    ) -> JobInputs:
        """Open the inputs.

        Raises:
            InputError: An input is missing or unusable.
        """
        last = entries[-1]
        excluded = predicates_from_json(last.excluded_predicates)
        return cls(open_inputs(spark, pipeline, lake, last.versions, excluded), ledger, entries)

    def read(self) -> DataFrame:
        """Read the rows that the slices have read, late-arriving rows of earlier slices included.

        Spark raises errors of missing files later, when it runs the query (`is_missing_file_error`).

        Raises:
            MissingFilesError: Files of earlier versions were vacuumed.
        """
        slices = range(self.entries[0].number, self.entries[-1].number + 1)
        consumed = [self._find_consumed_versions(number) for number in range(len(self.stored))]
        return read_input_slices(self.stored, self.ledger.grid, slices, consumed)

    def _find_consumed_versions(self, side: int) -> ConsumedVersions:
        """Return the versions of an input that earlier slices had consumed when the job ran."""
        first = self.entries[0]
        version = first.versions[side]
        if not first.late_arriving_rows:
            return ConsumedVersions((), version)
        consumed = compute_consumed_versions(
            (entry for entry in self.ledger.entries.values() if entry.number < first.number), side
        )
        versions_by_slice = consumed.by_slice if first.late_arrival_policy == "append" else ()
        unplaced = None if consumed.unplaced is None else min(consumed.unplaced, version)
        return ConsumedVersions(
            tuple((start, min(consumed_version, version)) for start, consumed_version in versions_by_slice), unplaced
        )
