import json
from functools import cache
from pathlib import Path

import pytest

from tidemark import conformance
from tidemark.cli.app import main
from tidemark.execution import replay
from tidemark.spark.tuning import tuned_for_tiny_queries

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


@pytest.fixture(scope="module")
def verdicts(spark):
    """Of a file, every vector uncut and with one random cut, by its name."""

    @cache
    def of(file):
        vectors = list(conformance.read_vectors(file))
        cases = [conformance.Case(v, cut) for v in vectors for cut in conformance.parse_cuts("1,random:1", v)]
        with tuned_for_tiny_queries(spark):
            found = conformance.check(spark, cases)
        return {vector["name"]: [one for one in found if one.vector == vector["name"]] for vector in vectors}

    return of


@pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param(file, vector["name"], id=f"{file.name.split('.')[0]}-{vector['name']}")
        for file in FILES
        for vector in conformance.read_vectors(file)
    ],
)
def test_vector_uncut_and_cut(verdicts, file, name):
    found = verdicts(file)[name]
    assert len(found) == 2
    for verdict in found:
        assert verdict.passed, verdict


def test_a_slice_per_event_in_one_job(spark):
    vectors = [vector for vector in VECTORS if not vector["name"].startswith("big")]
    vectors += FAILING
    cases = [conformance.Case(vector, cut) for vector in vectors for cut in conformance.parse_cuts("each", vector)]
    with tuned_for_tiny_queries(spark):
        assert not [verdict for verdict in conformance.check(spark, cases) if not verdict.passed]


def test_state_of_picked_rows_in_two_jobs(spark, monkeypatch):
    # The way of millions of rows: what the second job continues is of those that the first has picked.
    monkeypatch.setattr(replay, "CACHED_ROWS", 0)
    monkeypatch.setattr(replay, "PICKED_SHARE", 1.0)
    cases = [conformance.Case(vector, cut) for vector in VECTORS for cut in conformance.parse_cuts("2", vector)]
    with tuned_for_tiny_queries(spark):
        assert not [verdict for verdict in conformance.check(spark, cases) if not verdict.passed]


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
