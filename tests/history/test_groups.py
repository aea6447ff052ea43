"""Groups of slices: what the gate lets through of a group."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pandas as pd
import pytest

from tidemark import quality
from tidemark.errors import CheckFailedError
from tidemark.quality import DERIVED, Finding, Verdict, first_refused

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
BOUND = {"type": "expect_column_values_to_be_between", "column": "right_v", "max_value": 500}


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def row(v, arrived, key="a"):
    return (key, arrived, arrived, v)


@pytest.fixture
def six_hours(land, write):
    """A pair an hour, and a left row of the second hour whose only partner is a bad row of the fourth."""
    land(*[row(10 * hour, at(hour, 20)) for hour in range(6)])
    write("left", [row(1, at(1, 30), "z")], ROW)
    write("right", [row(999, at(3, 15), "z")], ROW)


@pytest.fixture
def stored(spark, lake):
    """Pairs of a table of the pipeline, whoever may see them."""

    def read(table):
        rows = spark.read.format("delta").load(f"{lake}/orders/{table}").select("_slice", "left_v", "right_v")
        return sorted((r["_slice"].hour, r["left_v"], r["right_v"]) for r in rows.collect())

    return read


def test_slices_before_the_first_that_fails_are_published_and_the_rest_follows_when_mended(
    spark, lake, pipeline, six_hours, go, answer, ledger, fresh, stored
):
    join = {"keys": ["k"], "type": "left", "interval": {"lower": "0 s", "upper": "2 hours"}}
    settings = pipeline(dialect="spark", join=join, quality=[BOUND])
    with pytest.raises(CheckFailedError) as raised:
        go(settings, end=at(6))
    told = str(raised.value)
    assert "expect_column_values_to_be_between(column right_v, max_value 500.0) found 1 of " in told
    assert (
        "in slice 2024-01-01T03:00Z; slices 2024-01-01T00:00Z to 2024-01-01T03:00Z were published, "
        "2024-01-01T03:00Z to 2024-01-01T06:00Z were not. Look at "
    ) in told
    assert "\n" not in told
    known = ledger(settings)
    assert [(entry.number, entry.run) for entry in known.entries.values()] == [
        (number, known.last.run) for number in range(3)
    ]
    assert {hour for hour, *_ in stored("emissions")} == {0, 1, 2}, "nobody sees what was refused"
    refused = stored("rejected_output")
    assert (3, 1, 999) in refused
    assert {hour for hour, *_ in refused} == {3, 4, 5}
    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 999")
    plan, [ran] = go(settings, end=at(6))
    assert plan.describe()["carry_in"] == "2024-01-01T02:00Z"
    assert (list(ran.slices), ran.verdict.outcome) == ([3, 4, 5], "passed")
    clean = {"dialect": "spark", "join": join}
    assert answer() == fresh(at(6), **clean), "the row is padded, as if it had never met the bad one"
    assert [entry.digest for entry in ledger(settings).entries.values()] == [
        entry.digest for entry in ledger(pipeline(output="fresh", **clean)).entries.values()
    ]


def test_of_an_atomic_range_nothing_is_published(pipeline, six_hours, go, ledger, stored):
    join = {"keys": ["k"], "interval": {"lower": "0 s", "upper": "2 hours"}}
    settings = pipeline(join=join, quality=[BOUND])
    with pytest.raises(CheckFailedError, match="in slice 2024-01-01T03:00Z; nothing was published, as --atomic asks"):
        go(settings, end=at(6), slices_per_job=2, atomic=True)
    assert ledger(settings).entries == {}
    assert stored("emissions") == []
    assert {hour for hour, *_ in stored("rejected_output")} == {2, 3}, "of the job that failed"


def facts(broken=None, name="null_keys", slices=8):
    table = pd.DataFrame(0, index=range(slices), columns=list(DERIVED))
    if broken is not None:
        table.loc[broken, name] = 1
    return table


def verdict(*severities):
    return Verdict(tuple(Finding("it", severity, "") for severity in severities), 0, "")


def test_a_slice_is_refused_by_its_own_facts():
    plain = SimpleNamespace(quality=[])
    count, passed, refused = first_refused(verdict("critical"), facts([5, 6]), int, plain, None)
    assert (count, passed.outcome, refused.outcome) == (5, "passed", "failed")


def test_what_is_known_of_the_job_alone_refuses_all_of_it():
    broken = facts(slice(None), "rows_unaccounted")
    count, _, refused = first_refused(verdict("critical"), broken, int, SimpleNamespace(quality=[]), None)
    assert (count, refused.outcome) == (0, "failed")


@pytest.mark.parametrize("fit", [0, 1, 6, 999])
def test_expectations_are_judged_on_the_output_of_the_first_slices_and_seldom(fit, monkeypatch):
    judged = []

    def tried(count, *_):
        judged.append(count)
        return verdict("critical" if count > fit else "warning").findings

    monkeypatch.setattr(quality, "_tried", tried)
    whole = verdict("critical", "warning")
    count, passed, refused = first_refused(whole, facts(slices=1000), int, SimpleNamespace(quality=[1]), None)
    assert (count, refused.outcome) == (fit, "failed")
    assert passed.outcome == ("warned" if fit else "failed")
    assert len(judged) <= 11
