"""A comparison as a page: what agrees, what does not and why, how late rows were, and what another delay would do."""

from tidemark.report.data import Called, Facts, gather
from tidemark.report.render import FORMATS, check_paths, need_folder, write

__all__ = ["FORMATS", "Called", "Facts", "check_paths", "gather", "need_folder", "write"]
