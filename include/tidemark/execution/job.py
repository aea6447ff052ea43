"""One Spark job: a range of slices read, replayed, written and judged, its state carried through Delta."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pandas as pd
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidemark.clock.times import quoted
from tidemark.commits.changes import Change, emission_changes
from tidemark.commits.checkpoint import read_carried, restore, stored
from tidemark.commits.digest import digests, state_parts
from tidemark.commits.ledger import Counts, Entry, Landing, Ledger
from tidemark.commits.outputs import emissions, late_table
from tidemark.commits.runs import new_run, read_runs, withdraw, write_run
from tidemark.commits.staleness import seen
from tidemark.errors import CheckFailedError
from tidemark.execution import quality
from tidemark.execution.replay import STILL_IN, Replay, replay
from tidemark.execution.would_match import with_would_match
from tidemark.inputs.stored import rows_of
from tidemark.joins import lane_of
from tidemark.planning.plan import Plan
from tidemark.settings.sides import SIDES
from tidemark.settings.values import millis
from tidemark.spark.tuning import tuned_for_tiny_queries
from tidemark.watermarks.buckets import END_OF_INPUT, Buckets, Lane, Watermarks

TINY_ROWS = 20_000
Progress = Callable[[str], None]
"""Told the name of each step as it begins."""


@dataclass(frozen=True)
class JobResult:
    """What one job has written of its slices: nothing counts before its ledger rows are committed."""

    slices: range
    run: str
    entries: tuple[Entry, ...]
    rows: tuple[dict[str, Any], ...]
    """The ledger's rows, one for each entry."""
    verdict: quality.Verdict
    seconds: float
    changes: Mapping[int, Change]
    """What became of emissions, for slices that have run before."""
    refusal: str | None = None
    """Why the slices behind these were refused; None where none was."""

    def upto(self, count: int) -> JobResult:
        """The first slices of it, to be committed without the others."""
        slices = self.slices[:count]
        changes = {number: change for number, change in self.changes.items() if number in slices}
        refusal = self.refusal if count >= len(self.slices) else None
        return replace(
            self,
            slices=slices,
            entries=self.entries[:count],
            rows=self.rows[:count],
            changes=changes,
            refusal=refusal,
        )


def run_job(spark: SparkSession, plan: Plan, ledger: Ledger, slices: range, progress: Progress) -> JobResult:
    """Run a range of slices as one Spark job, continuing the ledger as it stands.

    Where the gate refuses a slice, the result is of those before it, with the reason.

    Raises:
        CheckFailedError: no slice may be published; nothing is left of the job.
        InputError: rows that earlier slices have read were deleted or changed.
    """
    began = time.monotonic()
    job = _Job(spark, plan, ledger, slices)
    try:
        progress("reading")
        with tuned_for_tiny_queries(spark) if job.expected_tiny else nullcontext():
            tiny = job.tiny
        with tuned_for_tiny_queries(spark) if tiny else nullcontext():
            progress("joining")
            job.write()
            progress("checking")
            count, verdict, refusal = job.judge()
            changes = emission_changes(spark, plan.tables.emissions, job.reruns, plan.grid)
        seconds = time.monotonic() - began
        rows = tuple(job.row(entry, verdict, seconds) for entry in job.entries)
    finally:
        job.release()
    result = JobResult(slices, job.run, job.entries, rows, verdict, seconds, changes)
    return replace(result.upto(count), refusal=refusal)


def is_tiny(read: int, carry_in: Entry | None) -> bool:
    """Whether a job over so few rows, read and carried in, is better off as `tuned_for_tiny_queries`."""
    return read + sum(carry_in.carried if carry_in else ()) <= TINY_ROWS


@dataclass(frozen=True)
class _Job:
    spark: SparkSession
    plan: Plan
    ledger: Ledger
    slices: range

    @cached_property
    def carry_in(self) -> Entry | None:
        return self.ledger.entry(self.slices[0] - 1)

    @cached_property
    def attempts(self) -> dict[int, int]:
        old = {number: self.ledger.entry(number) for number in self.slices}
        return {number: entry.attempt + 1 if entry else 1 for number, entry in old.items()}

    @cached_property
    def run(self) -> str:
        first = self.slices[0]
        return new_run(self.plan.grid, first, self.attempts[first], self.plan.number_after(self.ledger))

    @cached_property
    def landing(self) -> Landing:
        return self.plan.pipeline.late_landing if self.carry_in else "start"

    @cached_property
    def lane(self) -> Lane:
        before = self.carry_in.watermarks if self.carry_in else Watermarks()
        return lane_of(self.plan.pipeline, before, self.plan.drain_from, self.plan.trace)

    @cached_property
    def observed(self) -> Observation:
        return Observation()

    @cached_property
    def answer(self) -> Replay:
        plan, first = self.plan, self.slices[0]
        earlier = [entry for entry in self.ledger.entries.values() if entry.number < first]
        taken = [seen(earlier, side) for side in range(len(plan.inputs))]
        if self.landing != "append":
            taken = [replace(one, homes=()) for one in taken]
        for source, known in zip(plan.inputs, taken, strict=True):
            source.refuse_changes(plan.grid, first, known, plan.reprocess_command)
        rows = rows_of(plan.inputs, plan.grid, self.slices, taken).withColumn("lane", F.lit(0))
        carried = None
        if self.carry_in:
            carried = restore(self.spark, plan.tables, self.carry_in, plan.grid).withColumn("lane", F.lit(0))
        buckets = Buckets.of(plan.grid, self.slices, plan.join.buckets_per_slice)
        return replay(rows, carried, [self.lane], plan.join, buckets)

    @property
    def expected_tiny(self) -> bool:
        """Whether slices like the one before make a tiny job; not known of the first."""
        before = self.carry_in
        return before is not None and is_tiny(sum(before.read) * len(self.slices), before)

    @cached_property
    def tiny(self) -> bool:
        """Whether the rows, now that they are counted, make one."""
        return is_tiny(int(self.answer.counts[["left_rows", "right_rows"]].to_numpy().sum()), self.carry_in)

    def release(self) -> None:
        """Free Spark's memory, whatever became of the job."""
        if "answer" in self.__dict__:
            self.answer.release()

    def write(self) -> None:
        """Write emissions, late rows and checkpoint under this job's run, not yet counting."""
        # Side by side, because planning a write takes seconds and keeps one core busy.
        with ThreadPoolExecutor(max_workers=3) as pool:
            for done in [pool.submit(step) for step in (self._write_output, self._write_carried, self._write_late)]:
                done.result()

    def _write_output(self) -> None:
        plan = self.plan
        output = self._output.observe(self.observed, F.count("*").alias("pairs"))
        write_run(output, plan.tables.emissions, self.run)
        _ = self._written

    def _write_late(self) -> None:
        if not self.answer.suspected and DeltaTable.isDeltaTable(self.spark, self.plan.tables.late):
            return
        plan = self.plan
        late = self.answer.late.withColumn("row", F.monotonically_increasing_id()).persist()
        told = with_would_match(late, plan.join, plan.pipeline, plan.inputs, plan.grid, self.slices[-1])
        write_run(late_table(told, plan.pipeline, plan.grid).coalesce(self._files), plan.tables.late, self.run)
        late.unpersist()
        _ = self._written_late

    def _write_carried(self) -> None:
        rows = stored(self.answer.carried, self.plan.grid, self.plan.join).coalesce(self._files)
        write_run(rows, self.plan.tables.checkpoint, self.run)
        _ = self._written_carried

    def judge(self) -> tuple[int, quality.Verdict, str | None]:
        """How many slices may be published, the verdict on them, and why not the others.

        The output of the others is kept aside, and they are taken back.

        Raises:
            CheckFailedError: none may be.
        """
        plan, tables, first = self.plan, self.plan.tables, self.slices[0]
        output = self._stored_output
        verdict = quality.judge(self.facts, output, plan.pipeline, tables, self.run)
        if not verdict.critical:
            return len(self.slices), verdict, None

        def first_slices(count: int) -> DataFrame:
            return output.where(F.col("_slice") < F.lit(plan.grid.datetime_of(first + count)))

        fit, passed, refused = quality.first_refused(verdict, self.facts, first_slices, plan.pipeline, tables)
        count = 0 if plan.atomic else fit
        since = plan.grid.datetime_of(first + count)
        write_run(output.where(F.col("_slice") >= F.lit(since)), tables.rejected_output, self.run)
        withdraw(self.spark, tables, self.run, since if count else None)
        refusal = self._refusal(refused, fit)
        if not count:
            raise CheckFailedError(refusal)
        return count, passed, refusal

    @property
    def reruns(self) -> list[tuple[Entry, Entry]]:
        """Old and new entry of each slice that has run before."""
        olds = ((self.ledger.entry(entry.number), entry) for entry in self.entries)
        return [(old, new) for old, new in olds if old is not None]

    @cached_property
    def facts(self) -> pd.DataFrame:
        """One row per slice of the job: what `quality.DERIVED` says must be 0, and the number of emissions."""
        facts, lane, ends = self._written.reindex(self.slices), self.lane, list(self.ends.values())
        starts = pd.Series([w.combined for w in [lane.before, *ends[:-1]]], index=self.slices, dtype="float")
        newest = pd.Series(
            [max(w.newest(lane.lag), lane.before.combined) for w in ends],
            index=self.slices,
            dtype="float",
        )
        lateness = millis(self.plan.pipeline.join.allowed_lateness)
        return facts.assign(
            slice=[self.plan.grid.label(n) for n in self.slices],
            emissions=facts["emissions"].fillna(0).astype(int),
            pairs_out_of_bounds=facts["pairs_out_of_bounds"].fillna(0).astype(int),
            null_keys=facts["null_keys"].fillna(0).astype(int),
            results_before_watermark=(facts["oldest_result"] < starts - lateness).astype(int),
            results_after_newest_row=(facts["newest_result"] > newest).astype(int),
            rows_unaccounted=self._unaccounted,
            rows_not_written=int(self.observed.get.get("pairs", 0) - facts["emissions"].sum()),
        )

    @cached_property
    def counts(self) -> dict[int, tuple[Counts, Counts]]:
        """Where each input's rows of each slice went."""
        left, right = (self._counts_of(side, carried) for side, carried in zip(SIDES, self._carried_in, strict=True))
        return {n: (left[n], right[n]) for n in self.slices}

    @property
    def _unaccounted(self) -> int:
        """How many rows the replay evicted less, or more, than were read and then not written anywhere."""
        missing = 0
        for number, side in enumerate(SIDES):
            evicted = [counts[number].evicted for counts in self.counts.values()]
            missing += abs(sum(evicted) - self.answer.evicted.get.get(side, 0)) + sum(-n for n in evicted if n < 0)
        return missing

    @property
    def ends(self) -> dict[int, Watermarks]:
        """The watermarks after each slice."""
        return self.answer.lines[0].ends

    def _counts_of(self, side: str, carried_in: int) -> dict[int, Counts]:
        """Read comes from the inputs; late, rejected and carried from the tables as written; the rest was evicted."""
        slices, read = self.slices, self.answer.counts[f"{side}_rows"]
        aside = self._written_late.query("side == @side").groupby("number")
        late, rejected = aside["late"].sum(), aside["rejected"].sum()
        carried = self._written_carried.query("side == @side")
        came = carried.groupby("since")["rows"].sum().reindex(slices, fill_value=0)
        left = carried.groupby("until")["rows"].sum().reindex(slices, fill_value=0)
        kept = (came - left).cumsum()
        counts = {}
        for number in slices:
            into = int(read[number]), carried_in, int(late.get(number, 0)), int(rejected.get(number, 0))
            counts[number] = Counts.of(*into, carried_out=int(kept[number]))
            carried_in = counts[number].carried_out
        return counts

    @cached_property
    def _output(self) -> DataFrame:
        return emissions(self.answer.joined, self.plan.pipeline, self.plan.grid)

    @property
    def _stored_output(self) -> DataFrame:
        # Another `select` may have left other columns in the table.
        rows = read_runs(self.spark, self.plan.tables.emissions, self.run)
        return rows.select(*map(quoted, self._output.columns))

    @cached_property
    def _written(self) -> pd.DataFrame:
        facts = quality.slice_facts(self._stored_output, self.plan.pipeline)
        return facts.set_index((facts["slice_start"] - self.plan.grid.start) // self.plan.grid.every)

    @cached_property
    def _written_late(self) -> pd.DataFrame:
        if not self.answer.suspected:
            return pd.DataFrame(columns=["side", "number", "late", "rejected"])
        rows = read_runs(self.spark, self.plan.tables.late, self.run)
        number = self.plan.grid.number_column(F.unix_micros("_slice")).alias("number")
        rejected = ~F.col("reason").isin("late", *STILL_IN)
        counted = F.count_if(F.col("reason") == "late").alias("late"), F.count_if(rejected).alias("rejected")
        return rows.groupBy("side", number).agg(*counted).toPandas()

    @cached_property
    def _written_carried(self) -> pd.DataFrame:
        rows = read_carried(self.spark, self.plan.tables, self.plan.grid, self.run)
        return state_parts(rows, self.plan.join).toPandas()

    @property
    def _files(self) -> int:
        return 1 if self.tiny else self.spark.sparkContext.defaultParallelism

    @property
    def _carried_in(self) -> tuple[int, int]:
        return self.carry_in.carried if self.carry_in else (0, 0)

    @property
    def _versions(self) -> tuple[int, int]:
        left, right = (source.table.version for source in self.plan.inputs)
        return left, right

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """What the ledger will say of each slice."""
        plan, first = self.plan, self.slices[0]
        told, number = digests(self._written_carried, self.ends), plan.number_after(self.ledger)
        landed, landed_from = (self.answer.counts[name][first] for name in ("landed", "landed_from"))
        before = self.carry_in.digest if self.carry_in else None
        entries = []
        for n in self.slices:
            left, right = self.counts[n]
            entry = Entry(
                number=n,
                run=self.run,
                attempt=self.attempts[n],
                commit=number,
                settings=plan.settings,
                versions=self._versions,
                watermarks=self.ends[n],
                read=(left.read, right.read),
                carried=(left.carried_out, right.carried_out),
                drained=self.ends[n].combined == END_OF_INPUT,
                digest=told[n],
                carried_in_digest=before,
                landing=self.landing,
                landed=int(landed) if n == first else None,
                landed_from=int(landed_from) if n == first and landed else None,
                waiting=plan.waiting,
            )
            entries.append(entry)
            before = entry.digest
        return tuple(entries)

    def row(self, entry: Entry, verdict: quality.Verdict, seconds: float) -> dict[str, Any]:
        """The ledger's row."""
        left, right = self.counts[entry.number]
        return {
            **self.ledger.row(entry),
            "committed_at": datetime.now(UTC),
            "emissions": int(self.facts["emissions"][entry.number]),
            "floored": int(self.answer.counts["floored"][entry.number]),
            "left": asdict(left),
            "right": asdict(right),
            "quality": verdict.outcome,
            "findings": json.dumps([asdict(finding) for finding in verdict.findings]),
            "job_slices": len(self.slices),
            "job_seconds": seconds,
        }

    def _refusal(self, verdict: quality.Verdict, fit: int) -> str:
        """What is wrong after so many slices that are fit to be published, and what is published."""
        worst, *more = verdict.critical
        others = f" (and {len(more)} more)" if more else ""
        first, failed, end = map(self.plan.grid.label, (self.slices[0], self.slices[0] + fit, self.slices[-1] + 1))
        where = f" in slice {failed}" if fit else ""
        if self.plan.atomic:
            told = "nothing was published, as --atomic asks"
        elif fit:
            told = f"slices {first} to {failed} were published, {failed} to {end} were not"
        else:
            told = f"nothing of slices {first} to {end} was published"
        return (
            f"quality gate: {worst.expectation} {worst.detail}{others}{where}; {told}. "
            f"Look at {verdict.docs} and the rows in {self.plan.tables.rejected_output} where _run = '{self.run}'"
        )
