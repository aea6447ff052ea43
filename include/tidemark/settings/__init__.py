"""What the user wrote, validated: the pipeline file and its settings."""

from tidemark.settings.load import (
    changed,
    load_pipeline,
    load_reference,
    pipeline_files,
    pipeline_schema,
    pipelines_folder,
)
from tidemark.settings.pipeline import (
    Budget,
    CompareSettings,
    Completeness,
    Expectation,
    Guard,
    Input,
    Interval,
    Join,
    KeyPair,
    Pipeline,
    Slices,
    TimeColumn,
    Trace,
    WindowSettings,
)

__all__ = [
    "Budget",
    "CompareSettings",
    "Completeness",
    "Expectation",
    "Guard",
    "Input",
    "Interval",
    "Join",
    "KeyPair",
    "Pipeline",
    "Slices",
    "TimeColumn",
    "Trace",
    "WindowSettings",
    "changed",
    "load_pipeline",
    "load_reference",
    "pipeline_files",
    "pipeline_schema",
    "pipelines_folder",
]
