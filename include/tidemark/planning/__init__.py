"""What would run and why, how it is cut into Spark jobs, and how long it would take."""
