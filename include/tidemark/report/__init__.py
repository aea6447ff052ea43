"""Report a comparison as a page: differences and their causes, lateness, and the effect of other delays."""

from tidemark.report.data import Invocation, ReportData, collect_report_data
from tidemark.report.render import FORMATS, check_folder, check_paths, write_report

__all__ = ["FORMATS", "Invocation", "ReportData", "check_folder", "check_paths", "collect_report_data", "write_report"]
