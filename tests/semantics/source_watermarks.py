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

    @property
    def is_active(self):
        return any(partition.is_active for partition in self.partitions.values())

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
    is_union: bool = False
    combined: int = NONE
    aligned: set = field(default_factory=lambda: {"left", "right"})
    """Sides that limit the combined watermark."""
    at_arrival: list = field(default_factory=list)
    """Id of each row, and the left, right and combined watermark before it."""

    @property
    def inputs(self):
        return {"left": self.left, "right": self.right}

    def watermarks(self):
        return self.left.watermark, self.right.watermark, self.combined

    def advance_inputs(self):
        for source in self.inputs.values():
            active = [p.watermark for p in source.partitions.values() if p.is_active]
            if active:
                source.watermark = max(source.watermark, min(active))

    def advance(self):
        self.advance_inputs()
        if self.aligned:
            self.combined = max(self.combined, min(self.inputs[side].watermark for side in self.aligned))

    def align(self):
        """Let inputs limit the combined watermark from now on: active ones, and in a union none that lag behind it."""
        self.advance_inputs()
        active = {side for side, source in self.inputs.items() if source.is_active}
        self.aligned = {s for s in active if not self.is_union or self.inputs[s].watermark >= self.combined}

    def flush(self):
        """Raise watermarks to the greatest where nothing is active any more."""
        for source in self.inputs.values():
            if not source.is_active:
                source.watermark = max(source.watermark, *(p.watermark for p in source.partitions.values()))
        if not self.left.is_active and not self.right.is_active:
            self.combined = max(self.combined, self.left.watermark, self.right.watermark)

    def advance_clock(self, clock):
        """Let time pass up to a clock, inclusive."""
        while due := [(at, p) for side in self.inputs.values() for at, p in side.list_idle_clocks() if at <= clock]:
            now = min(at for at, _ in due)
            for at, partition in due:
                partition.is_active = at > now
            self.flush()
            self.align()
            self.advance()

    def feed(self, rows):
        """Process rows in order. Rows of equal clock and tiebreak do not see each other."""
        for clock, at_clock in groupby(rows, key=lambda row: row["clock"]):
            self.advance_clock(clock)
            for _, simultaneous in groupby(at_clock, key=lambda row: row["tiebreak"]):
                rows_at_position = list(simultaneous)
                self.at_arrival += [(row["id"], *self.watermarks()) for row in rows_at_position]
                for row in rows_at_position:
                    self.inputs[row["side"]].add_row(row)
                self.advance()
                for row in rows_at_position:
                    self.inputs[row["side"]].activate(row)
                self.align()
                self.advance()


def create_oracle(stream):
    inputs = {}
    for side in ("left", "right"):
        inputs[side] = Input(stream["delay"][side], stream["idle_timeout"][side], {None: Partition(0, is_active=True)})
    return Oracle(**inputs, is_union=stream.get("is_union", False))
