"""Compare committed output with a stream's table, or dialects with each other, and explain each difference."""

from tidemark.comparison.agreement import find_due_slices, save_agreement
from tidemark.comparison.cause_descriptions import CAUSES
from tidemark.comparison.compare import compare
from tidemark.comparison.dialect_diff import RULES, DialectComparison, compare_dialects
from tidemark.comparison.result import Comparison, ComparisonRequest

__all__ = [
    "CAUSES",
    "RULES",
    "Comparison",
    "ComparisonRequest",
    "DialectComparison",
    "compare",
    "compare_dialects",
    "find_due_slices",
    "save_agreement",
]
