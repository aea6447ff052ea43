"""Tests of results as shown on a terminal."""

from rich.console import Console

from tidemark.cli.render import render_comparison
from tidemark.cli.vacuum import render_vacuum
from tidemark.comparison import Comparison
from tidemark.comparison.result import Cause
from tidemark.delta.log_files import RemovedFiles
from tidemark.maintenance.recovery_horizon import RecoveryHorizon
from tidemark.maintenance.vacuum import VacuumResult


def test_render_comparison_example_has_keys_times_and_changed_columns():
    row = {"left_k": "a", "left_happened": "10:00", "left_gate": 7, "left_v": 1.5, "_left": 42, "_number": 1}
    examples = {
        "changed value": {"_changed": ["left_v"], "_detail": "left_v"},
        "unexplained": {"_input": "left", "_lateness_ms": 720_000, "_detail": "and yet in the stream"},
    }
    causes = tuple(Cause(name, "batch", 1, ({**row, **columns},)) for name, columns in examples.items())
    leading_columns = ("left_k", "left_happened")
    comparison = Comparison("p", "t", None, "", "", 9, causes, (), (), 0.1, leading_columns=leading_columns)

    output = print_wide(render_comparison(comparison))

    assert "1: left_k a, left_happened 10:00, left_v 1.5: left_v" in output
    assert (
        "1: left_k a, left_happened 10:00: left row 12 min 00 s behind the watermark, and yet in the stream" in output
    )
    assert "gate" not in output


def print_wide(renderable):
    """Print to a console of 200 columns; return the text."""
    console = Console(width=200, record=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def create_vacuum_result(recovery_horizon):
    """Create the result of a dry run that would remove files of three kinds."""
    return VacuumResult(
        "p",
        uncommitted_files=RemovedFiles(("a",), 5),
        replaced_files=RemovedFiles(("b", "c"), 2000),
        log_files=RemovedFiles(),
        data_docs=RemovedFiles(),
        checkpoints=RemovedFiles(("checkpoint/d",), 3000),
        recent_files=1,
        recovery_horizon=recovery_horizon,
        dry_run=True,
    )


def test_render_vacuum_lists_kinds_of_files_and_recovery_horizon():
    horizon = RecoveryHorizon({"emissions": 12, "late": 0}, "2024-01-09", "2024-01-01", "2024-01-02", ("left",))

    output = print_wide(render_vacuum(create_vacuum_result(horizon)))

    lines = [" ".join(line.split()) for line in output.replace("│", " ").splitlines()]
    assert {"never committed 1 5 bytes", "superseded 2 2.0 kB"} <= set(lines)
    assert not any(line.startswith("logs") for line in lines)
    assert lines[-5:] == [
        "1 other file may be of a run that goes on",
        "states that expire: 1 file (3.0 kB) of the checkpoint, superseded from then on",
        "oldest versions that can then be read: emissions 12, late 0",
        "reprocess can begin with any slice from 2024-01-09 on, and for those before it with 2024-01-01",
        "checkpoint verify replays from 2024-01-02 on, as far as left can be read",
    ]


def test_render_vacuum_without_replayable_slice_explains_why():
    horizon = RecoveryHorizon({}, None, "2024-01-01", None, ())

    output = print_wide(render_vacuum(create_vacuum_result(horizon)))

    assert "reprocess of any slice begins with 2024-01-01" in output
    assert "checkpoint verify can replay no slice: versions of the inputs that they have read are gone" in output
