"""Flink SQL's interval join on processing time, one event at a time, as semantics/flink_proctime_interval.md tells it.

The operator is that of event time; its time is the clock, which passes every millisecond, and its timers are the
clock's: one for T runs when the clock reads T + 1.
"""

from dataclasses import dataclass, replace

from tests.semantics import flink_sql_interval
from tests.semantics.flink_sql_interval import Ids, Row


@dataclass
class Oracle(flink_sql_interval.Oracle):
    """Move the clock, then feed the row; each gives what comes out. Exact for clocks above 0."""

    clock: int = 0

    @property
    def now(self) -> float:
        return self.clock

    def move(self, clock: int) -> list[Ids]:
        emitted = []
        while due := [(time, slot) for slot, time in self.timers.items() if time < clock]:
            time, slot = min(due, key=lambda one: one[0])
            self.clock = time + 1
            emitted += self._clean(slot)
        self.clock = clock
        return emitted

    def feed(self, row: Row) -> list[Ids]:
        row = replace(row, ts=self.clock)
        return self._padding([row]) if self.is_empty else self._probe(row) + self._keep(row)


def answer(vector: dict) -> dict:
    """What the engine is expected to do with a vector's events, in the vector's own form; no row is ever dropped."""
    oracle = flink_sql_interval.oracle_of(vector, Oracle)
    marks, emitted, watermark_out = dict.fromkeys("LR"), [], []
    for at, event in enumerate(vector["events"]):
        found = oracle.move(event["pt"])
        found += oracle.feed(Row(event["side"], event["key"], event["pt"], event["id"]))
        emitted += [(ids, at) for ids in found]
        if event["ts"] is not None:
            mark = event["ts"] - oracle.lag[event["side"]]
            marks[event["side"]] = max(mark, marks[event["side"]] or mark)
        if not oracle.is_empty:
            watermark_out.append(None if None in marks.values() else min(marks.values()))
    if "end_pt" in vector:
        emitted += [(ids, "drain") for ids in oracle.move(vector["end_pt"])]
    rows = [{"left_id": left, "right_id": right, "ts": None, "at": at} for (left, right), at in emitted]
    return {"rows": rows, "dropped": [], "watermark_out": watermark_out}
