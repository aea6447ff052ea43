"""Describe the causes of differences in words, with a recommended action for each."""

from tidemark.comparison.result import CHANGED_VALUE

MISSING, PADDED, UNEXPLAINED = "missing in an input", "padded before its partner arrived", "unexplained"
LOST, LEFT_OUT = "lost at the end of input", "left out of a firing"
CAUSES = {
    "pending": "not due yet: the pipeline, the reference or the stream has not reached the slice",
    "quarantined": "the pipeline has it in quarantine, because it fails an expectation",
    "re-fired pane": "an earlier firing of the row's window",
    "emitted twice": "the stream contains the row too often",
    CHANGED_VALUE: "the same row with another value",
    MISSING: "an input lacks a row that the emission contains",
    "late-arriving row": "an input row of the emission arrived after its slice had run",
    "late in the stream": "an input row of the emission was late in the stream",
    "late in the batch": "an input row of the emission was late in the pipeline, but not in the stream",
    "partner already evicted": "an input row of the emission was late, and its partner had left the buffers",
    "rejected in the stream": "the stream rejected an input row of the emission",
    "rejected in the batch": "the pipeline rejected an input row of the emission, or `where` excludes one",
    LOST: "the input ended before the clock reached the timer that emits the row",
    LEFT_OUT: "a time evictor left out an input row of the emission, because it has no event time",
    "other settings": "the stream ran under other settings",
    PADDED: "padded on one side, matched on the other",
    UNEXPLAINED: "none of these",
}
"""Every cause with a description, in the order of precedence."""
REMEDIES = {
    "pending": "Run the slices that are due, or wait for the stream. Then compare again.",
    "quarantined": "Inspect the rows with tidemark quarantine list. If they are correct, publish them with tidemark "
    "quarantine release.",
    "re-fired pane": "Configure consumers to keep only the last firing of each window, or set join.emit to every-pane "
    "to compare all firings.",
    "emitted twice": "The sink wrote the row again after a restart. Make its writes idempotent or transactional.",
    CHANGED_VALUE: "Find what changes the named columns: a type of the sink, an upsert, or an edited input.",
    MISSING: "Add the row to the input if the stream has read it, or find out why it was deleted. If it was erased on "
    "purpose, erase it in the stream's table too.",
    "late-arriving row": "Run the slice again with tidemark reprocess.",
    "late in the stream": "A longer watermark delay would have kept the rows. Compare its cost, or send late rows to a "
    "side output.",
    "late in the batch": "The pipeline has a shorter delay or another order of arrival. Use those of the stream.",
    "partner already evicted": "A longer watermark delay would have kept the row until its partner arrived.",
    "rejected in the stream": "The rows have no key or no usable time in the stream. Correct them at the source.",
    "rejected in the batch": "The rows have no key or no usable time in the pipeline, or `where` excludes them. "
    "Correct the rows or the setting.",
    LOST: "Some timers do not run at the end of the input. If the stream reads on, run the pipeline without --drain.",
    LEFT_OUT: "Flink's time evictor fails at such a row. Correct the row at the source, or use another evictor.",
    "other settings": "Use the same settings in the pipeline and the stream.",
    PADDED: "The partner arrived too late. A longer watermark delay lets the row wait for it.",
    UNEXPLAINED: "Trust neither side yet. Follow the history of an example's input rows, and the stream's log at "
    "that time.",
}
"""Recommended action by cause."""
