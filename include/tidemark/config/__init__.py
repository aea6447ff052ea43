"""Validate the pipeline file, which holds everything that a user configures."""

from tidemark.config.airflow import AirflowSettings
from tidemark.config.compare import Budget, CompareSettings
from tidemark.config.inputs import CheckpointArrival, CommitArrival, Completeness, Input, TimeColumn
from tidemark.config.join import Interval, Join, KeyPair, WindowInequality, WindowSettings
from tidemark.config.json_schema import build_json_schema
from tidemark.config.loader import (
    get_pipelines_folder,
    list_pipeline_files,
    load_pipeline,
    load_reference,
    with_overrides,
)
from tidemark.config.pipeline import Pipeline, TimeBounds
from tidemark.config.quality import Expectation
from tidemark.config.slices import Slices

__all__ = [
    "AirflowSettings",
    "Budget",
    "CheckpointArrival",
    "CommitArrival",
    "CompareSettings",
    "Completeness",
    "Expectation",
    "Input",
    "Interval",
    "Join",
    "KeyPair",
    "Pipeline",
    "Slices",
    "TimeBounds",
    "TimeColumn",
    "WindowInequality",
    "WindowSettings",
    "build_json_schema",
    "get_pipelines_folder",
    "list_pipeline_files",
    "load_pipeline",
    "load_reference",
    "with_overrides",
]
