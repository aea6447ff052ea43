"""Tests of the commit times of rows, tracked through written-out logs without a table or Spark."""

from __future__ import annotations

import pytest

from tidemark.delta.commit_history import Commit, LoggedFile
from tidemark.delta.row_commit_times import ArrivalTracker

MINUTE = 60_000_000


def file(path, *, changes=True, partition="{}", deleted=None, row=None):
    return LoggedFile(path, changes, partition, deleted, row)


def commit(version, operation="WRITE", added=(), removed=(), *, keeps=False, copies=False, tracks=None):
    """Create a commit at as many minutes as its version; `added` and `removed` contain files or their names."""
    changes = operation not in {"OPTIMIZE", "ROW TRACKING BACKFILL"}
    added_files, removed_files = (
        tuple(file(item, changes=changes) if isinstance(item, str) else item for item in files)
        for files in (added, removed)
    )
    return Commit(version, version * MINUTE, operation, keeps, tracks, copies, added_files, removed_files)


def get_arrival(*commits, path, tracked=False, are_present=lambda _: True):
    """Apply commits and return the arrival of a file's rows."""
    tracker = ArrivalTracker(commits[0])
    for logged in commits:
        tracker.apply_commit(logged)
    return tracker.get_arrival(path, has_row_tracking=tracked, are_present=are_present)


A, B = commit(1, added="a"), commit(2, added="b")
OPTIMIZED = commit(3, "OPTIMIZE", added="c", removed="ab")


def test_arrival_of_single_commit_survives_rewrites_and_deletion_vectors():
    deletion = commit(4, "DELETE", added=[file("a", deleted="dv")], removed=["a"])
    backfill = commit(4, "ROW TRACKING BACKFILL", added=[file("a", row=4)])
    for commits in ([A, B], [A, B, deletion], [A, B, backfill]):
        assert get_arrival(*commits, path="a").is_single_commit
        assert get_arrival(*commits, path="a").latest_us == MINUTE

    moved = commit(3, "OPTIMIZE", added="c", removed="a")
    copied = commit(3, "DELETE", added="c", removed="a", copies=True)
    for commits in ([A, moved], [A, B, copied]):
        arrival = get_arrival(*commits, path="c")
        assert (arrival.latest_us, arrival.is_single_commit) == (MINUTE, True)

    restored = commit(4, "RESTORE", added="a", removed="c")
    assert get_arrival(A, moved, restored, path="a").latest_us == MINUTE


def test_arrival_after_optimize_refers_to_source_files():
    arrival = get_arrival(A, B, OPTIMIZED, path="c")
    assert (arrival.earliest_us, arrival.latest_us, arrival.ambiguity_reason) == (MINUTE, 2 * MINUTE, None)
    assert [(source.path, source.version, source.arrived_us) for source in arrival.rewrite.sources] == [
        ("a", 2, MINUTE),
        ("b", 2, 2 * MINUTE),
    ]

    second = commit(5, "OPTIMIZE", added="e", removed="cd")
    arrival = get_arrival(A, B, OPTIMIZED, commit(4, added="d"), second, path="e")
    assert [(source.path, source.version) for source in arrival.rewrite.sources] == [("a", 2), ("b", 2), ("d", 4)]


def test_arrival_after_optimize_to_several_files_groups_them():
    split = commit(3, "OPTIMIZE", added="cd", removed="ab")
    merged = commit(5, "OPTIMIZE", added="f", removed="de")
    commits = [A, B, split, commit(4, added="e"), merged]

    for path in "cf":
        arrival = get_arrival(*commits, path=path)
        assert arrival.rewrite.files == {"c", "f"}
        assert {source.path for source in arrival.rewrite.sources} == {"a", "b", "e"}


@pytest.mark.parametrize(
    ("deletion", "path"),
    [
        (commit(4, "DELETE", added=[file("c", deleted="dv")], removed=["c"]), "c"),
        (commit(4, "DELETE", added="d", removed="c", copies=True), "d"),
    ],
)
def test_arrival_after_optimize_and_delete_is_ambiguous(deletion, path):
    arrival = get_arrival(A, B, OPTIMIZED, deletion, path=path)

    assert (arrival.earliest_us, arrival.latest_us, arrival.is_single_commit) == (2 * MINUTE, 2 * MINUTE, False)
    assert "version 3 (OPTIMIZE)" in arrival.ambiguity_reason or "version 4 (DELETE)" in arrival.ambiguity_reason
    assert "delta.enableRowTracking" in arrival.ambiguity_reason


def test_arrival_after_vacuum_of_source_files_is_ambiguous():
    arrival = get_arrival(A, B, OPTIMIZED, path="c", are_present=lambda _: False)

    assert (arrival.latest_us, "earlier files are deleted" in arrival.ambiguity_reason) == (2 * MINUTE, True)


@pytest.mark.parametrize("operation", ["UPDATE", "MERGE"])
def test_arrival_after_copied_rows_is_ambiguous(operation):
    changed = commit(3, operation, added="c", removed="a", copies=True)
    arrival = get_arrival(A, B, changed, path="c")
    assert (arrival.latest_us, arrival.ambiguity_reason.startswith(f"version 3 ({operation})")) == (3 * MINUTE, True)
    assert get_arrival(A, B, changed, path="b").is_single_commit

    overwritten = commit(3, added="c", removed="ab")
    arrival = get_arrival(A, B, overwritten, path="c")
    assert (arrival.latest_us, arrival.is_single_commit) == (3 * MINUTE, True)


def test_arrival_with_row_tracking_has_time_per_row_commit_version():
    a, b = (commit(n, added=[file(name, row=n)]) for n, name in ((1, "a"), (2, "b")))
    packed = commit(
        3, "OPTIMIZE", [file("c", changes=False, row=3)], [file("a", changes=False), file("b", changes=False)]
    )
    preserving = commit(3, "OPTIMIZE", packed.added, packed.removed, keeps=True)
    updated = commit(4, "UPDATE", [file("d", row=4)], ["c"], keeps=True, copies=True)

    arrival = get_arrival(a, b, preserving, updated, path="d", tracked=True)

    assert arrival.us_by_row_commit_version == {1: MINUTE, 2: 2 * MINUTE, 4: 4 * MINUTE}
    assert arrival.ambiguity_reason is None
    assert "no longer tracks" in get_arrival(a, b, preserving, updated, path="d").ambiguity_reason
    assert get_arrival(a, b, packed, path="c", tracked=True).rewrite is not None


def test_arrival_of_backfilled_rows_is_ambiguous_for_several_files():
    backfill = commit(3, "ROW TRACKING BACKFILL", added=[file(name, changes=False, row=3) for name in "ab"])
    update_of_both = commit(4, "UPDATE", [file("c", row=4)], ["a", "b"], keeps=True, copies=True)
    update_of_a = commit(4, "UPDATE", [file("c", row=4)], ["a"], keeps=True, copies=True)

    ambiguous = get_arrival(A, B, backfill, update_of_both, path="c", tracked=True)
    unambiguous = get_arrival(A, B, backfill, update_of_a, path="c", tracked=True)

    assert ambiguous.ambiguity_reason.startswith("version 4 (UPDATE)")
    assert unambiguous.us_by_row_commit_version == {3: MINUTE, 4: 4 * MINUTE}


def test_arrival_of_files_older_than_the_log_is_before_its_first_commit():
    first = commit(7, added="x")
    optimized = commit(8, "OPTIMIZE", "c", "ax")
    assert get_arrival(first, path="x").is_single_commit
    for arrival in (get_arrival(first, path="a"), get_arrival(first, optimized, path="c")):
        assert arrival.ambiguity_reason.startswith("its log begins with version 7")
    assert get_arrival(first, path="a").latest_us == 7 * MINUTE - 1000
    assert get_arrival(first, optimized, path="c").latest_us == 7 * MINUTE

    restored = commit(8, "RESTORE", added="b", removed="x")
    assert "restored files" in get_arrival(first, restored, path="b").ambiguity_reason


def test_arrival_after_optimize_refers_to_files_of_the_partition():
    p, q = '{"p": "1"}', '{"p": "2"}'
    written = [commit(n, added=[file(f"{n}{part}", partition=part) for part in (p, q)]) for n in (1, 2)]
    packed = commit(
        3,
        "OPTIMIZE",
        added=[file(f"c{part}", changes=False, partition=part) for part in (p, q)],
        removed=[file(f"{n}{part}", changes=False, partition=part) for n, part in ((1, p), (2, p), (1, q))],
    )

    arrival_p, arrival_q = (get_arrival(*written, packed, path=f"c{part}") for part in (p, q))

    assert (arrival_q.is_single_commit, arrival_q.latest_us) == (True, MINUTE)
    assert {source.path for source in arrival_p.rewrite.sources} == {f"1{p}", f"2{p}"}
