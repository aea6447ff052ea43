"""What Tidemark costs, measured beside other ways to do the same work: docs/performance.md."""
