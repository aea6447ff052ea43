"""Tests of the benchmark's arithmetic, cases and page; nothing is measured."""

import sys
from dataclasses import asdict, replace

import pytest

from benchmarks import __main__ as command
from benchmarks.cases import create_cases
from benchmarks.data import PARTNERS_PER_ROW, Shape
from benchmarks.measure import summarize_shuffles
from benchmarks.page import Constants, draw_charts, list_goals, render_page
from benchmarks.peers import PEERS
from benchmarks.results import Results, Run
from benchmarks.table import create_table
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
ENVIRONMENT = {
    "at": "2024-01-01T00:00:00+00:00",
    "commit": "abc",
    "cores": 2,
    "processor": "one",
    "memory": 8e9,
    "load": 0.1,
}
VERSIONS = {"pyspark": "4", "delta-spark": "4", "apache-flink": "2", "polars": "2"}


@pytest.fixture
def results():
    cases = create_cases(100)
    content = {
        name: {"description": cases[name].description, "shape": asdict(cases[name].shape)}
        for name in ("base", "doubled")
    }
    return Results(
        ENVIRONMENT | VERSIONS, 100, 2, 600, content, {name: peer.description for name, peer in PEERS.items()}, RUNS
    )


def test_create_cases_each_case_is_a_valid_pipeline():
    for case in create_cases(1000).values():
        assert Pipeline.model_validate({**case.pipeline_settings, "output": "out"}).join.type == case.join_type
        assert set(case.peers) <= PEERS.keys()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, (-300_000, 600_000)), ({"rows_per_key": 160}, (-150_000, 300_000)), ({"hot_share": 0.5}, (-24, 48))],
)
def test_interval_ms_any_shape_gives_equal_pairs(changes, expected):
    shape = replace(Shape(4_000_000), **changes)
    low, high = shape.interval_ms
    assert (low, high) == expected
    hot, background = shape.hot_share**2 * shape.rows, (1 - shape.hot_share) ** 2 * shape.rows / shape.keys
    assert (hot + background) * (high - low) / (shape.span.total_seconds() * 1000) == pytest.approx(
        PARTNERS_PER_ROW, rel=1e-3
    )


def test_main_list_prints_cases_and_peers(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--list"])
    command.main()
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in [*create_cases(1), *PEERS])


def test_main_unknown_case_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--also", "bose"])
    with pytest.raises(SystemExit):
        command.main()
    assert "there is no case bose. --list shows" in capsys.readouterr().err


def test_compute_ratio_compares_runs_of_the_same_round(results):
    assert results.compute_ratio(("base", "tidemark"), ("base", "binned")) == pytest.approx(1.5)  # of 2 and 1
    assert results.compute_ratio(("base", "flink batch"), ("base", "tidemark")) == pytest.approx(3)
    assert results.compute_ratio(("base", "as written"), ("base", "tidemark")) is None
    assert {goal.description: goal.is_reached for goal in list_goals(results)} | {
        "rows per key doubled at constant pairs, to base": True,
        "flink batch, to Tidemark": False,
        "as written, to Tidemark": True,  # stopped after 600 s
        "Tidemark to binned": True,
        "one worker to two": None,
    } == {goal.description: goal.is_reached for goal in list_goals(results)}


def test_summarize_shuffles_skew_ignores_small_stages():
    def task(stage, read, written=0):
        return {
            "Stage ID": stage,
            "Task Metrics": {
                "Shuffle Read Metrics": {"Remote Bytes Read": read, "Local Bytes Read": 0},
                "Shuffle Write Metrics": {"Shuffle Bytes Written": written},
            },
        }

    tasks = [(0, 0, 100), (1, 10), (1, 10), (1, 40), *[(1, 0)] * 4, (2, 1), (2, 7)]
    events = [*(task(*values) for values in tasks), {"Stage ID": 3}]
    assert summarize_shuffles([]) == {"shuffled": 0, "spilled": 0}
    assert summarize_shuffles(events) == {"shuffled": 100, "spilled": 0, "skew": 4.0}


def test_results_render_as_page_chart_and_table(results, tmp_path):
    text = render_page(results, "full")
    assert "| as written | did not finish in 600 s |" in text
    assert "| as written, to Tidemark | more than 24.00 | at least 2.5 | reached |" in text
    assert "RuntimeError: out of memory" in text
    assert "- tidemark: Tidemark: watermarks" in text
    assert "| 25.0 | 1.50 | 30.0 | 2.0 GB | 80 | 3 |" in text
    assert Constants.from_results(results).shuffled == 45
    assert [column.header for column in create_table(results).columns][:3] == ["case", "peer", "seconds"]

    draw_charts(results).save(tmp_path / "chart.svg")
    assert "Tidemark's seconds, times those of binned" in (tmp_path / "chart.svg").read_text()


def test_find_disagreements_names_different_row_counts(results):
    assert results.find_disagreements() == []
    other = Run("base", "integers", 0, {"seconds": 1.0, "rows": 82})
    assert replace(results, runs=[*RUNS, other]).find_disagreements() == [
        "base: binned 83 rows, integers 82 rows, flink batch 83 rows"
    ]


def test_find_disagreements_compares_all_runs_of_a_peer(results):
    first, *others = RUNS
    runs = [replace(first, measurements=first.measurements | {"rows": 1_082}), *others]
    assert replace(results, runs=runs).find_disagreements() == ["base: binned 83 or 1,082 rows, flink batch 83 rows"]


def test_results_save_and_load_are_inverse(results, monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.results.FOLDER", tmp_path)
    results.save("saved")
    assert Results.load("saved") == results


def test_main_keep_replaces_results_of_measured_cases(results, monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.results.FOLDER", tmp_path)
    results.save("saved")
    new_run = Run("doubled", "tidemark", 0, {"seconds": 22.0, **OURS, **STATE})
    monkeypatch.setattr(command, "run_in_turns", lambda *arguments: arguments[-1](new_run))
    options = ["--rows", "100", "--case", "doubled", "--peer", "tidemark", "--output", "saved", "--keep"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *options])
    command.main()
    loaded = Results.load("saved")

    assert loaded.runs == [*(run for run in RUNS if run.case == "base"), new_run]
    assert (list(loaded.cases), list(loaded.peers)) == (
        ["base", "doubled"],
        [name for name in PEERS if any(run.peer == name for run in RUNS)],
    )
    assert loaded.environment["commit"].startswith("abc, ")

    monkeypatch.setattr(sys, "argv", ["benchmarks", "--rows", "200", *options[2:]])
    with pytest.raises(SystemExit):
        command.main()
