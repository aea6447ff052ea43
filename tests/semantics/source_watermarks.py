"""Oracle of the watermarks of idle and partitioned inputs, row by row."""

from dataclasses import dataclass, field
from itertools import groupby

NONE = -(2**63)


@dataclass
class Partition:
    last: int
    is_active: bool = False
    watermark: int = NONE


@dataclass
class Input:
    delay: int
    idle_timeout: int | None
    partitions: dict[str | None, Partition]
    watermark: int = NONE

    def list_idle_clocks(self):
        """Yield the clocks at which partitions fall idle if no row arrives."""
        if self.idle_timeout is not None:
            yield from ((p.last + self.idle_timeout + 1, p) for p in self.partitions.values() if p.is_active)

    def add_row(self, row):
        partition = self.partitions.setdefault(row["partition"], Partition(row["clock"]))
        partition.watermark = max(partition.watermark, row["event_time"] - self.delay)
        partition.last = row["clock"]

    def activate(self, row):
        if row["partition"] is not None:
            self.partitions.pop(None, None)  # placeholder of an input without rows so far
        self.partitions[row["partition"]].is_active = True


@dataclass
class Oracle:
    left: Input
    right: Input
    combined: int = NONE
    at_arrival: list = field(default_factory=list)
    """Id of each row, and the left, right and combined watermark before it."""

    @property
    def inputs(self):
        return {"left": self.left, "right": self.right}

    def watermarks(self):
        return self.left.watermark, self.right.watermark, self.combined

    def advance(self):
        active_inputs = []
        for source in self.inputs.values():
            active = [p.watermark for p in source.partitions.values() if p.is_active]
            if active:
                source.watermark = max(source.watermark, min(active))
                active_inputs.append(source.watermark)
        if active_inputs:
            self.combined = max(self.combined, min(active_inputs))

    def advance_clock(self, clock):
        """Let time pass up to a clock, inclusive."""
        while due := [(at, p) for side in self.inputs.values() for at, p in side.list_idle_clocks() if at <= clock]:
            now = min(at for at, _ in due)
            for at, partition in due:
                partition.is_active = at > now
            self.advance()

    def feed(self, rows):
        """Process rows in order. Rows of equal clock and tiebreak do not see each other."""
        for clock, at_clock in groupby(rows, key=lambda row: row["clock"]):
            self.advance_clock(clock)
            rows_at_clock = list(at_clock)
            for _, simultaneous in groupby(rows_at_clock, key=lambda row: row["tiebreak"]):
                rows_at_position = list(simultaneous)
                self.at_arrival += [(row["id"], *self.watermarks()) for row in rows_at_position]
                for row in rows_at_position:
                    self.inputs[row["side"]].add_row(row)
                self.advance()
            for row in rows_at_clock:
                self.inputs[row["side"]].activate(row)
            self.advance()


def create_oracle(stream):
    inputs = {}
    for side in ("left", "right"):
        inputs[side] = Input(stream["delay"][side], stream["idle_timeout"][side], {None: Partition(0, is_active=True)})
    return Oracle(**inputs)
