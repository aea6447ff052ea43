"""A schedule of workers on one lake, and the checks after it: what happens follows from a number."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_pipeline
from tests.simulation.candidate import capture_candidate, install_candidates
from tests.simulation.in_memory_lake import LAKE, InMemoryLake, replace_in_package
from tests.simulation.in_memory_ledger import InMemoryLedger, install_ledgers
from tests.simulation.simulated_input import install_inputs
from tests.simulation.simulated_job import State, install_job, join_rows, update_state
from tests.simulation.vacuum import install_vacuum
from tests.simulation.worker import FAILURES, KilledError, LostResponseError, Worker
from tidemark.checkpoints.expiry import expire_checkpoints
from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.errors import InputError, TidemarkError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import find_compared_versions, find_slices_to_reprocess, find_stale_slices
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.maintenance.unused_files import delete_unused_files, find_unused_files
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.quarantine import release
from tidemark.quality.waivers import get_next_attempt
from tidemark.tables.undo_compaction import restore_uncompacted_version
from tidemark.timegrid.slices import Grid
from tidemark.versions.promotion import promote, rollback

SLICES = 8
START = datetime(2024, 1, 1, tzinfo=UTC)
COMMANDS_PER_DAY = 8
STEP_SECONDS = 10
PAUSE_SECONDS = 3 * 3600
"""Time for which no job runs, longer than any retention."""
RETENTION_SECONDS = 3600
RETENTION = dict.fromkeys(("uncommitted_files", "replaced_files"), f"{RETENTION_SECONDS} seconds")
INPUTS = f"{LAKE}/left", f"{LAKE}/third"
"""Inputs that are tables, of the first pipeline and of the next one of a chain."""


def at(hour: int) -> datetime:
    """Return the start of a slice."""
    return START + timedelta(hours=hour)


class Schedule:
    """One lake, and the workers and failures that follow from a seed.

    In most schedules the lake has two pipelines, and the second one reads the output of the first one.
    """

    def __init__(self, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_chain: bool | None = None):
        self.rng = random.Random(seed)
        self.has_compaction = self.rng.random() < 0.5
        self.has_promotions = self.rng.random() < 0.4
        is_chain = self.rng.random() < 0.65
        self.has_chain = is_chain if has_chain is None else has_chain
        self.has_vacuum = self.rng.random() < 0.6
        self.failure_rate = self.rng.choice([0.0, 0.02, 0.1])
        self.events: Counter[str | None] = Counter()
        self.workers: dict[int | None, Worker] = {}
        self.delays: dict[str, int] = {}
        self.checked_versions: dict[tuple[str, str], int] = {}
        self.checked_files: set[str] = set()
        self.checked_commits: tuple[int, ...] = ()
        pipelines = self._write_pipelines(folder)
        self.lake = InMemoryLake(Grid.from_config(pipelines[0].slices), self.step)
        self.records = [
            InMemoryLedger(self.lake, pipeline, path) for pipeline, path in zip(pipelines, INPUTS, strict=False)
        ]
        # Rows in quarantine are refused before another join.
        self.records[-1].has_expectations = self.rng.random() < 0.5
        for path in (*INPUTS, f"{LAKE}/right"):
            self.lake.create_table(path)
        self.lake.install(monkeypatch)
        install_ledgers(self.records, monkeypatch)
        install_inputs(self.lake, monkeypatch)
        install_job(self.records, monkeypatch)
        install_candidates(self.records, monkeypatch)
        install_vacuum(self.lake, self.records, monkeypatch)
        replace_in_package(monkeypatch, restore_uncompacted_version, self.count_undone_compaction)

    def _write_pipelines(self, folder: Path) -> list[Any]:
        settings = {
            "compact": {"settled_after": "0 seconds", "period": f"{self.rng.choice([2, 4])} hours"},
            "retention": {**RETENTION, **({"log_files": "2 hours"} if self.rng.random() < 0.3 else {})},
        }
        policy = self.rng.choice(["append", "reprocess"])
        first = write_pipeline(
            folder / "orders.yaml", **settings, on_late_arriving_rows=policy, output_stream=self.has_chain
        )
        if not self.has_chain:
            return [first]
        third = {"table": "third", "event_time": "happened", "arrival": "arrived", "watermark_delay": "0 seconds"}
        inputs = {"left": {"pipeline": "orders"}, "right": third, "join__keys": [{"left": "left_k", "right": "k"}]}
        return [first, write_pipeline(folder / "shipments.yaml", **settings, **inputs, name="shipments")]

    def step(self, access: Callable[[], Any]) -> Any:
        """Access storage when it is the worker's turn."""
        worker = self.workers.get(threading.get_ident())
        self.lake.seconds += STEP_SECONDS
        return worker.step(access) if worker else access()

    def count_undone_compaction(self, *arguments: Any) -> Any:
        """Count the call of a function of the package, and call it."""
        self.events["undone compactions"] += 1
        return restore_uncompacted_version(*arguments)

    def append_rows(self, count: int) -> None:
        """Append rows of random slices to an input."""
        record, numbers = self.rng.choice(self.records), self.rng.choices(range(SLICES), k=count)
        rows: dict[int, Counter] = {}
        for number in numbers:
            row = next(self.lake.ids)
            record.input_rows[row] = number
            rows.setdefault(number, Counter())[row] += 1
        self.lake.append_input(record.input_path, rows)

    def run_request(self, record: InMemoryLedger, request: Request) -> None:
        """Plan and run a request."""
        plan = create_plan(None, record.pipeline, LAKE, request)
        for state in plan.upstreams:
            first_stale = min(find_stale_slices(state.ledger), default=SLICES + 1)
            is_requested = request.reprocess and request.start is not None
            assert is_requested or all(job.stop <= first_stale for job in plan.jobs), "a plan reads a stale slice"
        for _ in execute(None, plan, lambda *_: None):
            pass

    def create_release(self, record: InMemoryLedger) -> Callable[[], object]:
        """Choose a slice, preferably one with quarantined rows; return a function that releases rows of it."""
        quarantined = record.read_table("quarantined")
        number = self.rng.choice(sorted(quarantined) or range(SLICES))
        arguments = at(number), self.rng.choice([None, "first", "second"])
        return lambda: release(None, record.pipeline, LAKE, *arguments, "ada")

    def create_waiver(self, record: InMemoryLedger) -> Callable[[], object]:
        """Choose a slice; return a function that waives its next attempt."""
        number = self.rng.randrange(SLICES)

        def waive() -> None:
            attempt = get_next_attempt(Ledger.from_pipeline(record.pipeline, LAKE), number)
            self.step(lambda: record.waivers.add((number, attempt)))

        return waive

    def compact(self, record: InMemoryLedger) -> None:
        """Merge all settled periods."""
        plan = plan_compaction(record.pipeline, LAKE)
        for merge in plan.merges:
            is_merged = merge_files(None, plan, merge)
            self.events["merged" if is_merged else "skipped merges"] += 1

    def vacuum(self, record: InMemoryLedger) -> None:
        """Delete the files that the retention lets go, and expire checkpoints but the newest."""
        if not record.read().entries:
            return
        unused = find_unused_files(record.pipeline, LAKE)
        delete_unused_files(record.pipeline, LAKE, unused)
        self.events["vacuumed"] += bool(unused.replaced_files.files)
        self.events["truncated"] += bool(unused.log_files.files)
        self.events["expired"] += bool(expire_checkpoints(None, record.pipeline, LAKE, 1, None).expired_runs)

    def create_promotion(self, record: InMemoryLedger) -> Callable[[], object]:
        """Return a function that promotes or rolls back the candidate, or captures a new one."""
        if record.promotions and self.rng.random() < 0.6:
            action, move = "rollback", rollback
        else:
            actions = ["capture", "promote", "capture and promote", "capture and promote"]
            action, move = self.rng.choice(actions), promote

        def capture_or_move() -> None:
            if move is promote and (action != "promote" or not record.candidate_attempts):
                capture_candidate(record)
            if action == "capture" or not record.candidate_attempts:
                return
            move(None, record.pipeline, LAKE, "again", "ada")
            self.events[move.__name__] += 1

        return capture_or_move

    def create_work(self) -> Callable[[], object]:
        """Choose the next command of a user or of Airflow."""
        record = self.rng.choice(self.records)
        if self.has_promotions and self.rng.random() < 0.3:
            return self.create_promotion(record)
        if self.has_compaction and self.rng.random() < 0.4:
            return lambda: self.compact(record)
        if self.has_vacuum and self.rng.random() < 0.2:
            return lambda: self.vacuum(record)
        choice = self.rng.random() if record.has_expectations else 1
        if choice < 0.25:
            return self.create_release(record)
        if choice < 0.35:
            return self.create_waiver(record)
        request = self.create_request()
        return lambda: self.run_request(record, request)

    def create_request(self) -> Request:
        """Choose a run, or a reprocess of some slices, of those with late-arriving rows, or of all outdated ones."""
        rng = self.rng
        size, atomic = rng.randint(1, 2 if self.has_compaction else 4), rng.random() < 0.2
        choice = rng.random()
        if choice < 0.6:
            end = at(rng.randint(1, SLICES)) if rng.random() < 0.7 else None
            return Request(None, end, size, atomic=atomic, ignore_completeness=rng.random() < 0.2)
        if choice < 0.8:
            return Request(None, None, size, reprocess=True, outdated=rng.random() < 0.5, atomic=atomic)
        first = rng.choice([0, rng.randrange(SLICES)])
        end = rng.choice([None, at(rng.randint(first + 1, SLICES))])
        return Request(at(first), end, size, reprocess=True, atomic=atomic)

    def run(self) -> None:
        """Run workers, twice with a pause afterwards, and then what remains; check what readers can see."""
        for record in self.records:
            count = 20 if self.has_compaction else 6
            self.append_rows(count if record is self.records[0] else count // 2)
        for day in (1, 2):
            self.run_workers(day * COMMANDS_PER_DAY * len(self.records))
            self.pause()
        self.run_remaining()
        self.check_final_state()

    def pause(self) -> None:
        """Compact, let time pass in which no job runs, and vacuum. Without a vacuum, compaction is left to workers."""
        self.workers.clear()
        if self.has_compaction and self.has_vacuum:
            for record in self.records:
                self.compact(record)
        self.lake.seconds += PAUSE_SECONDS
        if self.has_vacuum:
            for record in self.records:
                try:
                    self.vacuum(record)
                except InputError:
                    self.require_lost_versions(record)
        self.check_new_versions()

    def run_workers(self, max_commands: int) -> None:
        """Run two workers, each replaced by a new one when it ends, while rows arrive; then kill both."""
        workers: list[Worker] = []
        for _ in range(400):
            if self.events["commands"] > max_commands:
                break
            while len(workers) < 2:
                worker = Worker(str(self.events["commands"]), self.create_work())
                self.workers[worker.thread.ident] = worker
                workers.append(worker)
                self.events["commands"] += 1
            worker = self.advance_one(workers)
            if worker.is_finished:
                workers.remove(worker)
                self.record_end(worker)
            if self.rng.random() < 0.03:
                self.append_rows(self.rng.randint(1, 2))
            self.check_new_versions()
            self.check_outdated_slices()
        for worker in workers:
            while not worker.is_finished:
                worker.advance("killed before")

    def advance_one(self, workers: list[Worker]) -> Worker:
        """Let one of the workers take a step, perhaps with a failure."""
        active = [worker for worker in workers if self.delays.get(worker.name, 0) <= 0] or workers
        worker = self.rng.choice(active)
        self.delays = {name: delay - 1 for name, delay in self.delays.items()}
        if self.rng.random() < 0.02:  # a zombie: it resumes after many steps of other workers
            self.delays[worker.name] = 40
        failure = self.rng.choice(FAILURES) if self.rng.random() < self.failure_rate else None
        worker.advance(failure)
        self.events[failure] += 1
        return worker

    def record_end(self, worker: Worker) -> None:
        """Count the error of a finished worker, or raise it if it is unexpected."""
        if worker.error and not isinstance(worker.error, TidemarkError | LostResponseError | KilledError):
            raise worker.error
        assert "was replaced" not in str(worker.error), f"an input was never replaced: {worker.error}"
        self.events[type(worker.error).__name__] += 1

    def run_remaining(self) -> None:
        """Run all slices that remain, without concurrency or failures."""
        for record in self.records:
            try:
                self.run_until_complete(record)
            except InputError:
                # Files or commits that the comparison with earlier versions needs are gone. The message has a remedy.
                self.require_lost_versions(record)
                self.events["refused"] += 1
                self.run_request(record, Request(at(0), None, 3, reprocess=True))
                self.run_until_complete(record)

    def run_until_complete(self, record: InMemoryLedger) -> None:
        """Run outdated slices and new ones."""
        if record.pipeline.on_late_arriving_rows == "reprocess":
            self.run_request(record, Request(None, at(SLICES), 3))
            self.run_request(record, Request(None, None, 3, reprocess=True))
        # Under `append`, one more slice reads the late-arriving rows of all others.
        self.run_request(record, Request(None, at(SLICES + 1), 3))

    def require_lost_versions(self, record: InMemoryLedger) -> None:
        """Assert that a pipeline may refuse to run: an input has lost files or commits since it was last read."""
        first, *_ = self.records
        assert record is not first, "nothing is ever deleted from an input that is a table"
        ledger, current, path = record.read(), first.read().entries, first.tables.output_stream
        recorded = find_slices_to_reprocess(ledger)
        compared = find_compared_versions(ledger, 0, SLICES + 1, recorded[1] if recorded else ())
        versions = {number: compared.get_version(number) for number in ledger.entries}
        if min(versions.values()) < self.lake.first_versions.get(path, 0):
            return
        commits = {number: self.lake.tables[path][version].commit for number, version in versions.items()}
        read = {number: first.read(commit=commit).entry(number) for number, commit in commits.items()}
        assert all(read.values()), "a slice has run before that of the previous join"
        assert any(read[number].output_version != current[number].output_version for number in read), (
            "no slice that has run has other input rows"
        )

    def check_new_versions(self) -> None:
        """Assert that each version of a table since the last check has the output of a commit."""
        for record in self.records:
            last_commit = record.read().last_commit
            for name, versions in record.versions.items():
                key = record.pipeline.name, name
                for version in versions[self.checked_versions.get(key, 0) :]:
                    self.check_version(record, name, version)
                self.checked_versions[key] = len(versions)
                is_current = record.is_unused(name, versions[-1]) or versions[-1].commit >= last_commit - 1
                assert is_current, f"{name} lacks more than one commit"
                assert not self.lake.deleted.keys() & versions[-1].paths, f"a vacuum has deleted files of {name}"
        for path in self.lake.deleted.keys() - self.checked_files:
            age = self.lake.deleted[path] - self.lake.find_end(path)
            assert age >= RETENTION_SECONDS, f"a vacuum has deleted {path}, which a reader may need"
            self.checked_files.add(path)

    def check_version(self, record: InMemoryLedger, name: str, version: Any) -> None:
        """Assert that a version of a table has the output of a commit."""
        rows = record.read_table(name, version)
        if name == "checkpoint":
            entries = record.read(commit=version.commit).entries
            assert set(rows) <= set(entries), f"checkpoint at commit {version.commit}"
            missing = {entries[number].run for number in entries if number not in rows}
            assert missing <= record.expired_runs, f"checkpoint at commit {version.commit}"
        elif record.is_unused(name, version):
            assert not rows, "rows of no commit"
        else:
            expected = record.get_committed_output(name, version.commit)
            assert rows == expected, f"{name} at commit {version.commit}"

    def list_input_rows(self, record: InMemoryLedger) -> dict[int, frozenset[Any]]:
        """Return the committed rows of a pipeline's inputs, by slice."""
        rows: dict[int, set[Any]] = {}
        for row, number in record.input_rows.items():
            rows.setdefault(number, set()).add(row)
        if record is not self.records[0]:
            for number, part in self.records[0].get_committed_output(OUTPUT_STREAM).items():
                rows.setdefault(number, set()).update(part)
        return {number: frozenset(part) for number, part in rows.items()}

    def check_outdated_slices(self) -> None:
        """Assert that a plan finds each committed slice that has not read the committed rows of its inputs."""
        paths = (*(record.tables.ledger for record in self.records), *(record.input_path for record in self.records))
        commits = tuple(len(self.lake.tables.get(path, ())) for path in paths)
        if commits == self.checked_commits:
            return
        self.checked_commits = commits
        for record in self.records:
            entries = record.read().entries
            if record is not self.records[0]:
                assert entries.keys() <= self.records[0].read().entries.keys(), "a slice is before that of its input"
            if record.pipeline.on_late_arriving_rows != "reprocess":
                continue
            rows = self.list_input_rows(record)
            outdated = {
                number
                for number, entry in entries.items()
                if record.rows_read[number, entry.run] != rows.get(number, frozenset())
            }
            if outdated:
                self.check_plan_finds(record, outdated)

    def check_plan_finds(self, record: InMemoryLedger, outdated: set[int]) -> None:
        """Assert that a plan of the outdated slices has these, unless they wait for an earlier slice of an input."""
        workers, self.workers = self.workers, {}
        try:
            with self.lake.restored_afterwards():
                plan = create_plan(None, record.pipeline, LAKE, Request(reprocess=True, outdated=True))
        except InputError:
            return self.require_lost_versions(record)
        finally:
            self.workers = workers
        planned = {number for part in plan.slice_ranges for number in part.slices}
        end = min((state.end for state in plan.upstreams if state.end is not None), default=SLICES + 1)
        missed = {number for number in outdated if number < end} - planned
        assert not missed, f"slices {missed} of {record.pipeline.name} are outdated, and no plan finds them"
        return None

    def check_final_state(self) -> None:
        """Assert that tables, ledgers and input rows agree, and equal those of a run from scratch."""
        self.check_new_versions()
        for record in self.records:
            self.check_final_output(record)

    def check_final_output(self, record: InMemoryLedger) -> None:
        """Assert that the tables of a pipeline, its ledger and its input rows agree."""
        ledger = record.read()
        assert list(ledger.entries) == list(range(SLICES + 1))
        assert not find_stale_slices(ledger)
        assert {versions[-1].commit for versions in record.versions.values()} == {ledger.last_commit}

        published, quarantined = record.read_table("emissions"), record.read_table("quarantined")
        waived = {number for number, entry in ledger.entries.items() if (number, entry.run) in record.waived_runs}
        assert not waived & {number for number, rows in quarantined.items() if rows}
        self.events["waived"] += len(waived)
        self.events["quarantined"] += sum(map(len, quarantined.values()))
        self.events["released"] += record.released_rows

        input_rows = self.list_input_rows(record)
        output = [published.get(number, Counter()) + quarantined.get(number, Counter()) for number in ledger.entries]
        emitted_rows = Counter(row for slice_rows in output for row, _ in slice_rows.elements())
        assert emitted_rows == Counter(row for rows in input_rows.values() for row in rows), (
            "a row is lost or emitted twice"
        )
        is_reprocessed = record.pipeline.on_late_arriving_rows == "reprocess"
        state: State = frozenset()
        for number, slice_rows in enumerate(output):
            rows_read = frozenset(row for row, _ in slice_rows)
            if is_reprocessed:
                assert rows_read == input_rows.get(number, frozenset()), f"slice {number} has rows of other slices"
            assert slice_rows == join_rows(state, rows_read), f"slice {number} does not follow from earlier slices"
            state = update_state(state, frozenset((row, number) for row in rows_read), number)
