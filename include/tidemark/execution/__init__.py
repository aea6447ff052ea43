"""A plan run: slices read, replayed, written, judged and committed."""
