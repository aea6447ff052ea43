"""What the user wrote, validated: the pipeline file and its settings."""

from tidemark.settings.airflow import AirflowSettings
from tidemark.settings.checks import Budget, CompareSettings, Expectation
from tidemark.settings.inputs import Commits, Completeness, Input, TimeColumn, Trace
from tidemark.settings.join import Interval, Join, KeyPair, WindowInequality, WindowSettings
from tidemark.settings.load import (
    changed,
    load_pipeline,
    load_reference,
    pipeline_files,
    pipeline_schema,
    pipelines_folder,
)
from tidemark.settings.pipeline import Guard, Pipeline, Slices

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
