"""What the command shows of results on a terminal."""

from rich.console import Console

from tidemark.cli.render import render_comparison
from tidemark.cli.vacuum import render_vacuum
from tidemark.comparison import Comparison
from tidemark.comparison.result import Cause
from tidemark.delta.log_files import RemovedFiles
from tidemark.maintenance.recovery_horizon import RecoveryHorizon
from tidemark.maintenance.vacuum import VacuumResult


def test_an_example_is_its_keys_event_times_and_the_columns_that_differ():
    row = {"left_k": "a", "left_happened": "10:00", "left_gate": 7, "left_v": 1.5, "_left": 42, "_number": 1}
    examples = {
        "changed value": {"_changed": ["left_v"], "_detail": "left_v"},
        "unexplained": {"_input": "left", "_lateness_ms": 720_000, "_detail": "and yet in the stream"},
    }
    causes = tuple(Cause(name, "batch", 1, ({**row, **more},)) for name, more in examples.items())
    told = Comparison("p", "t", None, "", "", 9, causes, (), (), 0.1, leading_columns=("left_k", "left_happened"))
    console = Console(width=200, record=True)
    with console.capture() as shown:
        console.print(render_comparison(told))
    assert "1: left_k a, left_happened 10:00, left_v 1.5: left_v" in shown.get()
    assert "1: left_k a, left_happened 10:00: left row 12 min 00 s behind, and yet in the stream" in shown.get()
    assert "gate" not in shown.get()


def test_what_goes_is_told_kind_by_kind_and_how_far_back_one_can_go_then():
    def told(reach):
        kinds = {
            "uncommitted_files": RemovedFiles(("a",), 5),
            "replaced_files": RemovedFiles(("b", "c"), 2000),
            "log_files": RemovedFiles(),
        }
        states = RemovedFiles(("checkpoint/d",), 3000)
        found = VacuumResult(
            "p",
            **kinds,
            data_docs=RemovedFiles(),
            checkpoints=states,
            recent_files=1,
            recovery_horizon=reach,
            dry_run=True,
        )
        console = Console(width=200, record=True)
        with console.capture() as shown:
            console.print(render_vacuum(found))
        return shown.get()

    shown = told(RecoveryHorizon({"emissions": 12, "late": 0}, "2024-01-09", "2024-01-01", "2024-01-02", ("left",)))
    lines = [" ".join(line.split()) for line in shown.replace("│", " ").splitlines()]
    assert {"never committed 1 5 bytes", "superseded 2 2.0 kB"} <= set(lines)
    assert not any(line.startswith("logs") for line in lines)
    assert lines[-5:] == [
        "1 other file may be of a run that goes on",
        "states that expire: 1 file (3.0 kB) of the checkpoint, superseded from then on",
        "oldest versions that can then be read: emissions 12, late 0",
        "reprocess can begin with any slice from 2024-01-09 on, and for those before it with 2024-01-01",
        "checkpoint verify replays from 2024-01-02 on, as far as left can be read",
    ]
    shown = told(RecoveryHorizon({}, None, "2024-01-01", None, ()))
    assert "reprocess of any slice begins with 2024-01-01" in shown
    assert "checkpoint verify can replay no slice: versions of the inputs that they have read are gone" in shown
