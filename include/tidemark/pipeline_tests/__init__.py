"""Run pipelines on the few rows of a test case, and compare the output with the expected rows."""
