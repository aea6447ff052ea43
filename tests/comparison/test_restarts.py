"""Compare a stream whose job restarted with a pipeline without `restarts`."""

from datetime import UTC, datetime, timedelta

import pytest

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
RESTART = "2024-01-01T02:05Z"


def generate_rows(offset):
    """Generate a row every ten minutes; every fourth arrives three quarters of an hour late."""
    for n in range(24):
        happened = START + timedelta(minutes=10 * n)
        yield "a", happened, happened + timedelta(minutes=45 if n % 4 == 0 else 2), n + offset


@pytest.mark.slow
def test_compare_rows_late_only_by_a_restart_names_the_restart(
    write, pipeline, run_pipeline, compare_with, read_emissions
):
    write("left", list(generate_rows(0)), ROW)
    write("right", list(generate_rows(100)), ROW)
    restarted, plain = (
        run_pipeline(pipeline(**changes), slices_per_job="auto")
        for changes in ({"restarts": [RESTART], "output": "restarted"}, {})
    )
    gained = read_emissions(restarted).exceptAll(read_emissions(plain)).count()

    assert gained > 1

    [cause] = compare_with(plain, read_emissions(restarted), restarted).causes
    assert (cause.cause, cause.missing_in, cause.rows) == ("late in the batch", "batch", gained)
    because = "only because of a restart"
    assert {example["_detail"] for example in cause.examples} == {
        f"{because}: the reference restarts at {RESTART}, the pipeline does not"
    }

    [cause] = compare_with(restarted, read_emissions(plain), plain).causes
    assert (cause.cause, cause.missing_in, cause.rows) == ("late in the stream", "stream", gained)
    assert {example["_detail"] for example in cause.examples} == {
        f"{because}: the pipeline restarts at {RESTART}, the reference does not"
    }

    result = compare_with(plain, read_emissions(restarted))
    assert [(cause.cause, cause.rows) for cause in result.causes] == [("other settings", gained)]
    assert result.setting_trials[0].is_supported
    assert result.setting_trials[0].summary == f"restarts: {RESTART} explains {gained} rows and contradicts 0"
