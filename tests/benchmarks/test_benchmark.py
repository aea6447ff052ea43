"""The benchmark's arithmetic, its list of cases, and the page that is made of its results; nothing is measured here."""

import sys
from dataclasses import asdict, replace

import pytest

from benchmarks import __main__ as command
from benchmarks.cases import cases
from benchmarks.data import PARTNERS, Shape
from benchmarks.measure import shuffles
from benchmarks.page import Constants, drawing, goals, page
from benchmarks.peers import PEERS
from benchmarks.results import Results, Run
from benchmarks.table import table
from tidemark.config import Pipeline

OURS = {"rows": 80, "late": 3, "shuffled": 9_000.0, "skew": 1.5, "memory": 2e9, "cpu_seconds": 30.0, "slices": 24}
STATE = {"state_rows": 5, "state_bytes": 400.0, "ledger_bytes": 70.0}
RUNS = [
    Run("base", "binned", 0, {"seconds": 10.0, "rows": 83, "cpu_seconds": 12.0, "memory": 1e9}),
    Run("base", "tidemark", 0, {"seconds": 20.0, **OURS, **STATE}),
    Run("base", "as written", 0, {}),
    Run("base", "polars", 0, {}, "RuntimeError: out of memory"),
    Run("base", "flink batch", 0, {"seconds": 60.0, "rows": 83, "cpu_seconds": 90.0, "memory": 1e9}),
    Run("base", "binned", 1, {"seconds": 30.0, "rows": 83, "cpu_seconds": 12.0, "memory": 1e9}),
    Run("base", "tidemark", 1, {"seconds": 30.0, **OURS, **STATE}),
    Run("doubled", "tidemark", 1, {"seconds": 33.0, **OURS, **STATE}),
]
FACTS = {"at": "2024-01-01T00:00:00+00:00", "commit": "abc", "cores": 2, "processor": "one", "memory": 8e9, "load": 0.1}
VERSIONS = {"pyspark": "4", "delta-spark": "4", "apache-flink": "2", "polars": "2"}


@pytest.fixture
def results():
    known = cases(100)
    kept = {name: {"told": known[name].told, "shape": asdict(known[name].shape)} for name in ("base", "doubled")}
    return Results(FACTS | VERSIONS, 100, 2, 600, kept, {name: peer.told for name, peer in PEERS.items()}, RUNS)


def test_every_case_is_a_pipeline_with_known_peers():
    for case in cases(1000).values():
        assert Pipeline.model_validate({**case.pipeline, "output": "out"}).join.type == case.how
        assert set(case.peers) <= PEERS.keys()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, (-300_000, 600_000)), ({"rows_per_key": 160}, (-150_000, 300_000)), ({"hot_share": 0.5}, (-24, 48))],
)
def test_an_interval_keeps_the_number_of_pairs(changes, expected):
    shape = replace(Shape(4_000_000), **changes)
    low, high = shape.interval_ms
    assert (low, high) == expected
    hot, others = shape.hot_share**2 * shape.rows, (1 - shape.hot_share) ** 2 * shape.rows / shape.keys
    assert (hot + others) * (high - low) / (shape.span.total_seconds() * 1000) == pytest.approx(PARTNERS, rel=1e-3)


def test_the_command_lists_cases_and_peers(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--list"])
    command.main()
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in [*cases(1), *PEERS])


def test_an_unknown_case_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--also", "bose"])
    with pytest.raises(SystemExit):
        command.main()
    assert "there is no case bose; --list shows" in capsys.readouterr().err


def test_ratios_are_of_the_same_round(results):
    assert results.ratio(("base", "tidemark"), ("base", "binned")) == pytest.approx(1.5)  # of 2 and 1
    assert results.ratio(("base", "flink batch"), ("base", "tidemark")) == pytest.approx(3)
    assert results.ratio(("base", "as written"), ("base", "tidemark")) is None
    assert {goal.told: goal.reached for goal in goals(results)} | {
        "rows per key doubled at constant pairs, to base": True,
        "flink batch, to Tidemark": False,
        "as written, to Tidemark": True,  # it was ended after 600 s
        "Tidemark to binned": True,
        "one worker to two": None,
    } == {goal.told: goal.reached for goal in goals(results)}


def test_skew_is_of_stages_that_read_much():
    def task(stage, read, written=0):
        return {
            "Stage ID": stage,
            "Task Metrics": {
                "Shuffle Read Metrics": {"Remote Bytes Read": read, "Local Bytes Read": 0},
                "Shuffle Write Metrics": {"Shuffle Bytes Written": written},
            },
        }

    tasks = [(0, 0, 100), (1, 10), (1, 10), (1, 40), *[(1, 0)] * 4, (2, 1), (2, 7)]
    ended = [*(task(*one) for one in tasks), {"Stage ID": 3}]
    assert shuffles([]) == {"shuffled": 0, "spilled": 0}
    assert shuffles(ended) == {"shuffled": 100, "spilled": 0, "skew": 4.0}


def test_results_become_a_page_a_drawing_and_a_table(results, tmp_path):
    text = page(results, "full")
    assert "with INTERVALs | did not finish in 600 s |" in text
    assert "| as written, to Tidemark | more than 24.00 | at least 2.5 | reached |" in text
    assert "RuntimeError: out of memory" in text
    assert "| tidemark | Tidemark: watermarks" in text
    assert "| 25.0 | 1.50 | 30.0 | 2.0 GB | 80 | 3 |" in text
    assert Constants.of(results).shuffled == 45
    assert [column.header for column in table(results).columns][:3] == ["case", "peer", "seconds"]
    drawing(results).save(tmp_path / "one.svg")
    assert "Tidemark's seconds, times those of binned" in (tmp_path / "one.svg").read_text()


def test_exact_peers_have_to_agree(results):
    assert results.disagreements() == []
    other = Run("base", "integers", 0, {"seconds": 1.0, "rows": 82})
    assert replace(results, runs=[*RUNS, other]).disagreements() == [
        "base: binned 83 rows, integers 82 rows, flink batch 83 rows"
    ]


def test_results_are_kept(results, monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.results.FOLDER", tmp_path)
    results.save("one")
    assert Results.load("one") == results


def test_what_is_measured_anew_takes_the_place_of_what_was(results, monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.results.FOLDER", tmp_path)
    results.save("one")
    anew = Run("doubled", "tidemark", 0, {"seconds": 22.0, **OURS, **STATE})
    monkeypatch.setattr(command, "run_in_turns", lambda *given: given[-1](anew))
    given = ["--rows", "100", "--case", "doubled", "--peer", "tidemark", "--into", "one", "--keep"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *given])
    command.main()
    found = Results.load("one")
    assert found.runs == [*(run for run in RUNS if run.case == "base"), anew]
    assert (list(found.cases), list(found.peers)) == (
        ["base", "doubled"],
        [name for name in PEERS if any(run.peer == name for run in RUNS)],
    )
    assert found.environment["commit"].startswith("abc, ")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--rows", "200", *given[2:]])
    with pytest.raises(SystemExit):
        command.main()
