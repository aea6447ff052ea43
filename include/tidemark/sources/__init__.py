"""The rows of both inputs, read from Delta at a version, with their times, slices and faults."""
