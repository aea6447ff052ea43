"""What holds the watermark back, row by row: inputs with partitions, and inputs that fall idle."""

from dataclasses import dataclass, field
from itertools import groupby

NONE = -(2**63)


@dataclass
class Partition:
    last: int
    counts: bool = False
    mark: int = NONE


@dataclass
class Input:
    delay: int
    idle_after: int | None
    partitions: dict[str | None, Partition]
    mark: int = NONE

    def fall_idle(self):
        """Clocks at which partitions fall idle if no row comes."""
        if self.idle_after is not None:
            yield from ((p.last + self.idle_after + 1, p) for p in self.partitions.values() if p.counts)

    def come(self, row):
        partition = self.partitions.setdefault(row["partition"], Partition(row["clock"]))
        partition.mark = max(partition.mark, row["event_time"] - self.delay)
        partition.last = row["clock"]

    def wake(self, row):
        if row["partition"] is not None:
            self.partitions.pop(None, None)  # stood for the input while it had no row
        self.partitions[row["partition"]].counts = True


@dataclass
class Oracle:
    left: Input
    right: Input
    combined: int = NONE
    met: list = field(default_factory=list)
    """Of each row: id, the watermarks of both inputs and the combined one, before the row."""

    @property
    def inputs(self):
        return {"left": self.left, "right": self.right}

    def marks(self):
        return self.left.mark, self.right.mark, self.combined

    def advance(self):
        held_by = []
        for one in self.inputs.values():
            active = [p.mark for p in one.partitions.values() if p.counts]
            if active:
                one.mark = max(one.mark, min(active))
                held_by.append(one.mark)
        if held_by:
            self.combined = max(self.combined, min(held_by))

    def wait(self, clock):
        """Time passes up to a clock, inclusive."""
        while due := [told for one in self.inputs.values() for told in one.fall_idle() if told[0] <= clock]:
            now = min(at for at, _ in due)
            for at, partition in due:
                partition.counts = at > now
            self.advance()

    def feed(self, rows):
        """Rows in order; those of equal clock and tiebreak do not see each other."""
        for clock, same in groupby(rows, key=lambda row: row["clock"]):
            self.wait(clock)
            of_clock = list(same)
            for _, simultaneous in groupby(of_clock, key=lambda row: row["tiebreak"]):
                together = list(simultaneous)
                self.met += [(row["id"], *self.marks()) for row in together]
                for row in together:
                    self.inputs[row["side"]].come(row)
                self.advance()
            for row in of_clock:
                self.inputs[row["side"]].wake(row)
            self.advance()


def oracle_of(stream):
    inputs = {}
    for side in ("left", "right"):
        inputs[side] = Input(stream["delay"][side], stream["idle_after"][side], {None: Partition(0, counts=True)})
    return Oracle(**inputs)
