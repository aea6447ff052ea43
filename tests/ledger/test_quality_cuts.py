"""Expectations of every kind: what is said of a slice does not depend on how slices are cut into jobs."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from tidemark.errors import CheckFailedError

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
HALVES = {"every": "12 hours", "start": "2024-01-01T00:00:00Z"}


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def few(count, severity="warning", **looks):
    return {"type": "expect_table_row_count_to_be_between", "max_value": count, "severity": severity, **looks}


@pytest.fixture
def two_days(land, write):
    """1, 2, 3 and 4 pairs in the halves of two days, and a late row in the last half of each."""
    times = [(half, at(12 * half + 2, n)) for half in range(4) for n in range(half + 1)]
    land(*[(f"{half} {time}", time, time, half) for half, time in times])
    write("left", [("z", at(12 * half - 6), at(12 * half + 8), 9) for half in (1, 3)], ROW)


@pytest.fixture
def judged(go, ledger, pipeline):
    """Where each expectation failed, by numbers of slices; which slices are published; what a refusal says."""

    def run(per_job, *quality, **request):
        settings = pipeline(output=f"of_{per_job}", slices=HALVES, quality=list(quality))
        told = ""
        try:
            go(settings, end=at(48), slices_per_job=per_job, **request)
        except CheckFailedError as error:
            told = str(error)
        found = {}
        for row in ledger(settings).rows.to_dict("records"):
            for one in json.loads(row["findings"]):
                found.setdefault(one["expectation"].partition(")")[2].strip(), []).append(row["number"])
        return found, list(ledger(settings).entries), told

    return run


@pytest.mark.parametrize(("per_job", "atomic"), [(4, False), (1, False), pytest.param(1, True, marks=pytest.mark.slow)])
def test_each_slice_and_day_has_its_own_findings_however_many_a_job_takes(two_days, judged, per_job, atomic):
    asked = [few(3, per="day"), few(3, on="pairs"), few(0, on="late"), few(0, on="late", per="day"), few(3, on="left")]
    found, published, _ = judged(per_job, *asked, atomic=atomic)
    assert published == [0, 1, 2, 3]
    assert found == {"per day": [3], "on pairs": [3], "on late": [1, 3], "on late per day": [1, 3], "on left": [3]}


@pytest.mark.parametrize("per_job", [4, 1])
def test_an_input_that_is_refused_is_not_joined_and_the_slices_before_it_are_published(two_days, judged, lake, per_job):
    _, published, told = judged(per_job, few(2, "critical", on="left"))
    assert published == [0]
    assert "(max_value 2) on left found 3 in slice 2024-01-01T12:00Z, before the join; " in told
    assert not (lake / f"of_{per_job}" / "rejected_output").exists(), "nothing of it was written"


def test_a_day_that_is_refused_is_so_in_its_last_slice(two_days, judged):
    _, published, told = judged(2, few(2, "critical", per="day"))
    assert published == [0]
    assert "(max_value 2) per day found 3 in slice 2024-01-01T12:00Z" in told
