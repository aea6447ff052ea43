"""Recorded vectors and random streams of chains of two joins in Flink, replayed under cuts."""

import pytest

from tests.semantics.replays import (
    CHAIN_FILES,
    RANDOM_STREAMS,
    RECORDED_ROWS,
    assert_random_streams_pass,
    assert_recorded_vector_passes,
    list_recorded,
)


@RECORDED_ROWS
@pytest.mark.parametrize(("file", "name"), list_recorded(CHAIN_FILES))
def test_replay_recorded_chain_uncut_and_cut_matches_engine(replayed, file, name):
    assert_recorded_vector_passes(replayed, file, name)


@RANDOM_STREAMS
def test_replay_random_chains_match_oracle(spark, replayed):
    assert_random_streams_pass(spark, replayed, "chain")


@RANDOM_STREAMS
def test_replay_second_join_reads_rows_of_one_event_in_their_order(replayed):
    for case, result in replayed("chain")["ordered"]:
        assert result.passed, (case.vector["name"], result)
