"""Compute the memory of a heap that Spark shares between execution and storage."""

from __future__ import annotations

_RESERVED_BYTES = 300 << 20
"""Bytes of a heap that Spark reserves (`RESERVED_SYSTEM_MEMORY_BYTES`)."""
_MEMORY_FRACTION = 0.6
"""Share of the remaining heap for execution and storage (default of `spark.memory.fraction`)."""
_UNIT_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40}


def compute_unified_memory(heap: str) -> int:
    """Return the bytes that execution and storage share in a heap of a size such as `4g`.

    >>> compute_unified_memory("1g") == int((1024 - 300) * 0.6 * 1024 * 1024)
    True
    """
    return int(((int(heap[:-1]) << _UNIT_SHIFTS[heap[-1].lower()]) - _RESERVED_BYTES) * _MEMORY_FRACTION)
