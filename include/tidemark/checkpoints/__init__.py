"""Summarize, verify, copy and expire the checkpoints that runs carry from slice to slice."""
