"""Rows are compared as multisets, by slice, and only in slices that are committed."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

from tests.comparison.conftest import HOUR, START
from tidemark.comparison.causes import _add_missing_columns
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.compare import _is_in_range, _list_range_notes, _select_range
from tidemark.comparison.multiset_diff import diff_multisets
from tidemark.comparison.result import ComparisonRequest
from tidemark.config.types import to_micros
from tidemark.errors import UserError
from tidemark.timegrid.slices import Grid


def collect_differing(diff):
    return sorted(diff.differing.collect(), key=lambda row: (row["_only_in"], str(row["_slice"])))


def test_surplus_of_equal_rows_is_that_of_the_newest_slices(spark):
    slices = [START, START, START + HOUR, START + HOUR, START + 2 * HOUR]
    batch = spark.createDataFrame([("a", start) for start in slices], "k string, _slice timestamp")
    stream = spark.createDataFrame([("a",)], "k string")

    rows = collect_differing(diff_multisets(batch, stream, ["k"], {}))

    expected = {START: 1, START + HOUR: 2, START + 2 * HOUR: 1}
    assert {row["_slice"].timestamp(): row["_copies"] for row in rows} == {
        start.timestamp(): copies for start, copies in expected.items()
    }
    assert {(row["_batch"], row["_stream"]) for row in rows} == {(5, 1)}


def test_copies_of_rows_out_of_tolerance_are_counted_by_the_other_columns(spark):
    schema = "k string, v double, _slice timestamp"
    batch = spark.createDataFrame([("a", 1.0, START), ("b", 1.0, START)], schema)
    stream = spark.createDataFrame([("a", 9.0), ("b", 1.05), ("b", 5.0)], "k string, v double")

    rows = collect_differing(diff_multisets(batch, stream, ["k", "v"], {"v": 0.1}))

    assert [(row["k"], row["v"], row["_only_in"], row["_batch"], row["_stream"]) for row in rows] == [
        ("a", 1.0, "batch", 1, 1),
        ("a", 9.0, "stream", 1, 1),
        ("b", 5.0, "stream", 1, 2),
    ]


def test_order_of_map_entries_and_of_collected_rows_has_no_meaning(spark):
    batch = spark.sql(
        """SELECT map('x', 1, 'y', 2) AS m, array(named_struct('r', map(1, map('p', 1, 'q', 2)))) AS nested,
        array(named_struct('v', 2, 'm', map('a', 1)), named_struct('v', 1, 'm', NULL)) AS left, array(1, 2) AS list"""
    )
    stream = spark.sql(
        """SELECT map('y', 2, 'x', 1) AS m, array(named_struct('r', map(1, map('q', 2, 'p', 1)))) AS nested,
        array(named_struct('v', 1, 'm', NULL), named_struct('v', 2, 'm', map('a', 1))) AS left, array(1, 2) AS list"""
    )
    names, unordered = batch.columns, ("left", "right")

    assert diff_multisets(batch, stream, names, {}, unordered).is_empty
    others = stream.withColumn("list", F.reverse("list")), stream.withColumn("m", F.expr("map('y', 1, 'x', 2)"))
    for other in others:
        assert not diff_multisets(batch, other, names, {}, unordered).is_empty
    assert not diff_multisets(batch, stream, names, {}).is_empty, "other arrays have an order"


def test_only_committed_slices_are_compared(spark):
    entries = dict.fromkeys((2, 3, 6), SimpleNamespace(adopted_from=None))
    ledger = SimpleNamespace(entries=entries, last=SimpleNamespace(number=6))
    grid = Grid(to_micros(START), HOUR // timedelta(microseconds=1))
    view = CommittedView(spark, SimpleNamespace(name="p"), "", grid, None, (), ledger)
    request = ComparisonRequest("stream", start=START, end=START + 9 * HOUR)
    slices = _select_range(view, request)
    starts = spark.createDataFrame([(START + n * HOUR,) for n in range(10)], "_slice timestamp")
    compared = starts.where(_is_in_range(view, request, slices)).select(F.unix_micros("_slice")).collect()

    assert slices == range(2, 7)
    assert [view.grid.number_at(row[0]) for row in compared] == [2, 3, 6, 7, 8], "7 and 8 are not due yet"
    assert [note.partition(" are not")[0] for note in _list_range_notes(view, request, slices)] == [
        "slices before 2024-01-01T02:00Z", "slices from 2024-01-01T04:00Z to 2024-01-01T06:00Z (exclusive)",
    ]  # fmt: skip
    for first, end in ((0, 2), (4, 6)):
        request = ComparisonRequest("stream", start=START + first * HOUR, end=START + end * HOUR)
        with pytest.raises(UserError, match="has no committed slice from"):
            _select_range(view, request)


def test_rows_quarantined_without_a_column_have_it_as_null(spark):
    rows = spark.createDataFrame([("a", 1)], "k string, `a.b` int")
    padded = _add_missing_columns(rows.select("k"), rows, ["k", "a.b"])

    assert padded.dtypes == [("k", "string"), ("a.b", "int")]
