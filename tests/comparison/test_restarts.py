"""A stream whose job has restarted, beside a pipeline that nobody has told."""

from datetime import UTC, datetime, timedelta

import pytest

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
RESTART = "2024-01-01T02:05Z"


def rows(more):
    """A row each ten minutes, of which each fourth comes three quarters of an hour late."""
    for n in range(24):
        happened = START + timedelta(minutes=10 * n)
        yield "a", happened, happened + timedelta(minutes=45 if n % 4 == 0 else 2), n + more


@pytest.mark.slow
def test_rows_late_only_because_of_it_are_told_so(write, pipeline, ran, compared, emitted):
    write("left", list(rows(0)), ROW)
    write("right", list(rows(100)), ROW)
    told, plain = (
        ran(pipeline(**more), slices_per_job="auto") for more in ({"restarts": [RESTART], "output": "told"}, {})
    )
    gained = emitted(told).exceptAll(emitted(plain)).count()
    assert gained > 1
    [cause] = compared(plain, emitted(told), told).causes
    assert (cause.cause, cause.missing_in, cause.rows) == ("late in the batch", "batch", gained)
    assert {one["_detail"] for one in cause.examples} == {f"only by a restart: restarts.0 {RESTART}, not None"}
    [cause] = compared(told, emitted(plain), plain).causes
    assert (cause.cause, cause.missing_in, cause.rows) == ("late in the stream", "stream", gained)
    assert {one["_detail"] for one in cause.examples} == {f"only by a restart: restarts.0 None, not {RESTART}"}
    found = compared(plain, emitted(told))
    assert [(one.cause, one.rows) for one in found.causes] == [("other settings", gained)]
    assert found.settings.told == f"restarts: {RESTART} explains {gained} rows and contradicts 0"
