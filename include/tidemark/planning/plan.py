"""What would run and why, as data: `explain` shows it, `run` executes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.candidate_version import called
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant, micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import IncompleteError, InputError, SliceOrderError
from tidemark.joins import Join, join_of
from tidemark.joins.output_schema import check_expressions
from tidemark.joins.rules.spark import kept_for_ever
from tidemark.joins.window_output import HALVES
from tidemark.ledger.checkpoint_files import kept_runs
from tidemark.ledger.config_fingerprint import settings_text, under_others
from tidemark.ledger.erasure_records import as_text
from tidemark.ledger.ledger import Entry, Ledger
from tidemark.ledger.staleness import consumed_versions, reads, restorable, stale, start_of_chain, waiting
from tidemark.planning.duration_estimate import Estimate, estimate, past_jobs
from tidemark.planning.job_sizing import Room
from tidemark.planning.scan_estimate import InputFiles, ScanEstimate
from tidemark.sources.completeness import Reach, reaches
from tidemark.sources.stored_input import StoredInput, schemas_of, stored_inputs, trace_of
from tidemark.spark.lazy_session import awake, is_awake
from tidemark.timegrid.slices import Grid, LocalDays, ranges
from tidemark.watermarks.query_trace import QueryTrace

BRIEF_JOBS, BRIEF_ROWS = 3, 50_000
"""Of a brief plan, at most."""
Reason = Literal[
    "new", "gap", "stale", "changed settings", "changed input", "late landing", "reprocess", "expired checkpoint"
]


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    start: datetime | None = None
    """First slice to run (inclusive); after the last committed one by default."""
    end: datetime | None = None
    """End of the last slice to run (exclusive); after the last row, and not after now, by default."""
    slices_per_job: int | Literal["auto"] = "auto"
    drain: bool = False
    """End the input after the last slice: watermark to infinity."""
    from_empty_state: bool = False
    """Start without a predecessor, as a job without a savepoint does."""
    reprocess: bool = False
    """Run committed slices again; without `start` and `end` those that rows have landed for since."""
    atomic: bool = False
    """Commit all jobs at once, at the end."""
    not_complete_yet: bool = False
    """Run slices though their inputs are not complete by the rules of the pipeline file."""
    assets_seen: bool = False
    """Airflow has seen the events of the assets in those rules."""


@dataclass(frozen=True)
class Segment:
    """Slices that would run for the same reason."""

    slices: range
    reason: Reason
    because: str


@dataclass(frozen=True)
class Plan:
    """The slices that would run, in order, grouped into jobs. It is data: whoever looks at it asks Spark nothing.

    Slices that turn stale on the way (docs/decisions/0012-attempts-and-ripple.md) run as well, until none is.
    """

    pipeline: Pipeline
    grid: Grid
    tables: PipelineTables
    inputs: tuple[StoredInput, StoredInput]
    ledger: Ledger
    """The ledger as it stood when the plan was made."""
    segments: tuple[Segment, ...]
    rows_of_jobs: Mapping[range, float]
    """The jobs in order, with about how many rows of both inputs each reads, by the statistics of their files."""
    scans: tuple[ScanEstimate, ScanEstimate]
    """What would be read of each input, by the same statistics."""
    room: Room | None
    """What sizes the jobs; None where the user has."""
    estimate: Estimate | None
    """How long the jobs would take; None without history, or with nothing to run."""
    kept: frozenset[str]
    """The runs whose checkpoints had not expired."""
    skipped: int
    """How many of the slices asked for are committed already."""
    notes: tuple[str, ...]
    """What a user should know: rows outside the slices, why nothing runs."""
    drain_from: int | None
    """The slice after which the input ends."""
    waiting: tuple[int, ...] | None = None
    """Under policy `reprocess`: committed slices that rows have landed for and not been taken."""
    atomic: bool = False
    reaches: tuple[Reach, ...] = ()
    """Up to when the inputs with a rule are complete."""
    asked: tuple[str, ...] = ()
    """What Spark had to be asked, because settings and the tables' logs do not tell."""

    @cached_property
    def join(self) -> Join:
        """The join; Spark has to run."""
        return join_of(self.pipeline, awake(self.spark), schemas_of(self.inputs))

    @property
    def spark(self) -> SparkSession:
        """The session that it was made with, which may not have started."""
        return self.inputs[0].table.spark

    @property
    def jobs(self) -> tuple[range, ...]:
        """The segments, cut into jobs."""
        return tuple(self.rows_of_jobs)

    @property
    def trace(self) -> QueryTrace | None:
        """The query whose batches the slices are made of, None where each slice is its own."""
        return trace_of(self.inputs)

    @property
    def is_brief(self) -> bool:
        """Whether it is over before a JVM has compiled what it runs often."""
        return len(self.jobs) <= BRIEF_JOBS and sum(self.rows_of_jobs.values()) <= BRIEF_ROWS

    @property
    def slices(self) -> int:
        """How many slices would run."""
        return sum(len(job) for job in self.jobs)

    @property
    def carry_in(self) -> Entry | None:
        """The committed slice whose checkpoint the first job continues; None for empty state."""
        return self.ledger.entry(self.jobs[0][0] - 1) if self.jobs else self.ledger.last

    @cached_property
    def settings(self) -> str:
        """The pipeline's settings, as the ledger holds them of a slice behind all others."""
        return settings_text(self.pipeline)

    @cached_property
    def left_out(self) -> str | None:
        """What is forgotten, and so no run reads, as the ledger holds it."""
        return as_text({source.side.name: source.side.left_out for source in self.inputs})

    @property
    def reprocess_command(self) -> str:
        """What a user runs to mend committed slices."""
        return _reprocess_command(self.pipeline)

    @property
    def proposed(self) -> str | None:
        """The command that would take the rows that wait, None without any."""
        return _reprocess_command(self.pipeline) if self.waiting else None

    def incomplete(self, number: int) -> list[dict[str, str | None]]:
        """The inputs that are not complete for a new slice, as the ledger has them; none where it ran before."""
        if self.ledger.entry(number):
            return []
        end = self.grid.datetime_of(number + 1)
        return [{"input": one.side, **one.describe()} for one in self.reaches if not one.covers(end)]

    def number_after(self, ledger: Ledger) -> int:
        """Number of the commit of a job that continues a ledger."""
        return (self.ledger if self.atomic else ledger).number + 1

    def describe(self) -> dict[str, Any]:
        """The plan for scripts: JSON-ready."""
        return {
            "pipeline": self.pipeline.name,
            "clock": self.pipeline.clock,
            "slices": self.slices,
            "already_committed": self.skipped,
            "from": self.grid.name(self.jobs[0][0]) if self.jobs else None,
            "to": self.grid.name(self.jobs[-1][-1] + 1) if self.jobs else None,
            "jobs": [self._extent(job) for job in self.jobs],
            "sizing": self.room.because if self.room else None,
            "segments": [
                {**self._extent(one.slices), "reason": one.reason, "because": one.because} for one in self.segments
            ],
            "why": self._why(),
            "carry_in": self.grid.name(self.carry_in.number) if self.carry_in else None,
            "inputs": {
                source.side.name: {"table": source.table.name, "version": source.table.version, **asdict(scan)}
                for source, scan in zip(self.inputs, self.scans, strict=True)
            },
            "complete": {one.side: one.describe() for one in self.reaches},
            "estimate": asdict(self.estimate) if self.estimate else None,
            "waiting": [self._extent(slices) for slices in ranges(self.waiting or ())],
            "proposed": self.proposed,
            "asked_spark": list(self.asked),
            "drain": self.drain_from is not None,
            "atomic": self.atomic,
            "notes": list(self.notes),
        }

    def _extent(self, slices: range) -> dict[str, Any]:
        return {
            "from": self.grid.name(slices[0]),
            "to": self.grid.name(slices[-1] + 1),
            "slices": len(slices),
        }

    def _why(self) -> str:
        if not self.jobs:
            return "nothing to run"
        return "; ".join(dict.fromkeys(f"{one.reason}: {one.because}" for one in self.segments))


@dataclass(frozen=True)
class _Scene:
    """What a plan is made from."""

    pipeline: Pipeline
    request: Request
    grid: Grid
    tables: PipelineTables
    inputs: tuple[StoredInput, StoredInput]
    ledger: Ledger
    lake: str
    asked: list[str] = field(default_factory=list)
    """What Spark has been asked so far."""

    @property
    def spark(self) -> SparkSession:
        """The session, which may not have started."""
        return self.inputs[0].table.spark

    def plan(
        self, segments: Sequence[Segment], skipped: int = 0, notes: Sequence[str] = (), drain: int | None = None
    ) -> Plan:
        """The plan of these segments, and of what has to run before them."""
        last = self.ledger.last
        kept = kept_runs(self.tables, self.ledger.entries.values(), self.grid) if last else frozenset()
        ahead = [segment for segment in segments if segment.slices]
        if rebuilt := self._rebuilt(ahead, kept):
            ahead = [rebuilt, *ahead]
            first, start = (self.grid.name(number) for number in (rebuilt.slices.stop, rebuilt.slices.start))
            notes = [
                *notes,
                f"the checkpoint that slice {first} continues has expired: slices from {start} on run again",
            ]
        notes = [*notes, *self._of_arrivals(ahead)]
        files = [InputFiles.of(source, self.grid) for source in self.inputs] if ahead else []
        room = self._room() if ahead else None
        rows_of_jobs = {
            job: rows for one in ahead for job, rows in _cut(one.slices, files, room or self._size, self._alone)
        }
        scans = [of_input.to_read(one.slices for one in ahead) for of_input in files] or [ScanEstimate(0, 0, 0)] * 2
        notes = [*notes, *self._of_growth(ahead, files)]
        made = Plan(
            self.pipeline, self.grid, self.tables, self.inputs, self.ledger,
            tuple(ahead),
            rows_of_jobs,
            scans=(scans[0], scans[1]),
            room=room,
            estimate=estimate(past_jobs(self.ledger.rows), sum(rows_of_jobs.values()), len(rows_of_jobs)),
            kept=kept,
            skipped=skipped,
            notes=tuple(notes),
            drain_from=last.number if last and last.drained else drain,
            waiting=self.waiting if self.pipeline.late_landing == "reprocess" else None,
            atomic=self.request.atomic,
            reaches=self.reaches,
            asked=tuple(self.asked),
        )  # fmt: skip
        return self._checked(made) if made.jobs else made

    @property
    def _alone(self) -> list[int]:
        """Slices that no other one shares a job with: where Flink SQL's job restarts, rows are replayed one by one."""
        restarts = self.pipeline.restarts if self.pipeline.dialect == "flink-sql" else ()
        return sorted({self.grid.number_at(micros(restart)) for restart in restarts})

    def _of_growth(self, ahead: Sequence[Segment], files: Sequence[InputFiles]) -> Iterator[str]:
        """Of which inputs no row is ever evicted, and how many more rows each slice carries for it."""
        if not ahead or self.pipeline.dialect != "spark":
            return
        carried = dict(zip(SIDES, self.ledger.last.carried if self.ledger.last else (0, 0), strict=True))
        slices = sum(len(segment.slices) for segment in ahead)
        for side, why in kept_for_ever(self.pipeline):
            number = SIDES.index(side)
            more = sum(float(files[number].rows_per_slice(one.slices).sum()) for one in ahead) / slices
            yield (
                f"no row of {self.inputs[number].table.name} is ever evicted, because {why}: {carried[side]:,} are "
                f"carried, and each slice adds about {more:,.0f}"
            )

    def _of_arrivals(self, ahead: Sequence[Segment]) -> Iterator[str]:
        """From when on arrivals by commits are known, where that is not so of all rows; slices before are refused."""
        for source in self.inputs:
            if ahead:
                source.refuse_untold(self.grid, min(segment.slices[0] for segment in ahead))
            if (known := source.arrivals_known_from()) is not None:
                since, why = known
                yield f"arrivals of {source.table.name} are known from {format_instant(since)} on: {why}"

    def _checked(self, plan: Plan) -> Plan:
        """See that the expressions of the pipeline file make sense, if it has any."""
        asked = [f"whether `{side}.where` makes sense" for side in SIDES if getattr(self.pipeline, side).where]
        if any(self.pipeline.join.made_keys):
            asked.append("which keys are columns, and of which types the others are")
        if self.pipeline.join.condition:
            asked.append("whether `condition` makes sense")
        if self.pipeline.select or self.pipeline.flatten:
            asked.append(f"whether `{'select' if self.pipeline.select else 'flatten'}` makes sense")
        if asked:
            check_expressions(awake(self.spark), self.pipeline, self.grid, *schemas_of(self.inputs).values())
            _ = plan.join
        return replace(plan, asked=(*plan.asked, *asked))

    @property
    def _size(self) -> int:
        assert self.request.slices_per_job != "auto", "the user has sized the jobs"
        return self.request.slices_per_job

    def _room(self) -> Room | None:
        if self.request.slices_per_job != "auto":
            return None
        carried = sum(self.ledger.last.carried) if self.ledger.last else 0
        return Room.of(self.spark, self.inputs, carried)

    def _rebuilt(self, ahead: Sequence[Segment], kept: frozenset[str]) -> Segment | None:
        """The slices to run before the first one where the checkpoint that it continues has expired; None for none."""
        last = self.ledger.last
        if not ahead or last is None or (first := ahead[0].slices[0]) > last.number:
            return None
        start = restorable(self.ledger, first, kept)
        if start == first:
            return None
        before, since = self.grid.name(first - 1), self.grid.name(start)
        because = f"the checkpoint after {before} is rebuilt from {since} on"
        return Segment(range(start, first), "expired checkpoint", because)

    @cached_property
    def reaches(self) -> tuple[Reach, ...]:
        """Up to when inputs are complete; nothing is waited for to run again, or where the input ends."""
        if self.request.reprocess or self.request.drain:
            return ()
        return reaches(self.pipeline, self.lake, assets_seen=self.request.assets_seen)

    @cached_property
    def waiting(self) -> tuple[int, ...]:
        """Committed slices that rows, which no slice has taken, have landed for."""
        if not self.ledger.last:
            return ()
        known, after = waiting(self.ledger), self.ledger.last.number + 1
        entries = self.ledger.entries.values()
        homes = set(known[1] if known else ())
        for side, source in enumerate(self.inputs):
            consumed = consumed_versions(entries, side)
            if known:
                consumed = replace(consumed, by_slice=((None, known[0][side]),))
            with self._telling(f"for which slices rows of {source.table.name} have landed"):
                deleted = self.pipeline.input_deletes != "ignore"
                homes |= source.slices_of_changes(self.grid, after, consumed, deleted=deleted)
        return tuple(sorted(homes & self.ledger.entries.keys()))

    def losing(self) -> set[int]:
        """Under `input_deletes: reprocess`: committed slices that have read rows which are no longer as they were."""
        if self.pipeline.input_deletes != "reprocess" or not self.ledger.last:
            return set()
        after, found = self.ledger.last.number + 1, set[int]()
        for side, source in enumerate(self.inputs):
            consumed = consumed_versions(self.ledger.entries.values(), side)
            with self._telling(f"which slices have read rows of {source.table.name} that are gone"):
                found |= source.slices_that_lost(self.grid, after, consumed, _reprocess_command(self.pipeline))
        return found & self.ledger.entries.keys()

    def refuse_changes(self, first: int) -> None:
        """See that the rows which slices before `first` have read are still there, unless that does not matter."""
        if self.pipeline.input_deletes == "ignore":
            return
        entries = [entry for entry in self.ledger.entries.values() if entry.number < first]
        known = waiting(self.ledger)
        for side, source in enumerate(self.inputs):
            consumed = consumed_versions(entries, side)
            if known and consumed.by_slice:
                consumed = replace(consumed, by_slice=((None, known[0][side]),))
            with self._telling(f"whether rows of {source.table.name} that were read are still there"):
                source.refuse_changes(self.grid, first, consumed, _reprocess_command(self.pipeline))

    def refuse_lost_columns(self) -> None:
        """See that the inputs have all columns that slices before have emitted, where the file does not name them.

        Raises:
            InputError: one is gone, or is called otherwise.
        """
        last = self.ledger.last
        if last is None or (self.pipeline.select or self.pipeline.flatten) is not None:
            return
        sides = SIDES[:1] if self.pipeline.join.type in HALVES else SIDES
        for source, version in zip(self.inputs[: len(sides)], last.versions, strict=False):
            before = source.table.columns_at(version) if version != source.table.version else None
            if gone := [name for name in before or () if name not in source.table.schema.names]:
                raise InputError(
                    f"input {source.table.name} no longer has {', '.join(gone)}, which slices up to "
                    f"{self.grid.name(last.number + 1)} have emitted; bring it back, or name the columns to emit in "
                    "`select`"
                )

    def refuse_reruns(self, segments: Iterable[Segment]) -> None:
        """See that the rows of slices which run again are still there, where others may be gone."""
        if self.pipeline.input_deletes != "ignore":
            return
        again = [entry for one in segments for number in one.slices if (entry := self.ledger.entry(number))]
        for side, source in enumerate(self.inputs):
            with self._telling(f"whether rows of {source.table.name} are there to be read again"):
                source.refuse_reruns(self.grid, reads(again, side))

    @contextmanager
    def _telling(self, question: str) -> Iterator[None]:
        """Note a question if Spark starts because of it."""
        before = is_awake(self.spark)
        yield
        if is_awake(self.spark) and not before:
            self.asked.append(question)


def make_plan(spark: SparkSession, pipeline: Pipeline, lake: str, request: Request) -> Plan:
    """Plan the slices of a request against the ledger and the inputs as they stand now.

    Settings and the tables' logs tell nearly all; what they do not is asked of Spark (`Plan.asked`), which starts then
    if it has not (`spark.lazy_session`).

    Raises:
        SliceOrderError: off the grid, a gap, a missing predecessor, other settings, a drained input.
        IncompleteError: inputs are not complete, by the rules of the pipeline file, up to the end that was asked for.
        InputError: an input does not serve, or rows that slices have read are gone.
        PipelineFileError: the condition or the output columns do not suit the inputs.
    """
    PipelineTables.of(pipeline, lake).check()
    inputs, ledger = stored_inputs(spark, pipeline, lake), Ledger.of(pipeline, lake)
    scene = _Scene(pipeline, request, ledger.grid, ledger.tables, inputs, ledger, lake)
    _refuse_other_days(scene)
    return _plan_to_reprocess(scene) if request.reprocess else _plan_to_run(scene)


def _plan_to_run(scene: _Scene) -> Plan:
    """First what no longer holds, then new slices."""
    request, grid, last = scene.request, scene.grid, scene.ledger.last
    _refuse_other_settings(scene)
    after = last.number + 1 if last else 0
    first = grid.boundary(request.start, "--from") if request.start else after
    end, notes = _end(scene, first_time=last is None)
    end = _not_beyond(scene, end, notes)
    end = _as_far_as_complete(scene, max(first, after), end, notes)
    if request.start and request.end and end <= first:
        raise SliceOrderError(f"--to {grid.name(end)} is not after --from {grid.name(first)}; --to is exclusive")
    if first > after and not request.from_empty_state:
        _refuse_gap(first, last, grid)
    start = first if request.from_empty_state and first > after else max(first, after)
    if last and last.drained and end > start:
        raise SliceOrderError(
            f"the input was drained at slice {grid.name(last.number)}, so no slice can follow it; "
            "give the pipeline a new `output` to run it again without --drain"
        )
    new = range(start, end)
    losing = _losing(scene)
    repairs = sorted((*_stale(scene.ledger, grid), *losing), key=lambda one: one.slices.start)
    segments = [*repairs, Segment(new, "new", _why_new(start, after, last, grid))]
    ahead = [segment for segment in segments if segment.slices]
    if ahead and last:
        scene.refuse_changes(losing[0].slices.start if losing else after)
        scene.refuse_lost_columns()
    if not new:
        notes.append(f"all slices up to {grid.name(after)} are committed" if last else "the inputs hold no rows to run")
    if len(ahead) > bool(new):
        notes.append("slices after one that runs again follow until the state is again what they have continued")
    drain = end - 1 if request.drain and new else None
    return scene.plan(segments, max(0, min(start, end) - first), notes, drain)


def _plan_to_reprocess(scene: _Scene) -> Plan:
    request, grid, last = scene.request, scene.grid, scene.ledger.last
    if last is None:
        raise SliceOrderError("no slice is committed yet, so none can be reprocessed; use tidemark run")
    if request.start is None and request.end is None:
        because = "rows landed for them after they were committed"
        segments = [Segment(slices, "late landing", because) for slices in ranges(scene.waiting)]
        notes = [] if segments else ["no rows have landed for committed slices since they were read"]
    else:
        segments, notes = _asked_for(scene, last), []
    if segments:
        first = segments[0].slices[0]
        _refuse_older_settings(scene, first)
        scene.refuse_changes(first)
        scene.refuse_reruns(segments)
        behind = segments[0].slices[-1] + 1
        if behind <= last.number:
            notes.append(
                f"slices from {grid.name(behind)} on follow until the state is again what they have continued, "
                f"at most up to {grid.name(last.number + 1)}"
            )
    return scene.plan(segments, notes=notes)


def _asked_for(scene: _Scene, last: Entry) -> list[Segment]:
    """The range to reprocess; slices in it that were never committed fill a gap."""
    request, grid, entries = scene.request, scene.grid, scene.ledger.entries
    start = next(iter(entries))
    first = grid.boundary(request.start, "--from") if request.start else start
    end = grid.boundary(request.end, "--to") if request.end else last.number + 1
    if end <= first:
        raise SliceOrderError(f"--to {grid.name(end)} is not after --from {grid.name(first)}; --to is exclusive")
    if end > last.number + 1:
        raise SliceOrderError(
            f"the last committed slice is {grid.name(last.number)}; reprocess up to {grid.name(last.number + 1)} "
            "at most, and run what comes after"
        )
    if first > 0 and first not in entries and first - 1 not in entries:
        before = max((number for number in entries if number < first), default=-1)
        raise SliceOrderError(
            f"checkpoint before slice {grid.name(first)} is missing; reprocess from {grid.name(before + 1)}"
        )
    asked = range(first, end)
    segments = [Segment(part, "reprocess", "asked for") for part in ranges(n for n in asked if n in entries)]
    gaps = ranges(number for number in asked if number not in entries)
    segments += [Segment(part, "gap", "never committed") for part in gaps]
    return sorted(segments, key=lambda segment: segment.slices[0])


def _cut(
    slices: range, files: Sequence[InputFiles], size: Room | int, alone: Sequence[int]
) -> Iterator[tuple[range, float]]:
    """Cut a segment into jobs of so many slices, or as many as fit; with about how many rows each reads.

    Slices that are `alone`, by their numbers in order, are a job each.
    """
    rows = np.sum([one.rows_per_slice(slices) for one in files], axis=0)
    held = np.append(0.0, rows.cumsum())
    ends = [at for number in alone for at in (number, number + 1) if at in slices]
    for start, stop in pairwise([slices.start, *ends, slices.stop]):
        part = range(start, stop)
        if isinstance(size, Room):
            jobs = size.jobs(part, rows[start - slices.start : stop - slices.start])
        else:
            jobs = (part[first : first + size] for first in range(0, len(part), size))
        for job in jobs:
            yield job, float(held[job.stop - slices.start] - held[job.start - slices.start])


def _stale(ledger: Ledger, grid: Grid) -> Iterable[Segment]:
    """Committed slices that do not hold, each run of them by its first reason."""
    found = stale(ledger)
    for slices in ranges(found):
        why = found[slices[0]]
        if why == "changed settings":
            yield Segment(slices, "changed settings", f"{grid.name(slices[0] - 1)} has run under the present settings")
        else:
            cause = "has another state now" if why == "another state" else "or one before has taken rows that it had"
            yield Segment(slices, "stale", f"{grid.name(slices[0] - 1)} {cause}")


def _losing(scene: _Scene) -> list[Segment]:
    """Committed slices to run again because rows that they have read are gone, but for those that are stale anyway."""
    because = "rows that they have read were deleted or changed"
    numbers = scene.losing() - set(stale(scene.ledger))
    return [Segment(slices, "changed input", because) for slices in ranges(numbers)]


def _why_new(start: int, after: int, last: Entry | None, grid: Grid) -> str:
    if last is None and start == 0:
        return "no slice is committed yet"
    return f"continues slice {grid.name(start - 1)}" if last and start == after else "starts from empty state"


def _end(scene: _Scene, *, first_time: bool) -> tuple[int, list[str]]:
    request, grid, inputs = scene.request, scene.grid, scene.inputs
    trace, now = trace_of(inputs), grid.number_at(micros(datetime.now(UTC)))
    if trace and request.drain:
        raise SliceOrderError("--drain: a trace tells which batches ran; none follows its last")
    if trace and request.end and grid.boundary(request.end, "--to") > trace.end(grid):
        raise SliceOrderError(
            f"--to {grid.name(grid.boundary(request.end, '--to'))} is after the end of the trace: the batches of "
            f"{trace.checkpoint} are known for slices before {grid.name(trace.end(grid))}"
        )
    if request.end:
        return grid.boundary(request.end, "--to"), []
    if trace:
        waits = "the last batch lies in a slice that is not over yet; --to takes it all the same"
        return max(0, min(trace.end(grid), now)), [waits] if now < trace.end(grid) else []
    notes, last = [], -1
    for source in inputs:
        extent = source.extent(grid, count_before=first_time)
        newest, before = extent.newest, extent.before
        if not extent.by_statistics:
            scene.asked.append(f"how far {source.table.name} reaches")
        if before:
            notes.append(f"{before} rows of {source.table.name} lie before the first slice and take no part")
        if newest is not None and newest >= now:
            notes.append(f"{source.table.name} reaches to {grid.name(newest)}; slices that are not over yet wait")
        last = max(last, -1 if newest is None else min(newest, now - 1))
    return last + 1, notes


def _not_beyond(scene: _Scene, end: int, notes: list[str]) -> int:
    """The end, not after that of the pipeline's last slice."""
    request, grid, bound = scene.request, scene.grid, scene.pipeline.slices.end
    if bound is None or end <= (most := grid.number_at(micros(bound))):
        return end
    if request.end:
        raise SliceOrderError(
            f"--to {grid.name(end)} is after the pipeline's last slice (slices.end is {grid.name(most)}); use --to "
            f"{grid.name(most)}"
        )
    notes.append(f"rows lie behind slices.end, {grid.name(most)}, and take no part")
    return most


def _as_far_as_complete(scene: _Scene, first: int, end: int, notes: list[str]) -> int:
    """The end of the slices whose inputs are complete, noted; another one that was asked for is refused."""
    request, grid = scene.request, scene.grid
    if end <= first:
        return end
    short = [one for one in scene.reaches if not one.covers(grid.datetime_of(end))]
    if not short or request.not_complete_yet:
        return end
    reached = min(0 if one.until is None else grid.number_at(micros(one.until)) for one in short)
    told = "; ".join(one.told() for one in short)
    if request.end:
        sooner = f"run up to {grid.name(reached)}, or " if reached > first else "wait for it, or "
        raise IncompleteError(
            f"slices up to {grid.name(end)} are not complete yet: {told}; {sooner}pass --not-complete-yet"
        )
    notes.append(f"slices from {grid.name(max(reached, first))} on wait: {told}")
    return max(reached, first)


def _refuse_gap(first: int, last: Entry | None, grid: Grid) -> None:
    known = f"the last committed slice is {grid.name(last.number)}" if last else "no slice is committed yet"
    raise SliceOrderError(
        f"checkpoint before slice {grid.name(first)} is missing: {known}; "
        f"run from {grid.name(last.number + 1 if last else 0)}, or pass --from-empty-state"
    )


def _refuse_other_settings(scene: _Scene) -> None:
    other = next(_under_others(scene, scene.ledger.last), None)
    if other and stale(scene.ledger).get(other[0]) != "changed settings":
        label = scene.grid.name(other[0])
        raise SliceOrderError(
            f"slices from {label} on were written under other settings ({other[1]}), whose state lacks what the "
            f"present ones need; restore them, or {_reprocess_command(scene.pipeline)} --from {label}, or fill the new "
            "version beside what is served, with tidemark run --shadow NAME"
        )


def _refuse_other_days(scene: _Scene) -> None:
    """See that local days which are committed under the present settings are as long as they were."""
    ledger, grid = scene.ledger, scene.grid
    if not isinstance(grid, LocalDays) or ledger.rows.empty:
        return
    others = dict(under_others(ledger.entries.values(), settings_text(scene.pipeline), grid))
    for row in ledger.rows[["number", "slice", "slice_end"]].to_dict("records"):
        number, was = int(row["number"]), (row["slice"], row["slice_end"])
        now = grid.datetime_of(number), grid.datetime_of(number + 1)
        if was != now and number not in others:
            then, here = (" to ".join(map(format_instant, bounds)) for bounds in (was, now))
            raise SliceOrderError(
                f"a slice was committed as the day {then} of {grid.zone}, which is {here} by Python's time zone "
                "database; use the one of then, or give the pipeline a new `output`"
            )


def _refuse_older_settings(scene: _Scene, first: int) -> None:
    before = scene.ledger.entry(first - 1)
    others = dict(_under_others(scene, before))
    if before and before.number in others:
        raise SliceOrderError(
            f"slice {scene.grid.name(before.number)} was written under other settings ({others[before.number]}), so "
            f"its checkpoint cannot be continued; reprocess from {scene.grid.name(min(others))}"
        )


def _under_others(scene: _Scene, last: Entry | None) -> Iterator[tuple[int, str]]:
    """The slices up to one, without a gap, that ran under other settings than the file has, and in which ones."""
    start = start_of_chain(scene.ledger, last)
    if start is None or last is None:
        return iter(())
    chain = (scene.ledger.entries[number] for number in range(start.number, last.number + 1))
    return under_others(chain, settings_text(scene.pipeline), scene.grid)


def _reprocess_command(pipeline: Pipeline) -> str:
    return f"tidemark reprocess {called(pipeline)}"
