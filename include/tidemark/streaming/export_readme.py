"""README texts of exported checkpoints."""

SPARK = """\
# {pipeline}, from {at} on

The backfill ended at {at}. `left` and `right` are Delta tables of the rows that were in its buffers ({left} and
{right}), each with one further row that restores its side's watermark. `resume_query.py` resumes the query:

```python
import sys
sys.path.insert(0, "{folder}")
from resume_query import resume

left = ...   # streaming DataFrames of the rows after the backfill, with the inputs' own columns
right = ...
rows = resume(spark, left, right)
rows.writeStream.format("delta").option("checkpointLocation", "...").start("...")
```

It emits exactly what an uninterrupted join emits after {at}: no pair of two rows of the state again, no row of the
state alone that already has a partner, and no live row that is late for the backfill's watermark.

- The live rows are those that no slice before {at} has read. `state.json` contains the versions of the inputs that were
  read. Of these the rows with a clock at or after {at} follow, then the rows of later versions.
- Start it with a new checkpoint. Keep this folder in place as long as that checkpoint is used.
- Live rows may be waiting when it starts. The output depends, as always, on how they are divided into micro-batches;
  rows that the first one would evict are evicted with the second.
- The pipeline's `time_bounds` is not part of the query.
"""
FLINK = """\
# {pipeline}, at {at}

`left` and `right` are Delta tables of the rows that were in the buffers at {at} ({left} and {right}). They contain the
input's own columns, and in `_tidemark` the event time and `already_emitted`, true if the row has a partner (null if
unknown). `state.json` contains the watermarks in ms, and the versions of the inputs that were read.

A Flink job reads these rows first, then the rows that follow, filtered by each input's `where` in `state.json`.
Matching pairs of two of these rows have been emitted already, so the job has to mark the rows with a column and drop
such pairs. For inner interval joins no other output of these rows alone has been emitted.

Not guaranteed: padded rows, windows that have fired, timers and the watermark. A new job has no watermark before it has
read these rows, and then that of the newest of them, which may be lower than the one in `state.json`.
"""
