"""Time columns as whole microseconds, and the slices that the clock of a pipeline is cut into."""
