"""What of a heap Spark shares between execution and storage."""

from __future__ import annotations

_RESERVED_BYTES = 300 << 20
"""Bytes of a heap that Spark leaves to everything else."""
_MEMORY_FRACTION = 0.6
"""The part of the others that execution and storage share."""
_UNIT_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40}


def compute_unified_memory(heap: str) -> int:
    """Compute the bytes that execution and storage share in a heap of this size, such as `4g`.

    >>> compute_unified_memory("1g") == int((1024 - 300) * 0.6 * 1024 * 1024)
    True
    """
    return int(((int(heap[:-1]) << _UNIT_SHIFTS[heap[-1].lower()]) - _RESERVED_BYTES) * _MEMORY_FRACTION)
