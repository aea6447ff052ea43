"""Progress of long commands, on a terminal and without one."""

import time
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from tidemark.cli import progress
from tidemark.cli.progress import ProgressLines, _RunProgress, create_progress_bar, show_activity
from tidemark.timegrid.slices import Grid


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock by one that tests set."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_progress_lines_print_first_and_last_and_at_most_one_per_interval(clock):
    printed = []
    lines = ProgressLines(printed.append, lambda: f"now {clock.seconds:.0f}")

    with lines.printing(is_enabled=True):
        for clock.seconds in range(25):
            lines.tick()
            lines.offer(f"offered {clock.seconds}")

    assert printed == ["offered 0", "now 10", "now 20", "offered 24"]


def test_progress_lines_disabled_print_nothing(clock):
    printed = []

    with ProgressLines(printed.append, lambda: "now").printing(is_enabled=False) as lines:
        clock.seconds = 60.0
        lines.offer("offered")

    assert printed == []


def test_run_progress_describes_slices_rows_and_remaining_time(clock):
    plan = SimpleNamespace(slice_count=750, grid=Grid(0, 3_600_000_000))
    remaining_time = SimpleNamespace(
        start_job=lambda _: None, finish_job=lambda: None, describe=lambda: "about 3 min left"
    )
    run = _RunProgress(plan, remaining_time)

    run.start_step(range(2), "joining")
    clock.seconds = 20.0
    assert run.describe() == "1970-01-01T00:00Z: joining, 20 s; 0 of 750 slices, 0 rows read, about 3 min left"
    run.finish_job(SimpleNamespace(slices=range(2), rows=[{"left": {"read": 600}, "right": {"read": 634}}]))
    assert run.describe_done() == "2 of 750 slices, 1,234 rows read, about 3 min left"
    run.finish_job(SimpleNamespace(slices=range(749), rows=[]))
    assert run.describe_done() == "751 of 751 slices, 1,234 rows read", "a cascade grows while it runs"


def test_show_activity_without_terminal_prints_a_line_per_interval(monkeypatch):
    console = Console(file=StringIO(), width=80)
    monkeypatch.setattr(progress, "err", console)
    monkeypatch.setattr(progress, "LINE_INTERVAL_SECONDS", 0.5)

    with show_activity("checking files", lambda: "12 checked"):
        time.sleep(1.3)

    assert console.file.getvalue() == "checking files: 12 checked, 1 s\n"


def test_show_activity_on_a_terminal_shows_a_spinner_and_removes_it(monkeypatch):
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "err", console)

    with show_activity("comparing", lambda: "3 of 8 Spark tasks"):
        time.sleep(0.2)

    assert "comparing: 3 of 8 Spark tasks, 0 s" in console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_progress_bar_fits_the_terminal(monkeypatch, width):
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "err", console)
    remaining_time = SimpleNamespace(describe=lambda: "about 12 min left")
    columns = (progress.TextColumn("{task.fields[rows]:,} rows"), progress._TimeLeft(remaining_time))

    with create_progress_bar("slices", *columns) as progress_bar:
        progress_bar.add_task("2013-01-01T00:00Z: committing", total=750, completed=12, rows=1_234_567)

    output = console.file.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in output
    for text in ("2013-01-01T00:00Z: committing", "12/750 slices", "1,234,567 rows", "about 12 min left"):
        assert text in output
