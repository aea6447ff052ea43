import json
from pathlib import Path

import pytest

from tidemark import conformance
from tidemark.cli import main
from tidemark.session import tuned_for_tiny_queries

FILE = Path(__file__).parent / "vectors" / "flink_datastream_interval.jsonl.gz"
VECTORS = list(conformance.read_vectors(FILE))


@pytest.fixture(scope="module")
def verdicts(spark):
    """Every vector uncut, with a slice per event, and with one random cut."""
    cases = [
        conformance.Case(vector, cut)
        for vector in VECTORS
        for cut in conformance.parse_cuts(
            "1,random:1" if vector["name"].startswith("big") else "1,each,random:1", vector
        )
    ]
    with tuned_for_tiny_queries(spark):
        return conformance.check(spark, cases)


@pytest.mark.parametrize("name", [vector["name"] for vector in VECTORS])
def test_vector_uncut_and_cut(verdicts, name):
    found = [verdict for verdict in verdicts if verdict.vector == name]
    assert len(found) >= 2
    for verdict in found:
        assert verdict.passed, verdict


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
