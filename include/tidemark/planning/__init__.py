"""Plan which slices run, cut them into Spark jobs, and estimate their duration."""
