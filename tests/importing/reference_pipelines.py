"""Pipelines whose Flink SQL, as `make flink-reference` runs it, is imported again."""

from tidemark.config import Pipeline

_INPUTS = {
    "left": {"table": "l", "event_time": "ts", "watermark_delay": "1 ms"},
    "right": {"table": "r", "event_time": "ts", "watermark_delay": "1 ms"},
    "slices": {"every": "1 hour", "start": "2024-01-01T00:00Z"},
}
_WINDOWS = {
    "tumbling": {"tumbling": "1 hour", "offset": "-10 minutes"},
    "sliding": {"sliding": {"size": "1 hour", "slide": "15 minutes"}, "offset": "5 minutes"},
    "cumulate": {"cumulate": {"size": "1 day", "step": "2 hours"}},
}
_JOINS = {
    "interval_inner": {"interval": {"lower": "-5 minutes", "upper": "10 minutes"}},
    "interval_left": {"type": "left", "interval": {"lower": "0 seconds", "upper": "1 day 250 ms"}},
    "interval_right": {"type": "right", "interval": {"lower": "-3 seconds", "upper": "-1 second"}},
    "interval_exclusive": {
        "type": "full",
        "interval": {"lower": "-1 hour", "upper": "2 hours", "lower_inclusive": False, "upper_inclusive": False},
        "min_cleanup_interval": "30 minutes",
    },
    **{
        f"{window}_{join_type}": {"type": join_type, "window": settings}
        for window, settings in _WINDOWS.items()
        for join_type in ("inner", "full", "semi", "anti")
    },
}
PIPELINES = {
    name: Pipeline.model_validate(
        {"name": name, "dialect": "flink-sql", **_INPUTS, "join": {"keys": ["k", "second"], **join}}
    )
    for name, join in _JOINS.items()
}
"""Pipelines by name."""
