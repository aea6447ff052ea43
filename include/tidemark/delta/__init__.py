"""Delta tables: where they are, and how they are read, deleted from and compacted."""
