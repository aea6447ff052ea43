"""Recorded vectors and random streams of Flink's DataStream API, replayed under cuts.

The other dialects are in `test_conformance`. Each file takes minutes, and runs in a worker of its own.
"""

import pytest

from tests.semantics.replays import (
    DIALECTS,
    FILE,
    SMALL_VECTORS,
    assert_random_streams_pass,
    assert_recorded_vector_passes,
    create_replay,
    find_dialect,
    list_recorded,
)


@pytest.fixture(scope="module")
def replayed(spark):
    return create_replay(spark)


@pytest.mark.promise("A replay of recorded rows, uncut and cut, has the rows of the real engine.")
@pytest.mark.parametrize(("file", "name"), list_recorded("flink_datastream"))
def test_replay_recorded_vector_uncut_and_cut_matches_engine(replayed, file, name):
    assert_recorded_vector_passes(replayed, file, name)


@pytest.mark.promise("A replay of random streams, cut at random, has the rows of the dialect's oracle.")
@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name.startswith("datastream")])
def test_replay_random_streams_match_oracle(spark, replayed, dialect):
    assert_random_streams_pass(spark, replayed, dialect)


@pytest.mark.promise("A replay of recorded rows, uncut and cut, has the rows of the real engine.")
def test_replay_slice_per_event_in_single_job_matches_engine(replayed):
    results = [result for _, result in replayed(find_dialect(FILE))["each"]]
    assert len(results) == len(SMALL_VECTORS)
    assert not [result for result in results if not result.passed]
