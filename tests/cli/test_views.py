"""What the command shows of results on a terminal."""

from rich.console import Console

from tidemark.cli.views import comparison_view
from tidemark.comparison import Comparison
from tidemark.comparison.compare import Cause


def test_an_example_is_its_keys_event_times_and_the_columns_that_differ():
    row = {"left_k": "a", "left_happened": "10:00", "left_gate": 7, "left_v": 1.5, "_left": 42, "_number": 1}
    examples = {
        "changed value": {"_changed": ["left_v"], "_detail": "left_v"},
        "unexplained": {"_input": "left", "_behind_ms": 720_000, "_detail": "and yet in the stream"},
    }
    causes = tuple(Cause(name, "batch", 1, ({**row, **more},)) for name, more in examples.items())
    told = Comparison("p", "t", None, "", "", 9, causes, (), (), 0.1, leading=("left_k", "left_happened"))
    console = Console(width=200, record=True)
    with console.capture() as shown:
        console.print(comparison_view(told))
    assert "1: left_k a, left_happened 10:00, left_v 1.5: left_v" in shown.get()
    assert "1: left_k a, left_happened 10:00: left row 12 min 00 s behind, and yet in the stream" in shown.get()
    assert "gate" not in shown.get()
