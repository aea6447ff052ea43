"""One Spark job: a range of slices read, replayed, written, judged and committed, its state carried through Delta."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pandas as pd
from delta.tables import DeltaTable
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

from tidemark import quality
from tidemark.checkpoint import restore, stored
from tidemark.errors import CheckFailedError, FaultError, SliceOrderError
from tidemark.joins import lane_of
from tidemark.ledger import FORMAT, MARKS, Counts, Entry, Ledger
from tidemark.missed import with_would_match
from tidemark.plan import Plan
from tidemark.publish import emissions, job_id, late_table, new_run, read_run, sweep, withdraw, write_run
from tidemark.replay import SIDES, STILL_IN, Replay, replay
from tidemark.session import tuned_for_tiny_queries
from tidemark.spec.values import millis
from tidemark.watermarks import END_OF_INPUT, NO_WATERMARK, Buckets, Lane, Watermarks

STEPS = ("reading", "joining", "checking", "committing")
TINY_ROWS = 20_000
Progress = Callable[[str], None]
"""Told the name of each step as it begins."""


@dataclass(frozen=True)
class JobResult:
    """What one job committed."""

    slices: range
    last: Entry
    verdict: quality.Verdict
    seconds: float


def run_job(spark: SparkSession, plan: Plan, slices: range, carry_in: Entry | None, progress: Progress) -> JobResult:
    """Run a range of slices as one Spark job and commit them to the ledger.

    Running it again after a crash, at whatever point, gives the same tables.

    Raises:
        CheckFailedError: quality or conservation; nothing is published and no state moves.
        FaultError: the disk is full; nothing is published.
        SliceOrderError: another run committed the slices meanwhile.
    """
    began = time.monotonic()
    job = _Job(spark, plan, slices, carry_in)
    outcome = "nothing of this job was published"
    try:
        progress("reading")
        tiny = job.answer.counts[["left_rows", "right_rows"]].to_numpy().sum() <= TINY_ROWS
        with tuned_for_tiny_queries(spark) if tiny else nullcontext():
            progress("joining")
            job.write()
            progress("checking")
            verdict = job.judge()
            progress("committing")
            seconds = time.monotonic() - began
            last = job.commit(verdict, seconds)
            outcome = "its slices are committed all the same"
            sweep(spark, plan.tables, job.name, job.run)
    except Exception as error:
        if "No space left on device" in str(error):
            raise FaultError(
                f"the disk is full: {plan.tables.root} (or Spark's local directory) has no room for slice "
                f"{plan.grid.label(slices[0])}; {outcome}. Free space and run the same command again"
            ) from None
        raise
    finally:
        job.release()
    return JobResult(slices, last, verdict, seconds)


@dataclass(frozen=True)
class _Job:
    spark: SparkSession
    plan: Plan
    slices: range
    carry_in: Entry | None

    @cached_property
    def name(self) -> str:
        return job_id(self.plan.grid, self.slices[0], attempt=1)

    @cached_property
    def run(self) -> str:
        return new_run(self.name)

    @cached_property
    def lane(self) -> Lane:
        before = self.carry_in.watermarks if self.carry_in else Watermarks()
        drain = self.plan.jobs[-1][-1] if self.plan.drain else None
        return lane_of(self.plan.pipeline, before, drain, self.plan.trace)

    @cached_property
    def observed(self) -> Observation:
        return Observation()

    @cached_property
    def answer(self) -> Replay:
        plan, first, last = self.plan, self.slices[0], self.slices[-1]
        seen = self.carry_in.versions if self.carry_in else (None, None)
        left, right = (
            source.rows(plan.grid, first, last, version) for source, version in zip(plan.inputs, seen, strict=True)
        )
        rows = left.unionByName(right, allowMissingColumns=True).withColumn("lane", F.lit(0))
        carried = None
        if self.carry_in:
            carried = restore(self.spark, plan.tables, self.carry_in, plan.grid).withColumn("lane", F.lit(0))
        buckets = Buckets.of(plan.grid, self.slices, plan.join.buckets_per_slice)
        return replay(rows, carried, [self.lane], plan.join, buckets)

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
        output = emissions(self.answer.joined, plan.pipeline, plan.grid)
        write_run(output.observe(self.observed, F.count("*").alias("pairs")), plan.tables.emissions, self.run)
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
        rows = stored(self.answer.carried, self.plan.grid).coalesce(self._files)
        write_run(rows, self.plan.tables.checkpoint, self.run)
        _ = self._written_carried

    def judge(self) -> quality.Verdict:
        """Judge what was written; on a critical finding keep the output aside and take the run back."""
        plan, tables = self.plan, self.plan.tables
        output = read_run(self.spark, tables.emissions, self.run)
        verdict = quality.judge(self.facts, output, plan.pipeline, tables, self.run)
        if verdict.critical:
            write_run(output.drop("_run"), tables.rejected_output, self.run)
            withdraw(self.spark, tables, self.run)
            raise CheckFailedError(self._refusal(verdict))
        return verdict

    def commit(self, verdict: quality.Verdict, seconds: float) -> Entry:
        """Write the ledger rows of all slices: the commit."""
        rows = [self._entry(number, verdict, seconds) for number in self.slices]
        try:
            Ledger(self.spark, self.plan.tables, self.plan.grid).commit(self.name, rows)
        except SliceOrderError:
            withdraw(self.spark, self.plan.tables, self.run)
            raise
        ends, last = self.ends[self.slices[-1]], rows[-1]
        kept = last["left"]["carried_out"], last["right"]["carried_out"]
        settings = self.plan.pipeline.semantic_settings()
        return Entry(self.slices[-1], self.run, 1, settings, self._versions, ends, kept, last["drained"])

    @cached_property
    def facts(self) -> pd.DataFrame:
        """One row per slice of the job: what `quality.DERIVED` says must be 0, and the number of emissions.

        What can only be said of the job as a whole stands in its last slice.
        """
        facts, lane, ends = self._written.reindex(self.slices), self.lane, list(self.ends.values())
        starts = pd.Series([w.combined for w in [lane.before, *ends[:-1]]], index=self.slices, dtype="float")
        newest = pd.Series(
            [max(w.newest(lane.lag), lane.before.combined) for w in ends],
            index=self.slices,
            dtype="float",
        )
        lateness = millis(self.plan.pipeline.join.allowed_lateness)
        last = pd.Series(0, index=self.slices)
        last.iloc[-1] = 1
        return facts.assign(
            slice=[self.plan.grid.label(n) for n in self.slices],
            emissions=facts["emissions"].fillna(0).astype(int),
            pairs_out_of_bounds=facts["pairs_out_of_bounds"].fillna(0).astype(int),
            null_keys=facts["null_keys"].fillna(0).astype(int),
            results_before_watermark=(facts["oldest_result"] < starts - lateness).astype(int),
            results_after_newest_row=(facts["newest_result"] > newest).astype(int),
            rows_unaccounted=self._unaccounted * last,
            rows_not_written=int(self.observed.get.get("pairs", 0) - facts["emissions"].sum()) * last,
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
        came = carried.groupby("carried_from")["rows"].sum().reindex(slices, fill_value=0)
        left = carried.groupby("evicted_in")["rows"].sum().reindex(slices, fill_value=0)
        kept = (came - left).cumsum()
        counts = {}
        for number in slices:
            into = int(read[number]), carried_in, int(late.get(number, 0)), int(rejected.get(number, 0))
            counts[number] = Counts.of(*into, carried_out=int(kept[number]))
            carried_in = counts[number].carried_out
        return counts

    @cached_property
    def _written(self) -> pd.DataFrame:
        output = read_run(self.spark, self.plan.tables.emissions, self.run)
        facts = quality.slice_facts(output, self.plan.pipeline)
        return facts.set_index((facts["slice_start"] - self.plan.grid.start) // self.plan.grid.every)

    @cached_property
    def _written_late(self) -> pd.DataFrame:
        if not self.answer.suspected:
            return pd.DataFrame(columns=["side", "number", "late", "rejected"])
        rows = read_run(self.spark, self.plan.tables.late, self.run)
        number = self.plan.grid.number_column(F.unix_micros("_slice")).alias("number")
        rejected = ~F.col("reason").isin("late", *STILL_IN)
        counted = F.count_if(F.col("reason") == "late").alias("late"), F.count_if(rejected).alias("rejected")
        return rows.groupBy("side", number).agg(*counted).toPandas()

    @cached_property
    def _written_carried(self) -> pd.DataFrame:
        rows = read_run(self.spark, self.plan.tables.checkpoint, self.run)
        slices = (
            self.plan.grid.number_column(F.unix_micros(name)).alias(name) for name in ("carried_from", "evicted_in")
        )
        return rows.groupBy("side", *slices).agg(F.count("*").alias("rows")).toPandas()

    @property
    def _files(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    @property
    def _carried_in(self) -> tuple[int, int]:
        return self.carry_in.carried if self.carry_in else (0, 0)

    @property
    def _versions(self) -> tuple[int, int]:
        left, right = (source.table.version for source in self.plan.inputs)
        return left, right

    def _entry(self, number: int, verdict: quality.Verdict, seconds: float) -> dict[str, Any]:
        plan, ends = self.plan, self.ends[number]
        left, right = self.counts[number]
        return {
            "slice": plan.grid.datetime_of(number),
            "slice_end": plan.grid.datetime_of(number + 1),
            "run": self.run,
            "attempt": 1,
            "committed_at": datetime.now(UTC),
            "format": FORMAT,
            "settings": json.dumps(plan.pipeline.semantic_settings(), sort_keys=True),
            "left_version": self._versions[0],
            "right_version": self._versions[1],
            **{f"{name}_ms": _known(getattr(ends, field)) for field, name in MARKS.items()},
            "sources": [asdict(one) for one in ends.sources],
            "drained": ends.combined == END_OF_INPUT,
            "emissions": int(self.facts["emissions"][number]),
            "floored": int(self.answer.counts["floored"][number]),
            "left": asdict(left),
            "right": asdict(right),
            "quality": verdict.outcome,
            "findings": json.dumps([asdict(finding) for finding in verdict.findings]),
            "job_slices": len(self.slices),
            "job_seconds": seconds,
        }

    def _refusal(self, verdict: quality.Verdict) -> str:
        first, *more = verdict.critical
        others = f" (and {len(more)} more)" if more else ""
        return (
            f"quality gate: {first.expectation} {first.detail}{others}; nothing of slices "
            f"{self.plan.grid.label(self.slices[0])} to {self.plan.grid.label(self.slices[-1] + 1)} was published. "
            f"Look at {verdict.docs} and the rows in {self.plan.tables.rejected_output} where _run = '{self.run}'"
        )


def _known(watermark: int | None) -> int | None:
    return None if watermark == NO_WATERMARK else watermark
