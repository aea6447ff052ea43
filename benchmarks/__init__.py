"""Measure the cost of Tidemark and of other implementations of the same work: docs/performance.md."""
