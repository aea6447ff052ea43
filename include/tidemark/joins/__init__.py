"""The joins, shared by all dialects, and one small module per dialect for its boundary rules."""
