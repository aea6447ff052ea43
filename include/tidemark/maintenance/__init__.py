"""Compact small files and remove files that retention no longer needs."""
