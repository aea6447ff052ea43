"""Replay the recorded vectors and random streams of each dialect once per test file.

A Spark job takes seconds, whatever its size. So Hypothesis first draws all cases of a dialect, and these and the
recorded vectors are lanes of the same few jobs. If a random case fails, Hypothesis searches the smallest that does, and
prints it as a vector file.
"""

import contextlib
import json
import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, find, settings
from hypothesis.errors import NoSuchExample

import tidemark_conformance as conformance
from tests.semantics.chain_cases import list_vectors_of_late_firings, list_vectors_of_late_lookups
from tests.semantics.cuts import cut_vector
from tests.semantics.strategies import VECTORS as DIALECTS
from tests.semantics.strategies import cases
from tests.semantics.streams import draw_examples
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // len(DIALECTS)
FOLDER = Path(__file__).parent / "vectors"
FILES = sorted(FOLDER.glob("*.jsonl.gz"))
DATASTREAM_FILES = [file for file in FILES if file.name.startswith("flink_datastream")]
CHAIN_FILES = [file for file in FILES if file.name.startswith("flink_chain")]
FILE = FOLDER / "flink_datastream_interval.jsonl.gz"
VECTORS = list(conformance.read_vectors(FILE))
ON_TIME = {"side": "L", "key": "a", "ts": 5, "id": "l0"}
RECORDED_ROWS = pytest.mark.promise("A replay of recorded rows, uncut and cut, has the rows of the real engine.")
RANDOM_STREAMS = pytest.mark.promise("A replay of random streams, cut at random, has the rows of the dialect's oracle.")
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


def create_replay(spark):
    """Return a function that replays all cases of a dialect, and returns each case and its result by kind."""

    @cache
    def replay_dialect(dialect):
        files = [file for file in FILES if find_dialect(file) == dialect]
        vectors = [vector for file in files for vector in conformance.read_vectors(file)]
        ordered = [*list_vectors_of_late_firings(), *list_vectors_of_late_lookups()] if dialect == "chain" else []
        groups = {
            "recorded": [[cut_vector(vector, name) for name in ("1", "unevenly")] for vector in vectors],
            "each": [[cut_vector(vector, "each")] for vector in SMALL_VECTORS] if FILE in files else [],
            "drawn": [draw_cases(dialect)] if dialect in DIALECTS else [],
            "ordered": [[cut_vector(vector, "each")] for vector in ordered],
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


def list_recorded(files):
    """Return the recorded vectors of files, as parameters."""
    return [
        pytest.param(file, vector["name"], id=f"{file.name.split('.')[0]}-{vector['name']}")
        for file in files
        for vector in conformance.read_vectors(file)
    ]


def assert_recorded_vector_passes(replayed, file, name):
    results = [result for case, result in replayed(find_dialect(file))["recorded"] if case.vector["name"] == name]
    assert len(results) == 2
    for result in results:
        assert result.passed, result


def assert_random_streams_pass(spark, replayed, dialect):
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
