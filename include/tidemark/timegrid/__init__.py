"""Time columns in whole microseconds, time zones, and the grid of slices."""
