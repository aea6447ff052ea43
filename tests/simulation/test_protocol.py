"""The driver's protocol under seeded schedules: two workers and a zombie, killed, interleaved, their storage failing.

Some of what they do is compaction, or to promote a shadow and to roll it back.

A schedule is a number: `TIDEMARK_SCHEDULE=4711 pytest tests/simulation` runs that one alone.
"""

import os
import random
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pandas as pd

from tests.simulation.actions import Moves
from tests.simulation.in_memory_lake import (
    Input,
    Log,
    LostError,
    Taken,
    Worker,
    World,
    broken,
    create_table,
    described,
    emitted,
    merged,
    only,
    parted,
    plain,
    run_job,
    split,
    state_after,
)
from tidemark.config.types import to_micros
from tidemark.delta.staging import StagedFiles
from tidemark.errors import TidemarkError
from tidemark.execution import run as running
from tidemark.execution.run import execute
from tidemark.ledger import checkpoint_files
from tidemark.ledger import prepare_commit as preparing
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import stale
from tidemark.maintenance import compaction as compacting
from tidemark.planning import plan as planning
from tidemark.planning.plan import Request, create_plan
from tidemark.planning.scan_estimate import InputFiles
from tidemark.quality import quarantine
from tidemark.quality.waivers import get_next_attempt
from tidemark.tables import schema_evolution, table_changes, undo_compaction
from tidemark.tables.run_files import StagedRun, run_of
from tidemark.timegrid.slices import Grid
from tidemark.versions.promotion import promote, rollback

SCHEDULES = int(os.environ.get("TIDEMARK_SCHEDULES", "200"))
ONE = os.environ.get("TIDEMARK_SCHEDULE")
SEEDS = 20
"""Of a test that lets one thing happen at each commit."""
SLICES = 8
START = datetime(2024, 1, 1, tzinfo=UTC)
NO_FILES = InputFiles(pd.DataFrame(columns=["size", "rows", "first", "last"], dtype="float64"), now=0)
FATES = ("killed before", "killed after", "lost before", "lost after")


def hour(n):
    return START + timedelta(hours=n)


class Schedule:
    """One lake, and what a seed does to it."""

    def __init__(self, seed, pipeline, monkeypatch):
        self.chance = random.Random(seed)
        self.compacts = self.chance.random() < 0.5
        period = {"settled_after": "0 seconds", "period": f"{self.chance.choice([2, 4])} hours"}
        self.pipeline = pipeline(on_late_arriving_rows=self.chance.choice(["append", "reprocess"]), compact=period)
        self.world = World(self.chance, quarantines=self.chance.random() < 0.5)
        self.moves = self.chance.random() < 0.4
        self.trouble = self.chance.choice([0.0, 0.02, 0.1])
        self.told = Counter()
        self.seen = {}
        self.workers = {}
        self.world.step = self._step
        monkeypatch.setattr(
            planning, "open_inputs", lambda *_: tuple(Input.of(self.world, s) for s in ("left", "right"))
        )
        grid = self.grid = Grid.from_config(self.pipeline.slices)
        monkeypatch.setattr(planning, "InputFiles", SimpleNamespace(from_input=lambda *_: NO_FILES))
        monkeypatch.setattr(quarantine, "_read_quarantined", self._stored)
        monkeypatch.setattr(quarantine, "_stage_rows", lambda _, __, *what: parted(self.world, *what))
        monkeypatch.setattr(quarantine, "newest_row", self._newest_row)
        for module in (table_changes, preparing, checkpoint_files, compacting, undo_compaction):
            monkeypatch.setattr(module, "DeltaTableHandle", Log.opener(self.world, grid))
        monkeypatch.setattr(
            schema_evolution, "create_table", lambda path, *_, **__: create_table(self.world, grid, path)
        )
        monkeypatch.setattr(preparing, "_rewrite_files", self._apart)
        monkeypatch.setattr(StagedRun, "only", lambda run, _, __, slices: only(self.world, run, slices))
        self._compacts(monkeypatch)
        self.shadows = Moves(self.world, grid, monkeypatch)
        monkeypatch.setattr(Ledger, "read", lambda tables, _: self._ledger(tables))
        monkeypatch.setattr(Ledger, "commit", lambda _, *arguments: self._commit(*arguments))
        monkeypatch.setattr(
            running,
            "run_job",
            lambda _, plan, ledger, slices, staged, __: run_job(self.world, plan, ledger, slices, staged),
        )

    def _compacts(self, monkeypatch):
        """Let files be merged, and taken apart again, in memory."""
        world = self.world
        monkeypatch.setattr(compacting, "read_files", lambda _, __, ___, paths: paths)
        monkeypatch.setattr(compacting, "verify_same_rows", lambda *_: None)
        monkeypatch.setattr(
            compacting,
            "_write_merged",
            lambda paths, planned, merge, _: merged(world, merge.table, paths, planned.ledger.number),
        )
        monkeypatch.setattr(StagedFiles, "read", lambda *_: None)
        monkeypatch.setattr(Ledger, "read_without_sync", lambda *_: self._step(self.ledger))
        monkeypatch.setattr(undo_compaction, "read_data_files", described)
        monkeypatch.setattr(
            undo_compaction, "is_data_change", lambda path, n: world.tables[path.rpartition("/")[2]][n].changes_data
        )
        taken_apart = table_changes.restore_uncompacted_version

        def counted(*what):
            self.told["taken apart"] += 1
            return taken_apart(*what)

        monkeypatch.setattr(table_changes, "restore_uncompacted_version", counted)

    def _step(self, act):
        worker = self.workers.get(threading.get_ident())
        return worker.step(act) if worker else act()

    def _ledger(self, tables):
        """As `Ledger.read`: the tables come to it first."""
        known = self._step(lambda: self.world.ledger(self.grid))
        come = table_changes.last_applied_commit(tables)
        for number, files in sorted(self.world.references.items()):
            if come is not None and come < number <= known.number:
                table_changes.apply_to_tables(tables, self.grid, number, files)
        return known

    def _commit(self, rows, number, files, before, _):
        for name, version in before.items():
            number_then = self.world.tables[name][version].number
            unused = name == "quarantined" and not number_then
            assert unused or number_then >= number - 1, "a version that the ledger names has not come to the one before"
        self._step(lambda: self._append(rows, number, files))

    def _append(self, rows, number, files):
        released = [row for row in rows if "ran_in" in row and row["brought"] is None]
        entries = [replace(row["entry"], released=number) if row in released else row["entry"] for row in rows]
        if brought := rows[0].get("brought"):
            entries = [replace(row["entry"], commit=row["ran_in"], attempt=row["attempt"]) for row in rows]
            self.shadows.brought[number] = brought
        self.world.append(entries, number, files)
        for row in released:
            held = [self.world.contents[one.path] for one in files.added["emissions"]]
            [told] = held or [{row["entry"].number: Counter()}]
            self.world.released.append((number, row["entry"].run, row["entry"].number, told[row["entry"].number]))

    def _stored(self, _ledger, _columns, start):
        held = self._step(lambda: self.world.read("quarantined") if "quarantined" in self.world.tables else {})
        rows = sum(held.get(self.grid.number_at(to_micros(start)), []), Counter())
        return [{quarantine.FAILED_EXPECTATIONS_COLUMN: [broken(row)]} for row, _ in rows.elements()]

    def _newest_row(self, _tables, slice_):
        """As the ledger that the release has read: what has come since, its commit finds out."""
        ledger = self._step(self.ledger)
        entry = ledger.entry(self.grid.number_at(to_micros(slice_)))
        return {"entry": entry, "emissions": 0, "released": None}

    def _apart(self, _spark, _log, name, _grid, slices, paths):
        return [file for path in paths for file in split(self.world, name, run_of(path), [path], slices)]

    def command(self, request):
        """What a user's command does."""
        plan = create_plan(None, self.pipeline, "lake", request)
        for _ in execute(None, plan, lambda *_: None):
            pass

    def release(self):
        """Publish what is in quarantine of some slice, one that has rows there if any has."""
        held = self.world.read("quarantined") if "quarantined" in self.world.tables else {}
        number = self.chance.choice(sorted(held) or range(SLICES))
        asked = hour(number), self.chance.choice([None, "one", "other"])
        return lambda: quarantine.release(None, self.pipeline, "lake", *asked, "somebody")

    def waive(self):
        """Let some slice through."""
        number = self.chance.randrange(SLICES)

        def act():
            attempt = get_next_attempt(Ledger.from_pipeline(self.pipeline, "lake"), number)
            self._step(lambda: self.world.waivers.add((number, attempt)))

        return act

    def compact(self):
        """Merge what can be merged."""
        planned = compacting.plan_compaction(self.pipeline, "lake")
        for merge in planned.merges:
            done = compacting.merge_files(None, planned, merge)
            self.told["merged" if done else "moved meanwhile"] += 1

    def move(self):
        """Serve what a shadow has, or what was served before; or let the shadow be what is served."""
        kind = self.chance.choice(["capture", "promote", "promote at once", "rollback"])
        move = rollback if kind == "rollback" and self.shadows.brought else promote

        def act():
            if move is promote and (kind != "promote" or self.shadows.shadow is None):
                self.shadows.capture()
            if kind == "capture" or self.shadows.shadow is None:
                return
            move(None, self.pipeline, "lake", "again", "ada")
            self.told[move.__name__] += 1

        return act

    def actor(self):
        """What somebody, or Airflow, does next."""
        if self.moves and self.chance.random() < 0.3:
            return self.move()
        if self.compacts and self.chance.random() < 0.4:
            return self.compact
        kind = self.chance.random() if self.world.quarantines else 1
        if kind < 0.25:
            return self.release()
        if kind < 0.35:
            return self.waive()
        request = self.request()
        return lambda: self.command(request)

    def request(self):
        """Some command: a run, a reprocess of slices, or of what has landed for."""
        chance = self.chance
        size, atomic = chance.randint(1, 2 if self.compacts else 4), chance.random() < 0.2
        kind = chance.random()
        if kind < 0.6:
            return Request(None, hour(chance.randint(1, SLICES)), size, atomic=atomic)
        if kind < 0.8:
            return Request(None, None, size, reprocess=True, atomic=atomic)
        first = chance.randrange(SLICES)
        return Request(hour(first), hour(chance.randint(first + 1, SLICES)), size, reprocess=True, atomic=atomic)

    def live(self):
        """Two workers, each starting again when it ends, while rows land."""
        self.world.land(self.chance.choices(range(SLICES), k=20 if self.compacts else 6))
        workers, asleep = [], {}
        for _ in range(400):
            if len(self.told) and self.told["commands"] > 12:
                break
            while len(workers) < 2:
                worker = Worker(str(self.told["commands"]), self.actor())
                self.workers[worker.thread.ident] = worker
                workers.append(worker)
                self.told["commands"] += 1
            awake = [worker for worker in workers if asleep.get(worker.name, 0) <= 0] or workers
            worker = self.chance.choice(awake)
            asleep = {name: left - 1 for name, left in asleep.items()}
            if self.chance.random() < 0.02:  # a zombie: it goes on when the others have long done something else
                asleep[worker.name] = 40
            fate = self.chance.choice(FATES) if self.chance.random() < self.trouble else None
            worker.go(fate)
            self.told[fate] += 1
            if worker.done:
                workers.remove(worker)
                self._end(worker)
            if self.chance.random() < 0.03:
                self.world.land(self.chance.choices(range(SLICES), k=self.chance.randint(1, 2)))
            self.every_version_is_the_answer_of_a_commit()
        for worker in workers:
            while not worker.done:
                worker.go("killed before")

    def _end(self, worker):
        if (
            worker.error
            and not isinstance(worker.error, TidemarkError | LostError)
            and type(worker.error).__name__ != "Killed"
        ):
            raise worker.error
        self.told[type(worker.error).__name__] += 1

    def settle(self):
        """Undisturbed, all that is left to do."""
        self.workers.clear()
        if self.pipeline.on_late_arriving_rows == "reprocess":
            self.command(Request(None, hour(SLICES), 3))
            with suppress(TidemarkError):
                self.command(Request(None, None, 3, reprocess=True))
        # Under `append` one more slice takes what has landed for the others.
        self.command(Request(None, hour(SLICES + 1), 3))

    def ledger(self):
        return self.world.ledger(self.grid)

    def every_version_is_the_answer_of_a_commit(self):
        """What a plain read gives at each version that has come since the last look."""
        for name, versions in self.world.tables.items():
            for version in versions[self.seen.get(name, 0) :]:
                held = plain(self.world, name, version)
                if name == "checkpoint":
                    then = self.world.ledger(self.grid, version.number).entries
                    assert set(held) == set(then), f"checkpoint at commit {version.number}"
                elif name == "quarantined" and not version.number:
                    assert not held, "rows of no commit"
                else:
                    told = self.world.answer(self.grid, name, version.number)
                    assert held == told, f"{name} at commit {version.number}"
            self.seen[name] = len(versions)
            unused = name == "quarantined" and not versions[-1].number
            assert unused or versions[-1].number >= self.ledger().number - 1, f"{name} is more than a commit behind"

    def nothing_is_lost_or_doubled(self):
        self.every_version_is_the_answer_of_a_commit()
        ledger = self.ledger()
        assert list(ledger.entries) == list(range(SLICES + 1))
        assert not stale(ledger)
        assert {versions[-1].number for versions in self.world.tables.values()} == {ledger.number}
        answer, aside = plain(self.world, "emissions"), {}
        if "quarantined" in self.world.tables:
            aside = plain(self.world, "quarantined")
        waived = {n for n, entry in ledger.entries.items() if (n, entry.run) in self.world.waived}
        assert not waived & {n for n, rows in aside.items() if rows}
        self.told["waived"] += len(waived)
        self.told["quarantined"] += sum(map(len, aside.values()))
        self.told["released"] += sum(rows.total() for *_, rows in self.world.released)
        seen = [answer.get(n, Counter()) + aside.get(n, Counter()) for n in ledger.entries]
        rows = Counter(row for slice_ in seen for row, _ in slice_.elements())
        assert rows == Counter(self.world.rows.keys())
        state: Taken = frozenset()
        for n, found in enumerate(seen):
            taken = frozenset((row, n) for row, _ in found)
            assert found == emitted(state, taken), f"slice {n} does not follow from those before it"
            state = state_after(state, taken, n)


def test_a_table_that_is_ahead_of_the_ledger_is_found(pipeline, monkeypatch):
    prepare, seen = running.prepare_commit, []
    for seed in range(9):
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, pipeline, patch)

            def hasty(spark, tables, grid, runs, again, opened, schedule=schedule):
                ready = prepare(spark, tables, grid, runs, again, opened)
                table_changes.apply_to_tables(tables, grid, schedule.ledger().number + 1, ready.references)
                return ready

            patch.setattr(running, "prepare_commit", hasty)
            try:
                schedule.live()
            except AssertionError as error:
                seen.append(str(error))
    assert any("commit 1" in told for told in seen)


def test_what_is_merged_between_a_slices_files_and_its_commit_is_taken_apart_again(pipeline, monkeypatch):
    prepare, told = running.prepare_commit, Counter()
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, pipeline, patch)
            schedule.compacts = True

            def followed(*what, schedule=schedule):
                ready = prepare(*what)
                schedule.compact()
                return ready

            patch.setattr(running, "prepare_commit", followed)
            schedule.live()
            schedule.settle()
            schedule.nothing_is_lost_or_doubled()
            told += schedule.told
    assert told["taken apart"]


def test_schedules(pipeline, monkeypatch):
    seeds = [int(ONE)] if ONE else range(SCHEDULES)
    told = Counter()
    for seed in seeds:
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, pipeline, patch)
            try:
                schedule.live()
                schedule.settle()
                schedule.nothing_is_lost_or_doubled()
            except BaseException:
                print(f"TIDEMARK_SCHEDULE={seed} shows it again")
                raise
            told += schedule.told
    print(f"schedules: {len(seeds)}; {dict(told)}")
    if not ONE:
        assert told["SliceOrderError"], "nobody was overtaken"
        assert all(told[fate] for fate in FATES)
        assert told["released"], "nothing was released"
        assert told["waived"], "no waiver was made use of"
        assert told["quarantined"], "nothing is in quarantine"
        assert told["merged"], "nothing was merged"
        assert told["moved meanwhile"], "no slice was in the way of a compaction"
        assert told["promote"], "nothing was promoted"
        assert told["rollback"], "nothing was rolled back"
