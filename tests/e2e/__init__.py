"""The whole of it, with real parts as processes: `make e2e`, and a shorter one in the slow tier."""
