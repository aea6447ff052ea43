"""What of a heap Spark shares between execution and storage."""

from __future__ import annotations

_RESERVED = 300 << 20
"""Bytes of a heap that Spark leaves to everything else."""
_SHARE = 0.6
"""The part of the others that execution and storage share."""
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


def shared_of(heap: str) -> int:
    """The bytes of a heap that is told in Spark's way.

    >>> shared_of("1g") == int((1024 - 300) * 0.6 * 1024 * 1024)
    True
    """
    return int(((int(heap[:-1]) << _UNITS[heap[-1].lower()]) - _RESERVED) * _SHARE)
