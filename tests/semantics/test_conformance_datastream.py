"""Recorded vectors and random streams of Flink's DataStream API, replayed under cuts.

The other dialects are in `test_conformance`. Each file takes minutes, and runs in a worker of its own.
"""

import pytest

from tests.semantics.replays import (
    DATASTREAM_FILES,
    DIALECTS,
    FILE,
    RANDOM_STREAMS,
    RECORDED_ROWS,
    SMALL_VECTORS,
    assert_random_streams_pass,
    assert_recorded_vector_passes,
    find_dialect,
    list_recorded,
)


@RECORDED_ROWS
@pytest.mark.parametrize(("file", "name"), list_recorded(DATASTREAM_FILES))
def test_replay_recorded_vector_uncut_and_cut_matches_engine(replayed, file, name):
    assert_recorded_vector_passes(replayed, file, name)


@RANDOM_STREAMS
@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name.startswith("datastream")])
def test_replay_random_streams_match_oracle(spark, replayed, dialect):
    assert_random_streams_pass(spark, replayed, dialect)


@RECORDED_ROWS
def test_replay_slice_per_event_in_single_job_matches_engine(replayed):
    results = [result for _, result in replayed(find_dialect(FILE))["each"]]
    assert len(results) == len(SMALL_VECTORS)
    assert not [result for result in results if not result.passed]
