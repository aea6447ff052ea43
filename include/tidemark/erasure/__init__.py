"""Erase input rows for good, with every row derived from them."""
