"""Compute the memory of a heap that Spark shares between execution and storage."""

from __future__ import annotations

_RESERVED_BYTES = 300 << 20
"""Bytes of a heap that Spark reserves (`RESERVED_SYSTEM_MEMORY_BYTES`)."""
_MEMORY_FRACTION = 0.6
"""Share of the remaining heap for execution and storage (default of `spark.memory.fraction`)."""
_UNIT_SHIFTS = {"b": 0, "k": 10, "": 20, "m": 20, "g": 30, "t": 40, "p": 50}
"""Base-2 logarithm of each unit in bytes. A size without a unit is in MiB (`spark.driver.memory`)."""


def compute_unified_memory(heap: str) -> int:
    """Return the bytes that execution and storage share in a heap.

    Args:
        heap: Size of the heap in a form that Spark accepts, such as `4g`, `4GB` or `4096`.

    >>> compute_unified_memory("1g") == int((1024 - 300) * 0.6 * 1024 * 1024)
    True
    >>> {compute_unified_memory(heap) for heap in ("4g", "4GB", "4096", "4096mb", "4194304k", "4294967296b")}
    {2388236697}
    """
    size = heap.strip().lower()
    digits = size.rstrip("".join(_UNIT_SHIFTS))
    unit = size.removeprefix(digits)[:1]
    return int(((int(digits) << _UNIT_SHIFTS[unit]) - _RESERVED_BYTES) * _MEMORY_FRACTION)
