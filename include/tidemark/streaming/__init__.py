"""A pipeline's join as a live query: its twin, its text in Spark's and Flink's SQL, and a state handed over to it."""
