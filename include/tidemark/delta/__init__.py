"""Read and write Delta tables by their logs, mostly without a JVM."""
