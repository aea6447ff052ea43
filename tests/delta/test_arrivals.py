"""When the rows of files were first committed, by logs written out here: no table, no Spark."""

from __future__ import annotations

from functools import reduce

import pytest

from tidemark.delta.commit_history import Commit, LoggedFile
from tidemark.delta.row_commit_times import ArrivalTracker

MINUTE = 60_000_000


def file(path, *, changes=True, partition="{}", deleted=None, row=None):
    return LoggedFile(path, changes, partition, deleted, row)


def commit(version, operation="WRITE", added=(), removed=(), *, keeps=False, copies=False, tracks=None):
    """At so many minutes; files by name, or as they are."""
    changes = operation not in {"OPTIMIZE", "ROW TRACKING BACKFILL"}
    came, went = (
        tuple(file(one, changes=changes) if isinstance(one, str) else one for one in files)
        for files in (added, removed)
    )
    return Commit(version, version * MINUTE, operation, keeps, tracks, copies, came, went)


def known(*commits, path, tracked=False, there=lambda _: True):
    passage = ArrivalTracker(commits[0])
    for one in commits:
        passage.apply_commit(one)
    return passage.get_arrival(path, has_row_tracking=tracked, are_present=there)


A, B = commit(1, added="a"), commit(2, added="b")
OPTIMIZED = commit(3, "OPTIMIZE", added="c", removed="ab")


def test_a_file_of_one_commit_arrived_with_it_and_keeps_that_through_rewrites_and_deletion_vectors():
    again = commit(4, "DELETE", added=[file("a", deleted="dv")], removed=["a"])
    for commits in ([A, B], [A, B, again], [A, B, commit(4, "ROW TRACKING BACKFILL", added=[file("a", row=4)])]):
        assert known(*commits, path="a").is_single_commit
        assert known(*commits, path="a").latest_us == MINUTE
    moved = commit(3, "OPTIMIZE", added="c", removed="a")
    assert (known(A, moved, path="c").latest_us, known(A, moved, path="c").is_single_commit) == (MINUTE, True)
    cut = commit(3, "DELETE", added="c", removed="a", copies=True)
    assert (known(A, B, cut, path="c").latest_us, known(A, B, cut, path="c").is_single_commit) == (MINUTE, True)
    restored = commit(4, "RESTORE", added="a", removed="c")
    assert known(A, moved, restored, path="a").latest_us == MINUTE


def test_rows_of_several_commits_in_one_file_are_read_where_they_were_before():
    found = known(A, B, OPTIMIZED, path="c")
    assert (found.earliest_us, found.latest_us, found.ambiguity_reason) == (MINUTE, 2 * MINUTE, None)
    assert [(part.path, part.version, part.arrived_us) for part in found.rewrite.sources] == [
        ("a", 2, MINUTE),
        ("b", 2, 2 * MINUTE),
    ]
    twice = commit(5, "OPTIMIZE", added="e", removed="cd")
    found = known(A, B, OPTIMIZED, commit(4, added="d"), twice, path="e")
    assert [(part.path, part.version) for part in found.rewrite.sources] == [("a", 2), ("b", 2), ("d", 4)]


def test_files_that_were_made_together_are_read_together():
    split = commit(3, "OPTIMIZE", added="cd", removed="ab")
    one = commit(5, "OPTIMIZE", added="f", removed="de")
    passed = [A, B, split, commit(4, added="e"), one]
    for path in "cf":
        assert known(*passed, path=path).rewrite.files == {"c", "f"}
        assert {part.path for part in known(*passed, path=path).rewrite.sources} == {"a", "b", "e"}


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        (commit(4, "DELETE", added=[file("c", deleted="dv")], removed=["c"]), "c"),
        (commit(4, "DELETE", added="d", removed="c", copies=True), "d"),
    ],
)
def test_rows_that_were_moved_and_then_deleted_are_known_to_be_no_later_than_the_last_of_them(damage, path):
    found = known(A, B, OPTIMIZED, damage, path=path)
    assert (found.earliest_us, found.latest_us, found.is_single_commit) == (2 * MINUTE, 2 * MINUTE, False)
    assert "version 3 (OPTIMIZE)" in found.ambiguity_reason or "version 4 (DELETE)" in found.ambiguity_reason
    assert "delta.enableRowTracking" in found.ambiguity_reason


def test_where_vacuum_has_removed_the_files_from_before_no_more_is_known():
    found = known(A, B, OPTIMIZED, path="c", there=lambda _: False)
    assert (found.latest_us, "earlier files are deleted" in found.ambiguity_reason) == (2 * MINUTE, True)


@pytest.mark.parametrize("operation", ["UPDATE", "MERGE"])
def test_a_change_that_copies_rows_blurs_what_came_up_to_it(operation):
    changed = commit(3, operation, added="c", removed="a", copies=True)
    found = known(A, B, changed, path="c")
    assert (found.latest_us, found.ambiguity_reason.startswith(f"version 3 ({operation})")) == (3 * MINUTE, True)
    assert known(A, B, changed, path="b").is_single_commit
    overwritten = commit(3, added="c", removed="ab")
    assert (known(A, B, overwritten, path="c").latest_us, known(A, B, overwritten, path="c").is_single_commit) == (
        3 * MINUTE,
        True,
    )


def test_row_commit_versions_tell_rows_apart_as_long_as_they_are_kept():
    a, b = (commit(n, added=[file(name, row=n)]) for n, name in ((1, "a"), (2, "b")))
    packed = commit(
        3, "OPTIMIZE", [file("c", changes=False, row=3)], [file("a", changes=False), file("b", changes=False)]
    )
    kept = commit(3, "OPTIMIZE", packed.added, packed.removed, keeps=True)
    updated = commit(4, "UPDATE", [file("d", row=4)], ["c"], keeps=True, copies=True)
    found = known(a, b, kept, updated, path="d", tracked=True)
    assert (found.us_by_row_commit_version, found.ambiguity_reason) == ({1: MINUTE, 2: 2 * MINUTE, 4: 4 * MINUTE}, None)
    assert "no longer tracks" in known(a, b, kept, updated, path="d").ambiguity_reason
    assert known(a, b, packed, path="c", tracked=True).rewrite is not None


def test_rows_from_before_rows_were_tracked_have_the_version_of_the_backfill_which_tells_nothing():
    backfill = commit(3, "ROW TRACKING BACKFILL", added=[file(name, changes=False, row=3) for name in "ab"])
    updated = commit(4, "UPDATE", [file("c", row=4)], ["a", "b"], keeps=True, copies=True)
    assert known(A, B, backfill, updated, path="c", tracked=True).ambiguity_reason.startswith("version 4 (UPDATE)")
    of_one = commit(4, "UPDATE", [file("c", row=4)], ["a"], keeps=True, copies=True)
    assert known(A, B, backfill, of_one, path="c", tracked=True).us_by_row_commit_version == {3: MINUTE, 4: 4 * MINUTE}


def test_files_from_before_the_log_begins_are_earlier_than_its_first_commit():
    first = commit(7, added="x")
    assert known(first, path="x").is_single_commit
    for found in (known(first, path="a"), known(first, commit(8, "OPTIMIZE", "c", "ax"), path="c")):
        assert found.ambiguity_reason.startswith("its log begins with version 7")
    assert known(first, path="a").latest_us == 7 * MINUTE - 1000
    assert known(first, commit(8, "OPTIMIZE", "c", "ax"), path="c").latest_us == 7 * MINUTE
    back = commit(8, "RESTORE", added="b", removed="x")
    assert "restored files" in known(first, back, path="b").ambiguity_reason


def test_partitions_are_rewritten_each_by_itself():
    p, q = '{"p": "1"}', '{"p": "2"}'
    written = [commit(n, added=[file(f"{n}{part}", partition=part) for part in (p, q)]) for n in (1, 2)]
    packed = commit(
        3,
        "OPTIMIZE",
        added=[file(f"c{part}", changes=False, partition=part) for part in (p, q)],
        removed=[file(f"{n}{part}", changes=False, partition=part) for n, part in ((1, p), (2, p), (1, q))],
    )
    found = reduce(lambda all_, part: {**all_, part: known(*written, packed, path=f"c{part}")}, (p, q), {})
    assert (found[q].is_single_commit, found[q].latest_us) == (True, MINUTE)
    assert {part.path for part in found[p].rewrite.sources} == {f"1{p}", f"2{p}"}
