"""Validate what a job reads and writes with Great Expectations before the ledger publishes its slices."""
