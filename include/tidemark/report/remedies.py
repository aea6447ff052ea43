"""What one can do about rows that differ, by cause."""

from __future__ import annotations

REMEDIES = {
    "pending": "Nothing to mend: run the slices that are due, or wait for the stream, and compare again.",
    "quarantined": "See tidemark quarantine list; if the rows are right, tidemark release publishes them.",
    "re-fired pane": "Let consumers keep a window's last firing alone, or set join.emit to every-pane and compare all.",
    "emitted twice": "The sink took a row again after a restart; make its writes idempotent or transactional.",
    "changed value": "Look for what alters the named columns on the way: a sink's types, an upsert, an edited input.",
    "missing in an input": "Land the row in the input if the stream has read it, or find who deleted it.",
    "landed after the slice": "Run the slice again with tidemark reprocess.",
    "late in the stream": "A longer watermark delay would have kept them; see what that costs, or send them elsewhere.",
    "late in the batch": "The pipeline has the shorter delay, or another order of arrival: give both the same.",
    "evicted before its partner": "A longer watermark delay would have kept the row until its partner came.",
    "rejected in the stream": "Such rows have no key or no usable time there; mend them at the source.",
    "rejected in the batch": "Such rows have no key or no usable time here, or `where` leaves them out; mend either.",
    "padded before its partner came": "The partner came too late; a longer watermark delay lets the row wait for it.",
    "other settings": "Give the pipeline and the stream the same settings.",
    "unexplained": "Trust neither side yet: follow an example's life, and the stream's log at that time.",
}
"""One sentence or two for each of `tidemark.comparison.CAUSES`."""
