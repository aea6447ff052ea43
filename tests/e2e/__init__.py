"""Scenarios with all services as real processes: `make e2e`, and a shorter one in the slow tier."""
