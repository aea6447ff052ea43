"""Create data of invented comparisons, to render reports of."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tidemark.comparison import CAUSES, Comparison
from tidemark.comparison.cause_descriptions import REMEDIES
from tidemark.comparison.row_history import RowHistory
from tidemark.comparison.what_if import Outcome, WhatIf
from tidemark.config.types import format_duration, format_instant
from tidemark.report import ReportData
from tidemark.report.data import CarriedState, Period, Setting, StatePeriod
from tidemark.report.example_rows import Example, ExampleHistory, ExplainedCause
from tidemark.report.lateness import BIN_EDGES, InputLateness, LatenessSummary

START = datetime(2024, 1, 1, tzinfo=UTC)
HOSTILE = "<script>document.title = 'run'</script>"


def create_report(periods=40, unexplained=2):
    """Create a report with every part and with `HOSTILE` as a value.

    Args:
        periods: Number of days that the report covers.
        unexplained: Number of rows that differ for no known cause.
    """
    times = [format_instant(START + timedelta(days=n)) for n in range(periods + 1)]
    bounds = list(pairwise(times))
    explained = sum(n % 7 for n in range(periods))
    comparison = Comparison(
        "orders", "streamed/orders", "orders_by_arrival", times[0], times[-1], 1_000 * periods, (), (),
        ("_window_start is not compared: streamed/orders does not have it",), 12.3,
    )  # fmt: skip
    quantiles = {
        "p50": 400_000,
        "p75": 900_000,
        "p90": 2_000_000,
        "p95": 3_000_000,
        "p99": 9_000_000,
        "max": 70_000_000,
    }
    bins = tuple(10 * number if 8 <= number <= 17 else 0 for number in range(len(BIN_EDGES)))
    late = InputLateness(
        "left", "left", 90_000, 1_800_000, sum(bins), quantiles, bins, {"left": sum(bins)}, {"null_key": 3}
    )
    without_late_rows = replace(
        late, side="right", late_rows=0, lateness_ms={}, histogram=(0,) * len(BIN_EDGES), rows_by_watermark_input={}
    )
    row = {"left_k": HOSTILE, "left_happened": "2024-01-01T00:20:00.000Z", "_slice": "2024-01-01T00:00:00.000Z"}
    row |= {"left_gate": "B7 "} | {f"left_value_{number}": number for number in range(30)}
    history = RowHistory(
        "orders_by_arrival",
        "left",
        {"k": HOSTILE},
        ("happened 2024-01-01T00:20Z", "late: 27 minutes behind the watermark"),
    )
    counts = {"late in the stream": explained, "unexplained": unexplained}
    causes = tuple(
        ExplainedCause(cause, "stream", rows, CAUSES[cause], REMEDIES[cause], (Example(row, "27 min", ("life-1",)),))
        for cause, rows in counts.items()
        if rows
    )
    comparison = replace(comparison, causes=causes, leading_columns=("left_k", "left_happened", "left_gate"))
    outcomes = [
        Outcome(format_duration(timedelta(minutes=30 * n)), 9_000 + 100 * n, 0, {"left": 50 - 5 * n, "right": 0},
                100.0 * n, 150 * n, 9e3 * n, None)
        for n in range(10)
    ]  # fmt: skip
    what_if = WhatIf("orders_by_arrival", "left.watermark_delay", times[0], times[-1], tuple(outcomes), outcomes[-1])
    return ReportData(
        comparison=comparison,
        created_at="2024-03-01T00:00Z",
        version="0.1.0",
        leading_columns=comparison.leading_columns,
        causes=causes,
        row_histories=(ExampleHistory("life-1", "orders_by_arrival", True, {"k": HOSTILE}, history),),
        period_length="1 day",
        periods=tuple(
            Period(*bound, 1_000, n % 7, unexplained if n == 3 else 0) for n, bound in enumerate(bounds)
        ),
        rows_without_slice=0,
        lateness=LatenessSummary("orders_by_arrival", (late, without_late_rows), {"left": quantiles}),
        what_if=what_if,
        current_value="30 minutes",
        no_what_if_reason=None,
        states=tuple(
            CarriedState(name, "1 day", tuple(StatePeriod(*bound, 40 + n % 9) for n, bound in enumerate(bounds)), 48)
            for name in ("orders", "orders_by_arrival")
        ),
        settings=(Setting("clock", ("event-time", "arrival")), Setting("dialect", ("flink-sql", "flink-sql"))),
        versions={"streamed/orders": 0, "left": 31},
        commands=("tidemark compare orders --with streamed/orders",),
        explain_commands={"life-1": "tidemark explain orders_by_arrival --left k=x"},
    )  # fmt: skip


def create_report_without_differences():
    """Create a report of equal tables, of a pipeline in order of event time without a reference."""
    report = create_report(unexplained=0)
    inputs = replace(report.lateness.inputs[1], side="left"), report.lateness.inputs[1]
    return replace(
        report,
        comparison=replace(report.comparison, causes=(), reference=None, notes=()),
        causes=(),
        row_histories=(),
        periods=tuple(replace(period, explained_rows=0) for period in report.periods),
        lateness=replace(report.lateness, inputs=inputs),
        what_if=None,
        current_value=None,
        no_what_if_reason="orders runs in order of event time, where no delay decides",
        states=report.states[:1],
        settings=tuple(replace(setting, values=setting.values[:1]) for setting in report.settings),
    )
