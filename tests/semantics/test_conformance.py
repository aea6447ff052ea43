"""Recorded vectors, and random streams with the expected results of an oracle, replayed under cuts.

A Spark job takes seconds, whatever its size. So Hypothesis first draws all cases of a dialect, and these and the
recorded vectors are lanes of the same few jobs. If a random case fails, Hypothesis searches the smallest that does, and
prints it as a vector file.
"""

import contextlib
import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis.errors import NoSuchExample

import tidemark_conformance as conformance
from tests.semantics.cuts import cut_vector
from tests.semantics.strategies import VECTORS as DIALECTS
from tests.semantics.strategies import cases
from tests.semantics.streams import draw_examples
from tidemark.cli.app import main
from tidemark.joins.sql_interval import join as sql_interval
from tidemark.planning.replay_strategy import ReplayLimits
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // len(DIALECTS)
FOLDER = Path(__file__).parent / "vectors"
FILES = sorted(FOLDER.glob("*.jsonl.gz"))
FILE = FOLDER / "flink_datastream_interval.jsonl.gz"
VECTORS = list(conformance.read_vectors(FILE))
ON_TIME = {"side": "L", "key": "a", "ts": 5, "id": "l0"}
FAILING = [
    {
        **VECTORS[0],
        "name": f"fails at {invalid}",
        "params": {"lower": -1, "upper": 1},
        "events": [ON_TIME, {**ON_TIME, "side": "R", "id": "r0", **invalid}],
        "expected": {"rows": [], "dropped": [], "error": "at event 1: an exception"},
    }
    for invalid in ({"key": None}, {"ts": None}, {"ts": -(2**63)})
]
"""A null key or a row without a timestamp fails the engine's job (flink.md). No recorded vector has one."""
SMALL_VECTORS = [vector for vector in VECTORS if not vector["name"].startswith("big")] + FAILING


@pytest.fixture(scope="module")
def replayed(spark):
    """Return a function that replays all cases of a dialect, and returns each case and its result by kind."""

    @cache
    def replay_dialect(dialect):
        files = [file for file in FILES if find_dialect(file) == dialect]
        vectors = [vector for file in files for vector in conformance.read_vectors(file)]
        groups = {
            "recorded": [[cut_vector(vector, name) for name in ("1", "unevenly")] for vector in vectors],
            "each": [[cut_vector(vector, "each")] for vector in SMALL_VECTORS] if FILE in files else [],
            "drawn": [draw_cases(dialect)] if dialect in DIALECTS else [],
        }
        by_kind = {kind: [case for group in lists for case in group] for kind, lists in groups.items()}
        with tuned_for_tiny_queries(spark):
            results = iter(conformance.check_cases(spark, [case for cases in by_kind.values() for case in cases]))
        return {kind: [(case, next(results)) for case in cases] for kind, cases in by_kind.items()}

    return replay_dialect


def find_dialect(file):
    """Return the dialect whose random streams share jobs with a file's vectors, or else the file's own name."""
    name = file.name.split(".")[0].removeprefix("flink_")
    return max((dialect for dialect in DIALECTS if name.startswith(dialect)), key=len, default=name)


def draw_cases(dialect):
    drawn = draw_examples(cases(dialect), EXAMPLES)
    assert len(drawn) >= EXAMPLES
    return drawn


@pytest.mark.promise("A replay of recorded rows, uncut and cut, has the rows of the real engine.")
@pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param(file, vector["name"], id=f"{file.name.split('.')[0]}-{vector['name']}")
        for file in FILES
        for vector in conformance.read_vectors(file)
    ],
)
def test_replay_recorded_vector_uncut_and_cut_matches_engine(replayed, file, name):
    results = [result for case, result in replayed(find_dialect(file))["recorded"] if case.vector["name"] == name]
    assert len(results) == 2
    for result in results:
        assert result.passed, result


def test_replay_slice_per_event_in_single_job_matches_engine(replayed):
    results = [result for _, result in replayed(find_dialect(FILE))["each"]]
    assert len(results) == len(SMALL_VECTORS)
    assert not [result for result in results if not result.passed]


@pytest.mark.promise("A replay of random streams, cut at random, has the rows of the dialect's oracle.")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_replay_random_streams_match_oracle(spark, replayed, dialect):
    results = replayed(dialect)["drawn"]
    assert len(results) >= EXAMPLES
    failed = [case for case, result in results if not result.passed]
    with tuned_for_tiny_queries(spark):
        assert not failed, describe_failures(spark, dialect, failed)


def describe_failures(spark, dialect, failed):
    """Return the number of failures, and the smallest failing case that a search of a minute finds."""
    smallest = min(failed, key=lambda case: len(json.dumps(case.vector)))
    limits = settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck), deadline=None)
    with contextlib.suppress(NoSuchExample):  # the random search may not reach a failure
        smallest = find(
            cases(dialect), lambda case: not conformance.check_cases(spark, [case])[0].passed, settings=limits
        )
    [result] = conformance.check_cases(spark, [smallest])
    return f"{len(failed)} cases fail; {result}; as a vector file: {json.dumps(smallest.vector)}"


@settings(max_examples=200, deadline=None)
@given(vector=DIALECTS["datastream_interval"])
def test_oracle_random_stream_emits_each_pair_once(vector):
    pairs = [(row["left_id"], row["right_id"]) for row in vector["expected"]["rows"]]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize(
    ("api", "kind", "is_ordered", "is_broadcast"),
    [
        ("datastream", "interval", True, True),
        ("datastream", "interval", False, True),
        ("datastream", "window", False, True),
        ("sql", "interval", False, True),
        ("sql", "window", True, True),
        pytest.param("datastream", "interval", False, False, marks=pytest.mark.slow),
        pytest.param("sql", "interval", False, False, marks=pytest.mark.slow),
    ],
)
def test_replay_large_job_strategies_in_two_jobs_match_engine(spark, monkeypatch, api, kind, is_ordered, is_broadcast):
    # Large jobs select and materialize rows differently: in order, by late positions or by watermark increments. The
    # second job continues from the rows that the first one selected. Tumbling windows run without sliding ones, which
    # would make both use the code of sliding windows.
    limits = ReplayLimits(
        max_cached_rows=0,
        max_retained_share=1.0,
        max_ordered_share=1.0 if is_ordered else -1.0,
        max_increment_share=-1.0 if is_ordered else 1.0,
        max_increments_per_row=1000,
    )
    if not is_broadcast:  # exceptional rows are too many to be broadcast
        limits = replace(limits, max_broadcast_positions=-1)
        monkeypatch.setattr(sql_interval, "MAX_BROADCAST_ROWS", -1)
    names = {f"flink_{api}_{kind}{more}.jsonl.gz" for more in ("", "_restarted")}
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
