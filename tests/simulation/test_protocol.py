"""The driver's commit protocol under seeded random schedules: concurrent, delayed and killed workers, failing storage.

Workers run, reprocess, release, waive, compact, promote and roll back.

A schedule is a number: `TIDEMARK_SCHEDULE=4711 pytest tests/simulation` runs that one alone.
"""

import os
import random
import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from tests.simulation.candidate import capture_candidate, install_candidate
from tests.simulation.in_memory_lake import InMemoryLake, replace_in_package
from tests.simulation.simulated_job import State, install_job, join_rows, update_state
from tests.simulation.worker import FAILURES, KilledError, LostResponseError, Worker
from tidemark.errors import TidemarkError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.prepare_commit import prepare_commit
from tidemark.ledger.staleness import stale
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.quarantine import release
from tidemark.quality.waivers import get_next_attempt
from tidemark.tables.table_changes import apply_to_tables
from tidemark.tables.undo_compaction import restore_uncompacted_version
from tidemark.timegrid.slices import Grid
from tidemark.versions.promotion import promote, rollback

SCHEDULES = int(os.environ.get("TIDEMARK_SCHEDULES", "200"))
SINGLE_SCHEDULE = os.environ.get("TIDEMARK_SCHEDULE")
SEEDS = 20
"""Number of schedules of a test in which something happens at each commit."""
SLICES = 8
START = datetime(2024, 1, 1, tzinfo=UTC)


def at(hour):
    return START + timedelta(hours=hour)


class Schedule:
    """One lake, and the workers and failures that follow from a seed."""

    def __init__(self, seed, pipeline, monkeypatch):
        self.rng = random.Random(seed)
        self.has_compaction = self.rng.random() < 0.5
        compact = {"settled_after": "0 seconds", "period": f"{self.rng.choice([2, 4])} hours"}
        self.pipeline = pipeline(on_late_arriving_rows=self.rng.choice(["append", "reprocess"]), compact=compact)
        has_expectations = self.rng.random() < 0.5
        self.has_promotions = self.rng.random() < 0.4
        self.failure_rate = self.rng.choice([0.0, 0.02, 0.1])
        self.events = Counter()
        self.workers = {}
        self.checked_versions = {}
        self.lake = InMemoryLake(
            self.rng, Grid.from_config(self.pipeline.slices), has_expectations=has_expectations, step=self.step
        )
        self.lake.install(monkeypatch)
        install_job(self.lake, monkeypatch)
        install_candidate(self.lake, monkeypatch)
        replace_in_package(monkeypatch, restore_uncompacted_version, self.count_undone_compaction)

    def step(self, access):
        worker = self.workers.get(threading.get_ident())
        return worker.step(access) if worker else access()

    def count_undone_compaction(self, *arguments):
        self.events["undone compactions"] += 1
        return restore_uncompacted_version(*arguments)

    def run_request(self, request):
        """Plan and run a request."""
        plan = create_plan(None, self.pipeline, "lake", request)
        for _ in execute(None, plan, lambda *_: None):
            pass

    def create_release(self):
        """Choose a slice, preferably one with quarantined rows; return a function that releases rows of it."""
        quarantined = self.lake.read_files_by_slice("quarantined") if "quarantined" in self.lake.tables else {}
        number = self.rng.choice(sorted(quarantined) or range(SLICES))
        arguments = at(number), self.rng.choice([None, "first", "second"])
        return lambda: release(None, self.pipeline, "lake", *arguments, "ada")

    def create_waiver(self):
        """Choose a slice; return a function that waives its next attempt."""
        number = self.rng.randrange(SLICES)

        def waive():
            attempt = get_next_attempt(Ledger.from_pipeline(self.pipeline, "lake"), number)
            self.step(lambda: self.lake.waivers.add((number, attempt)))

        return waive

    def compact(self):
        """Merge all settled periods."""
        plan = plan_compaction(self.pipeline, "lake")
        for merge in plan.merges:
            is_merged = merge_files(None, plan, merge)
            self.events["merged" if is_merged else "skipped merges"] += 1

    def create_promotion(self):
        """Return a function that promotes or rolls back the candidate, or captures a new one."""
        if self.lake.promotions and self.rng.random() < 0.5:
            action, move = "rollback", rollback
        else:
            action, move = self.rng.choice(["capture", "promote", "capture and promote"]), promote

        def capture_or_move():
            if move is promote and (action != "promote" or not self.lake.candidate_attempts):
                capture_candidate(self.lake)
            if action == "capture" or not self.lake.candidate_attempts:
                return
            move(None, self.pipeline, "lake", "again", "ada")
            self.events[move.__name__] += 1

        return capture_or_move

    def create_work(self):
        """Choose the next command of a user or of Airflow."""
        if self.has_promotions and self.rng.random() < 0.3:
            return self.create_promotion()
        if self.has_compaction and self.rng.random() < 0.4:
            return self.compact
        choice = self.rng.random() if self.lake.has_expectations else 1
        if choice < 0.25:
            return self.create_release()
        if choice < 0.35:
            return self.create_waiver()
        request = self.create_request()
        return lambda: self.run_request(request)

    def create_request(self):
        """Choose a run, a reprocess of some slices, or a reprocess of slices with late-arriving rows."""
        rng = self.rng
        size, atomic = rng.randint(1, 2 if self.has_compaction else 4), rng.random() < 0.2
        choice = rng.random()
        if choice < 0.6:
            return Request(None, at(rng.randint(1, SLICES)), size, atomic=atomic)
        if choice < 0.8:
            return Request(None, None, size, reprocess=True, atomic=atomic)
        first = rng.randrange(SLICES)
        return Request(at(first), at(rng.randint(first + 1, SLICES)), size, reprocess=True, atomic=atomic)

    def run_workers(self):
        """Run two workers, each replaced by a new one when it ends, while rows arrive."""
        self.lake.append_input(self.rng.choices(range(SLICES), k=20 if self.has_compaction else 6))
        workers, delays = [], {}
        for _ in range(400):
            if self.events["commands"] > 12:
                break
            while len(workers) < 2:
                worker = Worker(str(self.events["commands"]), self.create_work())
                self.workers[worker.thread.ident] = worker
                workers.append(worker)
                self.events["commands"] += 1
            active = [worker for worker in workers if delays.get(worker.name, 0) <= 0] or workers
            worker = self.rng.choice(active)
            delays = {name: delay - 1 for name, delay in delays.items()}
            if self.rng.random() < 0.02:  # a zombie: it resumes after many steps of other workers
                delays[worker.name] = 40
            failure = self.rng.choice(FAILURES) if self.rng.random() < self.failure_rate else None
            worker.advance(failure)
            self.events[failure] += 1
            if worker.is_finished:
                workers.remove(worker)
                self.record_end(worker)
            if self.rng.random() < 0.03:
                self.lake.append_input(self.rng.choices(range(SLICES), k=self.rng.randint(1, 2)))
            self.check_new_versions()
        for worker in workers:
            while not worker.is_finished:
                worker.advance("killed before")

    def record_end(self, worker):
        """Count the error of a finished worker, or raise it if it is unexpected."""
        if worker.error and not isinstance(worker.error, TidemarkError | LostResponseError | KilledError):
            raise worker.error
        self.events[type(worker.error).__name__] += 1

    def run_remaining(self):
        """Run all slices that remain, without concurrency or failures."""
        self.workers.clear()
        if self.pipeline.on_late_arriving_rows == "reprocess":
            self.run_request(Request(None, at(SLICES), 3))
            with suppress(TidemarkError):
                self.run_request(Request(None, None, 3, reprocess=True))
        # Under `append`, one more slice reads the late-arriving rows of all others.
        self.run_request(Request(None, at(SLICES + 1), 3))

    def check_new_versions(self):
        """Assert that each version of a table since the last check has the output of a commit."""
        for name, versions in self.lake.tables.items():
            for version in versions[self.checked_versions.get(name, 0) :]:
                rows = self.lake.read_table(name, version)
                if name == "checkpoint":
                    entries = self.lake.read_ledger(commit=version.commit).entries
                    assert set(rows) == set(entries), f"checkpoint at commit {version.commit}"
                elif name == "quarantined" and not version.commit:
                    assert not rows, "rows of no commit"
                else:
                    expected = self.lake.get_committed_output(name, version.commit)
                    assert rows == expected, f"{name} at commit {version.commit}"
            self.checked_versions[name] = len(versions)
            is_unused = name == "quarantined" and not versions[-1].commit
            last_commit = self.lake.read_ledger().number
            assert is_unused or versions[-1].commit >= last_commit - 1, f"{name} lacks more than one commit"

    def check_final_state(self):
        """Assert that tables, ledger and input rows agree."""
        self.check_new_versions()
        ledger = self.lake.read_ledger()
        assert list(ledger.entries) == list(range(SLICES + 1))
        assert not stale(ledger)
        assert {versions[-1].commit for versions in self.lake.tables.values()} == {ledger.number}

        published = self.lake.read_table("emissions")
        quarantined = self.lake.read_table("quarantined") if "quarantined" in self.lake.tables else {}
        waived = {number for number, entry in ledger.entries.items() if (number, entry.run) in self.lake.waived_runs}
        assert not waived & {number for number, rows in quarantined.items() if rows}

        self.events["waived"] += len(waived)
        self.events["quarantined"] += sum(map(len, quarantined.values()))
        self.events["released"] += self.lake.released_rows
        output = [published.get(number, Counter()) + quarantined.get(number, Counter()) for number in ledger.entries]
        emitted_rows = Counter(row for slice_rows in output for row, _ in slice_rows.elements())
        assert emitted_rows == Counter(self.lake.rows.keys()), "a row is lost or emitted twice"

        state: State = frozenset()
        for number, slice_rows in enumerate(output):
            rows_read = frozenset((row, number) for row, _ in slice_rows)
            assert slice_rows == join_rows(state, rows_read), f"slice {number} does not follow from earlier slices"
            state = update_state(state, rows_read, number)


def test_simulation_detects_table_ahead_of_ledger(pipeline, monkeypatch):
    failures = []
    for seed in range(9):
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, pipeline, patch)

            def prepare_and_apply(spark, tables, grid, *arguments, schedule=schedule):
                prepared = prepare_commit(spark, tables, grid, *arguments)
                apply_to_tables(tables, grid, schedule.lake.read_ledger().number + 1, prepared.changes)
                return prepared

            replace_in_package(patch, prepare_commit, prepare_and_apply)
            try:
                schedule.run_workers()
            except AssertionError as error:
                failures.append(str(error))

    assert any("commit 1" in failure for failure in failures)


def test_compaction_before_commit_of_run_is_undone(pipeline, monkeypatch):
    events = Counter()
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, pipeline, patch)
            schedule.has_compaction = True

            def prepare_and_compact(*arguments, schedule=schedule, **options):
                prepared = prepare_commit(*arguments, **options)
                schedule.compact()
                return prepared

            replace_in_package(patch, prepare_commit, prepare_and_compact)
            schedule.run_workers()
            schedule.run_remaining()
            schedule.check_final_state()
            events += schedule.events

    assert events["undone compactions"]


def test_random_schedules_keep_tables_consistent(pipeline, monkeypatch):
    seeds = [int(SINGLE_SCHEDULE)] if SINGLE_SCHEDULE else range(SCHEDULES)
    events = Counter()
    for seed in seeds:
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, pipeline, patch)
            try:
                schedule.run_workers()
                schedule.run_remaining()
                schedule.check_final_state()
            except BaseException:
                print(f"TIDEMARK_SCHEDULE={seed} reproduces this failure")
                raise
            events += schedule.events

    print(f"schedules: {len(seeds)}; {dict(events)}")
    if not SINGLE_SCHEDULE:
        assert events["SliceOrderError"], "there was no commit conflict"
        assert all(events[failure] for failure in FAILURES)
        assert events["released"], "nothing was released"
        assert events["waived"], "no waiver was used"
        assert events["quarantined"], "nothing is in quarantine"
        assert events["merged"], "nothing was merged"
        assert events["skipped merges"], "no slice was recomputed during a compaction"
        assert events["promote"], "nothing was promoted"
        assert events["rollback"], "nothing was rolled back"
