"""The engines' recorded vectors, and random streams with what an oracle says of them, under cuts.

A Spark job costs seconds whatever its size. So Hypothesis first draws all cases of a dialect, and those and the
recorded vectors are lanes of the same few jobs. When a random one fails, Hypothesis looks for the smallest that does,
and prints it as a vector file.
"""

import contextlib
import json
import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis.errors import NoSuchExample

import tidemark_conformance as conformance
from tests.semantics.cuts import cut
from tests.semantics.strategies import VECTORS as DIALECTS
from tests.semantics.strategies import cases
from tests.semantics.streams import drawn_from
from tidemark.cli.app import main
from tidemark.execution import replay
from tidemark.joins.sql_interval import join as sql_interval
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
        "name": f"fails at {wrong}",
        "params": {"lower": -1, "upper": 1},
        "events": [ON_TIME, {**ON_TIME, "side": "R", "id": "r0", **wrong}],
        "expected": {"rows": [], "dropped": [], "error": "at event 1: an exception"},
    }
    for wrong in ({"key": None}, {"ts": None}, {"ts": -(2**63)})
]
"""On a null key or a row without a timestamp the engine's job ends, by flink.md; no recorded vector has one."""
SMALL = [vector for vector in VECTORS if not vector["name"].startswith("big")] + FAILING


@pytest.fixture(scope="module")
def replayed(spark):
    """Of a dialect, each case beside its verdict: vectors uncut and cut, slices of an event, and what was drawn."""

    @cache
    def of(dialect):
        files = [file for file in FILES if dialect_of(file) == dialect]
        vectors = [vector for file in files for vector in conformance.read_vectors(file)]
        asked = {
            "recorded": [[cut(vector, name) for name in ("1", "unevenly")] for vector in vectors],
            "each": [[cut(vector, "each")] for vector in SMALL] if FILE in files else [],
            "drawn": [drawn(dialect)] if dialect in DIALECTS else [],
        }
        kinds = {kind: [case for group in groups for case in group] for kind, groups in asked.items()}
        with tuned_for_tiny_queries(spark):
            found = iter(conformance.check(spark, [case for its in kinds.values() for case in its]))
        return {kind: [(case, next(found)) for case in its] for kind, its in kinds.items()}

    return of


def dialect_of(file):
    """The dialect whose random streams share jobs with a file's vectors; its own name where there are none."""
    name = file.name.split(".")[0].removeprefix("flink_")
    return max((dialect for dialect in DIALECTS if name.startswith(dialect)), key=len, default=name)


def drawn(dialect):
    found = drawn_from(cases(dialect), EXAMPLES)
    assert len(found) >= EXAMPLES
    return found


@pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param(file, vector["name"], id=f"{file.name.split('.')[0]}-{vector['name']}")
        for file in FILES
        for vector in conformance.read_vectors(file)
    ],
)
def test_vector_uncut_and_cut(replayed, file, name):
    found = [verdict for case, verdict in replayed(dialect_of(file))["recorded"] if case.vector["name"] == name]
    assert len(found) == 2
    for verdict in found:
        assert verdict.passed, verdict


def test_a_slice_per_event_in_one_job(replayed):
    found = [verdict for _, verdict in replayed(dialect_of(FILE))["each"]]
    assert len(found) == len(SMALL)
    assert not [verdict for verdict in found if not verdict.passed]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_engine_equals_oracle(spark, replayed, dialect):
    found = replayed(dialect)["drawn"]
    assert len(found) >= EXAMPLES
    failed = [case for case, verdict in found if not verdict.passed]
    with tuned_for_tiny_queries(spark):
        assert not failed, smallest(spark, dialect, failed)


def smallest(spark, dialect, failed):
    """What to say of failures: how many, and the smallest such case that a minute's search finds."""
    seed = min(failed, key=lambda case: len(json.dumps(case.vector)))
    limits = settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck), deadline=None)
    with contextlib.suppress(NoSuchExample):  # chance may not come upon it again
        seed = find(cases(dialect), lambda case: not conformance.check(spark, [case])[0].passed, settings=limits)
    [verdict] = conformance.check(spark, [seed])
    return f"{len(failed)} cases fail; {verdict}; as a vector file: {json.dumps(seed.vector)}"


@settings(max_examples=200, deadline=None)
@given(vector=DIALECTS["datastream_interval"])
def test_the_oracle_never_pairs_a_row_with_itself_or_twice(vector):
    pairs = [(row["left_id"], row["right_id"]) for row in vector["expected"]["rows"]]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize(
    ("api", "kind", "ordered", "few"),
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
def test_the_way_of_millions_of_rows_in_two_jobs(spark, monkeypatch, api, kind, ordered, few):
    # Rows are picked and kept otherwise, in order or told by their places and by steps; what the second job continues
    # is of those that the first has picked. Tumbling windows without sliding ones, for beside these they are told as
    # these are.
    monkeypatch.setattr(replay, "CACHED_ROWS", 0)
    monkeypatch.setattr(replay, "PICKED_SHARE", 1.0)
    monkeypatch.setattr(replay, "ORDERED_SHARE", 1.0 if ordered else -1.0)
    monkeypatch.setattr(replay, "RAISING_SHARE", -1.0 if ordered else 1.0)
    monkeypatch.setattr(replay, "STEPS_A_ROW", 1000)
    if not few:  # what is unlike most rows is too much to go to all tasks
        monkeypatch.setattr(replay, "FEW_PLACES", -1)
        monkeypatch.setattr(sql_interval, "FEW", -1)
    names = {f"flink_{api}_{kind}{more}.jsonl.gz" for more in ("", "_restarted")}
    vectors = (vector for file in FILES if file.name in names for vector in conformance.read_vectors(file))
    kinds = {"tumbling", "TUMBLE", "session", "SESSION", None}
    twice = [cut(one, "2") for one in vectors if one["params"].get("window", one["params"].get("tvf")) in kinds]
    assert twice
    with tuned_for_tiny_queries(spark):
        assert not [verdict for verdict in conformance.check(spark, twice) if not verdict.passed]


def test_a_wrong_vector_fails_and_names_the_rows(tmp_path, capsys):
    vector = next(v for v in VECTORS if v["name"] == "h_evict_at_t_plus_upper_minus1")
    wrong = {**vector, "expected": {**vector["expected"], "rows": vector["expected"]["rows"][1:]}}
    path = tmp_path / "wrong.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (VECTORS[0], wrong)))
    report = tmp_path / "report.json"
    assert main(["conformance", str(path), "--cuts", "2", "--json", str(report)]) == 1
    told = capsys.readouterr().out
    assert told.endswith("conformance: 1 passed, 1 failed\n")
    assert vector["name"] in told
    right, verdict = json.loads(report.read_text())
    assert right["passed"]
    assert not verdict["missing"]
    assert len(verdict["unexpected"]) == 1


@pytest.mark.parametrize("cuts", ["0", "x", "random:", "1,,2"])
def test_a_wrong_cut_is_the_users_mistake(cuts, capsys):
    assert main(["conformance", str(FILE), "--cuts", cuts]) == 2
    assert "--cuts" in capsys.readouterr().err
