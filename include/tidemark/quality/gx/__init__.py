"""Evaluate expectations with Great Expectations and keep its project."""
