"""What a pipeline has committed beside what a stream wrote, and dialects side by side: where they differ, and why."""

from tidemark.comparison.causes import CAUSES
from tidemark.comparison.compare import Asked, Comparison, compare
from tidemark.comparison.dialect_diff import RULES, Dialects, dialects
from tidemark.comparison.agreement import due, record

__all__ = ["CAUSES", "RULES", "Asked", "Comparison", "Dialects", "compare", "dialects", "due", "record"]
