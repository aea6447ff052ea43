"""The quality gate, where several judge at the same time."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from tidemark.delta.lake import PipelineTables
from tidemark.execution.quality import DERIVED, judge

SOUND = pd.DataFrame(0, index=range(3), columns=list(DERIVED))
"""Facts of three slices that have nothing wrong."""


@pytest.fixture
def restless_threads():
    """Threads that take turns a thousand times as often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 1000)
    yield
    sys.setswitchinterval(usual)


def judged(root, worker):
    """Runs that a pipeline's results are kept of, when a worker has judged three."""
    tables = PipelineTables(str(root))
    for number in range(3):
        verdict = judge(SOUND, None, SimpleNamespace(quality=[]), tables, f"{worker}{number}")
        assert verdict.outcome == "passed"
    return {path.parts[-3] for path in Path(tables.quality).rglob("gx/uncommitted/validations/**/*.json")}


def test_threads_judge_each_its_own_pipeline(tmp_path, restless_threads):
    names = ["bids", "orders", "rides"]
    with ThreadPoolExecutor(len(names)) as pool:
        kept = list(pool.map(judged, [tmp_path / name for name in names], names))
    assert kept == [{f"{name}{number}" for number in range(3)} for name in names]


def test_processes_judge_one_pipeline_at_the_same_time(tmp_path):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        kept = set.union(*pool.map(judged, [tmp_path] * 4, "abcd"))
    assert kept == {f"{worker}{number}" for worker in "abcd" for number in range(3)}
