"""The Spark session: how one is started and tuned, and all that Tidemark asks of its private JVM objects."""
