"""What an export says of itself."""

SPARK = """\
# {pipeline}, from {at} on

The backfill ended at {at}. `left` and `right` are Delta tables of the rows that were in its buffers then ({left} and
{right}), each with one row more that brings its side's watermark. `continued.py` is the query that goes on from there:

```python
import sys
sys.path.insert(0, "{folder}")
from continued import continued

left = ...   # streaming DataFrames of what comes after the backfill, with the inputs' own columns
right = ...
rows = continued(spark, left, right)
rows.writeStream.format("delta").option("checkpointLocation", "...").start("...")
```

It emits what the uncut join emits after {at}: no pair of two rows of the state again, no row of the state alone that
has met a partner, and nothing of live rows that the backfill's watermark makes late.

- What comes after are the rows that no slice before {at} has taken. `state.json` names the versions of the inputs that
  were read: of these come the rows with a clock at or after {at}, and then those of later versions.
- Start it with a new checkpoint. This folder has to stay where it is as long as that checkpoint is used.
- Live rows may be waiting when it starts. The answer depends, as always, on how they are cut into micro-batches; what
  the first one would evict goes with the second.
- The pipeline's `guard` is not part of the query.
"""
FLINK = """\
# {pipeline}, at {at}

`left` and `right` are Delta tables of the rows that were in the buffers at {at} ({left} and {right}): the input's own
columns, and in `_tidemark` the event time, and as `told` whether the row has met a partner (null where that is not
known). `state.json` has the watermarks in ms, and the versions of the inputs that were read.

A Flink job reads these rows before those that follow, to which it applies each input's `where`, as `state.json` has it.
Two of these rows that match have been emitted already: the job has to know them by a column, and drop such pairs. For
inner interval joins that is all that is emitted of these rows alone.

Not promised: padded rows, windows that have fired, and timers. Nor the watermark: a job that has just begun has none
before it has read these rows, and then that of the newest of them, which may lie behind the one in `state.json`.
"""
