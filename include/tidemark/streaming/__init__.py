"""Run a pipeline's join as a live query: in Spark, in Flink's SQL, or from an exported checkpoint."""
