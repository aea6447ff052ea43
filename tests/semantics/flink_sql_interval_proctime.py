"""Flink SQL's interval join on processing time, one event at a time, by semantics/flink_proctime_interval.md.

The operator is the one of event time. Its time is the processing time, which passes through every millisecond, and a
timer for T runs at T + 1.
"""

from dataclasses import dataclass, replace

from tests.semantics import flink_sql_interval
from tests.semantics.flink_sql_interval import Ids, Row


@dataclass
class Oracle(flink_sql_interval.Oracle):
    """Advance the processing time, then feed the row; both return output. Exact for times above 0."""

    processing_time_ms: int = 0

    @property
    def operator_time(self) -> float:
        return self.processing_time_ms

    def advance_processing_time(self, processing_time_ms: int) -> list[Ids]:
        emitted = []
        while due := [(time, cache_key) for cache_key, time in self.timers.items() if time < processing_time_ms]:
            time, cache_key = min(due, key=lambda timer: timer[0])
            self.processing_time_ms = time + 1
            emitted += self._fire_timer(cache_key)
        self.processing_time_ms = processing_time_ms
        return emitted

    def feed(self, row: Row) -> list[Ids]:
        row = replace(row, ts=self.processing_time_ms)
        return self._pad([row]) if self.is_empty else self._look_up(row) + self._cache_or_pad(row)


def compute_expected(vector: dict) -> dict:
    """Return the expected result of a vector's events, in the form of the vector. No row is ever dropped."""
    oracle = flink_sql_interval.create_oracle(vector, Oracle)
    watermarks, emitted, watermark_out = dict.fromkeys("LR"), [], []
    for at, event in enumerate(vector["events"]):
        emitted_now = oracle.advance_processing_time(event["pt"])
        emitted_now += oracle.feed(Row(event["side"], event["key"], event["pt"], event["id"]))
        emitted += [(ids, at) for ids in emitted_now]
        if event["ts"] is not None:
            watermark = event["ts"] - oracle.lag[event["side"]]
            watermarks[event["side"]] = max(watermark, watermarks[event["side"]] or watermark)
        if not oracle.is_empty:
            watermark_out.append(None if None in watermarks.values() else min(watermarks.values()))
    if "end_pt" in vector:
        emitted += [(ids, "drain") for ids in oracle.advance_processing_time(vector["end_pt"])]
    rows = [{"left_id": left, "right_id": right, "ts": None, "at": at} for (left, right), at in emitted]
    return {"rows": rows, "dropped": [], "watermark_out": watermark_out}
