"""What a pipeline has committed beside what a stream wrote, and dialects side by side: where they differ, and why."""

from tidemark.reconcile.agreement import due, record
from tidemark.reconcile.causes import CAUSES
from tidemark.reconcile.compare import Asked, Comparison, compare
from tidemark.reconcile.dialects import RULES, Dialects, dialects

__all__ = ["CAUSES", "RULES", "Asked", "Comparison", "Dialects", "compare", "dialects", "due", "record"]
