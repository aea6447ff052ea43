"""Run a plan: read, replay, write, validate and commit its slices."""
