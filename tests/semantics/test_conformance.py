import json
from pathlib import Path

import pytest

from tidemark import conformance
from tidemark.cli import main

FILE = Path(__file__).parent / "vectors" / "flink_datastream_interval.jsonl.gz"
VECTORS = list(conformance.read_vectors(FILE))


@pytest.fixture(scope="module", autouse=True)
def small_queries(spark):
    with conformance.tuned_for_tiny_queries(spark):
        yield


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_vector_uncut_and_with_one_random_cut(spark, vector):
    cuts = "each,random:1" if vector["name"].startswith("big") else "1,random:1"
    for cut in conformance.parse_cuts(cuts, vector):
        verdict = conformance.check(spark, vector, cut)
        assert verdict.passed, verdict


def test_a_wrong_vector_fails_and_names_the_rows(tmp_path, capsys):
    vector = next(v for v in VECTORS if v["name"] == "h_evict_at_t_plus_upper_minus1")
    wrong = {**vector, "expected": {**vector["expected"], "rows": vector["expected"]["rows"][1:]}}
    path = tmp_path / "wrong.jsonl"
    path.write_text(json.dumps(wrong) + "\n")
    report = tmp_path / "report.json"
    assert main(["conformance", str(path), "--cuts", "2", "--json", str(report)]) == 1
    told = capsys.readouterr().out
    assert told.endswith("conformance: 0 passed, 1 failed\n")
    assert vector["name"] in told
    [verdict] = json.loads(report.read_text())
    assert not verdict["missing"]
    assert len(verdict["unexpected"]) == 1


@pytest.mark.parametrize("cuts", ["0", "x", "random:", "1,,2"])
def test_a_wrong_cut_is_the_users_mistake(cuts, capsys):
    assert main(["conformance", str(FILE), "--cuts", cuts]) == 2
    assert "--cuts" in capsys.readouterr().err
