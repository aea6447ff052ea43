"""Read the input tables of a pipeline: normalized rows, arrival times, changes and completeness."""
