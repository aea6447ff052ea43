"""Comparing what a pipeline has committed with what a stream wrote, and why they differ."""

from tidemark.reconcile.agreement import due, record
from tidemark.reconcile.causes import CAUSES
from tidemark.reconcile.compare import Asked, Comparison, compare

__all__ = ["CAUSES", "Asked", "Comparison", "compare", "due", "record"]
