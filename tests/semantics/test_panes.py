"""The replay of panes, without Spark, is the oracle's: random streams by the thousand."""

import os
from collections import Counter, defaultdict
from itertools import accumulate

from hypothesis import HealthCheck, given, settings

from tests.semantics.flink_datastream_trigger import LONG_MAX, LONG_MIN, operator_of
from tests.semantics.flink_datastream_window import rows_of
from tests.semantics.strategies import VECTORS
from tidemark.joins.window_operator_simulation import Panes, PaneSpec, Row, reached_at

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000"))


def spec_of(vector):
    """What a pipeline file of the same settings gives."""
    operator, evictor = operator_of(vector), vector["params"]["evictor"] or {}
    trigger = operator.trigger
    return PaneSpec(
        trigger["type"],
        trigger.get("interval", trigger.get("count", trigger.get("threshold", 0))),
        trigger["purge"],
        evictor.get("type"),
        evictor.get("count", evictor.get("size_ms", 0)),
        evictor.get("after", False),
        operator.processing,
        operator.lateness,
        vector["params"]["gap"] if operator.merging else None,
    )


def replayed(vector):
    """All firings' rows as a vector has them, but for when; key by key and window by window."""
    operator, spec, events = operator_of(vector), spec_of(vector), vector["events"]
    after = [LONG_MIN if mark is None else mark for mark in vector["expected"]["watermark_out"]]
    met = [LONG_MIN, *after[:-1]]
    clocks, marks = [event["pt"] for event in events], list(accumulate(after, max))
    by_instant = dict(zip(clocks, marks, strict=True))
    groups = defaultdict(list)
    for number, event in enumerate(events):
        axis = event["pt"] if operator.processing else event["ts"]
        row = Row(number, event["ts"], met[number], event["pt"], number)
        for window in [None] if operator.merging else operator.assign(axis):
            if window and not operator.processing and window.last + operator.lateness <= met[number]:
                continue
            groups[event["key"], window].append(row)
    found = []
    for (_, window), rows in groups.items():
        panes = Panes(spec, reached_at(list(by_instant), list(by_instant.values()), LONG_MIN))
        for row in rows:
            panes.row(row, *((window.start, window.end) if window else (None, None)))
        end = max(clocks[-1], vector.get("end_pt", 0))
        panes.advance(marks[-1], end)
        panes.finish(LONG_MAX if vector["drain"] else marks[-1], end, drained=vector["drain"])
        found += [fired for fired in panes.found if fired.role in {"member", "empty"}]
    return [row for fired in found for row in rows_of(vector["params"]["mode"], _Seen(fired, events), None)]


class _Seen:
    """A firing as the oracle's."""

    def __init__(self, fired, events):
        self.window = type("Window", (), {"start": fired.start, "end": fired.end, "last": fired.end - 1})
        self.rows = [events[offset] for offset in fired.offsets]

    def ids(self, side):
        return sorted(event["id"] for event in self.rows if event["side"] == side)


def counted(rows):
    return Counter(repr(sorted({**row, "at": None}.items())) for row in rows)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(vector=VECTORS["datastream_trigger"])
def test_panes_equal_the_oracle(vector):
    if "error" not in vector["expected"]:
        assert counted(replayed(vector)) == counted(vector["expected"]["rows"]), vector
