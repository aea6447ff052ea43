"""What the user wrote, validated: the pipeline file and its settings."""

from tidemark.config.airflow import AirflowSettings
from tidemark.config.inputs import Commits, Completeness, Input, TimeColumn, Trace
from tidemark.config.join import Interval, Join, KeyPair, WindowInequality, WindowSettings
from tidemark.config.loader import (
    changed,
    load_pipeline,
    load_reference,
    pipeline_files,
    pipeline_schema,
    pipelines_folder,
)
from tidemark.config.pipeline import Guard, Pipeline, Slices
from tidemark.config.quality import Budget, CompareSettings, Expectation

__all__ = [
    "AirflowSettings",
    "Budget",
    "Commits",
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
    "WindowInequality",
    "WindowSettings",
    "changed",
    "load_pipeline",
    "load_reference",
    "pipeline_files",
    "pipeline_schema",
    "pipelines_folder",
]
