"""The driver's commit protocol under seeded random schedules: concurrent, delayed and killed workers, failing storage.

Workers run, reprocess, release, waive, compact, vacuum, promote and roll back. In most schedules they do so on
two pipelines, the second of which reads the output of the first.

A schedule is a number: `TIDEMARK_SCHEDULE=4711 pytest tests/simulation` runs that one alone.
"""

import os
from collections import Counter

import pytest

from tests.simulation.chain_mutants import CHAIN_MUTANTS
from tests.simulation.in_memory_lake import replace_in_package
from tests.simulation.schedule import Schedule
from tests.simulation.worker import FAILURES
from tidemark.ledger.prepare_commit import prepare_commit
from tidemark.tables.table_changes import apply_to_tables

SCHEDULES = int(os.environ.get("TIDEMARK_SCHEDULES", "200"))
SINGLE_SCHEDULE = os.environ.get("TIDEMARK_SCHEDULE")
SEEDS = 20
"""Number of schedules of a test in which something happens at each commit."""


def test_simulation_detects_table_ahead_of_ledger(tmp_path, monkeypatch):
    failures = []
    for seed in range(9):
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, tmp_path, patch, has_chain=False)

            def prepare_and_apply(spark, tables, grid, *arguments, schedule=schedule):
                prepared = prepare_commit(spark, tables, grid, *arguments)
                apply_to_tables(tables, grid, schedule.records[0].read().last_commit + 1, prepared.changes)
                return prepared

            replace_in_package(patch, prepare_commit, prepare_and_apply)
            try:
                schedule.run()
            except AssertionError as error:
                failures.append(str(error))

    assert any("commit 1" in failure for failure in failures)


@pytest.mark.parametrize("break_rule", CHAIN_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_simulation_detects_fault_of_chain(tmp_path, monkeypatch, break_rule):
    """One of the schedules that `test_random_schedules_keep_tables_consistent` runs finds the fault."""
    for seed in range(SCHEDULES):
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, tmp_path, patch)
            break_rule(patch)
            try:
                schedule.run()
            except AssertionError:
                return

    pytest.fail(f"no schedule fails: {break_rule.__doc__}")


def test_compaction_before_commit_of_run_is_undone(tmp_path, monkeypatch):
    events = Counter()
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, tmp_path, patch, has_chain=False)
            schedule.has_compaction = True

            def prepare_and_compact(*arguments, schedule=schedule, **options):
                prepared = prepare_commit(*arguments, **options)
                schedule.compact(schedule.records[0])
                return prepared

            replace_in_package(patch, prepare_commit, prepare_and_compact)
            schedule.run()
            events += schedule.events

    assert events["undone compactions"]


def test_random_schedules_keep_tables_consistent(tmp_path, monkeypatch):
    seeds = [int(SINGLE_SCHEDULE)] if SINGLE_SCHEDULE else range(SCHEDULES)
    events = Counter()
    for seed in seeds:
        with monkeypatch.context() as patch:
            schedule = Schedule(seed, tmp_path, patch)
            try:
                schedule.run()
            except BaseException:
                print(f"TIDEMARK_SCHEDULE={seed} reproduces this failure")
                raise
            events += schedule.events
            events["chains"] += schedule.has_chain

    print(f"schedules: {len(seeds)}; {dict(events)}")
    if not SINGLE_SCHEDULE:
        assert events["SliceOrderError"], "there was no commit conflict"
        assert all(events[failure] for failure in FAILURES)
        assert events["chains"], "there was no chain"
        assert events["released"], "nothing was released"
        assert events["waived"], "no waiver was used"
        assert events["quarantined"], "nothing is in quarantine"
        assert events["merged"], "nothing was merged"
        assert events["skipped merges"], "no slice was recomputed during a compaction"
        assert events["vacuumed"], "no replaced file was deleted"
        assert events["truncated"], "no log was truncated"
        assert events["expired"], "no checkpoint has expired"
        assert events["promote"], "nothing was promoted"
        assert events["rollback"], "nothing was rolled back"
