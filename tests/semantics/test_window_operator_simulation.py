"""The simulated window operator, without Spark, compared with an oracle on thousands of random streams."""

import os
from collections import Counter, defaultdict
from itertools import accumulate

from hypothesis import HealthCheck, given, settings

from tests.semantics.flink_datastream_trigger import LONG_MAX, LONG_MIN, create_operator
from tests.semantics.flink_datastream_window import create_rows
from tests.semantics.strategies import VECTORS
from tidemark.joins.firing_spec import WindowFiringSpec
from tidemark.joins.window_operator_simulation import SimulatedRow, WindowOperator, create_reach_processing_time

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000"))


def create_spec(vector):
    """Create the specification of a pipeline with the same settings."""
    operator, evictor = create_operator(vector), vector["params"]["evictor"] or {}
    trigger = operator.trigger
    return WindowFiringSpec(
        trigger=trigger["type"],
        trigger_amount=trigger.get("interval", trigger.get("count", trigger.get("threshold", 0))),
        is_purging=trigger["purge"],
        evictor=evictor.get("type"),
        evictor_amount=evictor.get("count", evictor.get("size_ms", 0)),
        evicts_after=evictor.get("after", False),
        is_processing_time=operator.processing,
        lateness=operator.lateness,
        gap=vector["params"]["gap"] if operator.merging else None,
    )


def simulate(vector):
    """Return the rows of all firings in the form of a vector, without times; by key and by window."""
    operator, spec, events = create_operator(vector), create_spec(vector), vector["events"]
    after = [LONG_MIN if watermark is None else watermark for watermark in vector["expected"]["watermark_out"]]
    before = [LONG_MIN, *after[:-1]]
    clocks, watermarks = [event["pt"] for event in events], list(accumulate(after, max))
    by_instant = dict(zip(clocks, watermarks, strict=True))
    groups = defaultdict(list)
    for number, event in enumerate(events):
        window_time = event["pt"] if operator.processing else event["ts"]
        row = SimulatedRow(number, event["ts"], before[number], event["pt"], number)
        for window in [None] if operator.merging else operator.assign(window_time):
            if window and not operator.processing and window.last + operator.lateness <= before[number]:
                continue
            groups[event["key"], window].append(row)
    firings = []
    for (_, window), rows in groups.items():
        reach_processing_time = create_reach_processing_time(list(by_instant), list(by_instant.values()), LONG_MIN)
        simulated = WindowOperator(spec, reach_processing_time)
        for row in rows:
            simulated.add_row(row, *((window.start, window.end) if window else (None, None)))
        end = max(clocks[-1], vector.get("end_pt", 0))
        simulated.advance(watermarks[-1], end)
        simulated.finish(LONG_MAX if vector["drain"] else watermarks[-1], end, is_drained=vector["drain"])
        firings += [outcome for outcome in simulated.outcomes if outcome.role in {"member", "empty"}]
    mode = vector["params"]["mode"]
    return [row for firing in firings for row in create_rows(mode, _OracleFiring(firing, events), None)]


class _OracleFiring:
    """A simulated firing in the form of the oracle's."""

    def __init__(self, outcome, events):
        self.window = type("Window", (), {"start": outcome.start, "end": outcome.end, "last": outcome.end - 1})
        self.rows = [events[offset] for offset in outcome.offsets]

    def ids(self, side):
        return sorted(event["id"] for event in self.rows if event["side"] == side)


def count_rows(rows):
    return Counter(repr(sorted({**row, "at": None}.items())) for row in rows)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(vector=VECTORS["datastream_trigger"])
def test_window_operator_random_streams_match_oracle(vector):
    if "error" not in vector["expected"]:
        assert count_rows(simulate(vector)) == count_rows(vector["expected"]["rows"]), vector
