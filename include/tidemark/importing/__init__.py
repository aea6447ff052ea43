"""Import the joins of streaming jobs as pipeline files."""
