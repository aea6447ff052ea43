"""The watermark that each row met: by buckets of the clock, by partitions that fall idle, by micro-batches."""
