"""Tidemark: which rows would the streaming join have emitted, over bounded Delta tables, slice by slice."""
