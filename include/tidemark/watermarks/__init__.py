"""Compute the watermark at each row. Subclasses of `lanes.Lane` decide how."""
