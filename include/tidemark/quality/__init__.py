"""The quality gate: Great Expectations on what a job has written, before the ledger row makes it count."""
