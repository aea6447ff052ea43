"""Start and tune Spark sessions, and hide the differences between classic Spark and Spark Connect."""
