"""Recorded vectors and random streams of Flink SQL and Spark, replayed under cuts; strategies of large jobs."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

import tidemark_conformance as conformance
from tests.semantics.cuts import cut_vector
from tests.semantics.replays import (
    CHAIN_FILES,
    DATASTREAM_FILES,
    DIALECTS,
    FILE,
    FILES,
    RANDOM_STREAMS,
    RECORDED_ROWS,
    VECTORS,
    assert_random_streams_pass,
    assert_recorded_vector_passes,
    list_recorded,
)
from tidemark.cli.app import main
from tidemark.joins.sql_interval import late_materialization
from tidemark.planning.replay_strategy import ReplayLimits
from tidemark.spark.temporary_settings import tuned_for_tiny_queries


@RECORDED_ROWS
@pytest.mark.parametrize(
    ("file", "name"), list_recorded([file for file in FILES if file not in [*DATASTREAM_FILES, *CHAIN_FILES]])
)
def test_replay_recorded_vector_uncut_and_cut_matches_engine(replayed, file, name):
    assert_recorded_vector_passes(replayed, file, name)


@RANDOM_STREAMS
@pytest.mark.parametrize("dialect", [name for name in DIALECTS if not name.startswith(("datastream", "chain"))])
def test_replay_random_streams_match_oracle(spark, replayed, dialect):
    assert_random_streams_pass(spark, replayed, dialect)


@settings(max_examples=200, deadline=None)
@given(vector=DIALECTS["datastream_interval"])
def test_oracle_random_stream_emits_each_pair_once(vector):
    pairs = [(row["left_id"], row["right_id"]) for row in vector["expected"]["rows"]]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize(
    ("api", "kind", "method", "is_broadcast"),
    [
        ("datastream", "interval", "ordered", True),
        ("datastream", "interval", "broadcast_positions", True),
        ("datastream", "window", "by_position", True),
        ("sql", "interval", "broadcast_positions", True),
        ("sql", "window", "broadcast_positions", True),
        pytest.param("datastream", "interval", "by_position", True, marks=pytest.mark.slow),
        pytest.param("datastream", "interval", "broadcast_positions", False, marks=pytest.mark.slow),
        pytest.param("sql", "interval", "by_position", True, marks=pytest.mark.slow),
        pytest.param("sql", "interval", "broadcast_positions", False, marks=pytest.mark.slow),
    ],
)
def test_replay_large_job_strategies_in_two_jobs_match_engine(spark, monkeypatch, api, kind, method, is_broadcast):
    # Large jobs find exact watermarks differently: in order, by positions or by watermark increments. The second job
    # continues from the rows that the first one selected. Tumbling windows run without sliding ones, which would make
    # both use the code of sliding windows.
    limits = ReplayLimits(
        max_cached_rows=0,
        max_carried_share=1.0,
        max_late_candidate_share=-1.0 if method == "by_position" else 1.0,
        max_increment_share=-1.0 if method == "broadcast_positions" else 1.0,
        max_comparisons_per_row=1000,
    )
    if not is_broadcast:  # exceptional rows are too many to be broadcast
        limits = replace(limits, max_broadcast_positions=-1)
        monkeypatch.setattr(late_materialization, "MAX_BROADCAST_ROWS", -1)
    names = {f"flink_{api}_{kind}{more}.jsonl.gz" for more in ("", "_restarted", "_derived")}
    vectors = (vector for file in FILES if file.name in names for vector in conformance.read_vectors(file))
    windows = {"tumbling", "TUMBLE", "session", "SESSION", None}
    in_two = [
        cut_vector(vector, "2")
        for vector in vectors
        if vector["params"].get("window", vector["params"].get("tvf")) in windows
    ]

    assert in_two

    with tuned_for_tiny_queries(spark):
        assert not [result for result in conformance.check_cases(spark, in_two, limits) if not result.passed]


@pytest.mark.process
def test_conformance_wrong_vector_fails_and_names_rows(tmp_path, capsys):
    vector = next(v for v in VECTORS if v["name"] == "h_evict_at_t_plus_upper_minus1")
    wrong = {**vector, "expected": {**vector["expected"], "rows": vector["expected"]["rows"][1:]}}
    path = tmp_path / "wrong.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (VECTORS[0], wrong)))
    report = tmp_path / "report.json"
    assert main(["conformance", str(path), "--cuts", "2", "--output", str(report)]) == 1

    output = capsys.readouterr().out
    assert output.endswith("conformance: 1 passed, 1 failed\n")
    assert vector["name"] in output

    first_result, wrong_result = json.loads(report.read_text())
    assert first_result["passed"]
    assert not wrong_result["missing"]
    assert len(wrong_result["unexpected"]) == 1


@pytest.mark.parametrize("cuts", ["0", "x", "random:", "1,,2"])
def test_conformance_invalid_cut_exits_with_usage_error(cuts, capsys):
    assert main(["conformance", str(FILE), "--cuts", cuts]) == 2
    assert "--cuts" in capsys.readouterr().err
