"""Variants of the example pipeline file for tests."""

import json
from pathlib import Path

import yaml

from tidemark.config import list_pipeline_files, load_pipeline
from tidemark.config.loader import with_overrides

PROJECT = Path(__file__).resolve().parents[2]
FILES = list_pipeline_files(PROJECT / "include" / "pipelines")
FLIGHTS_WEATHER = PROJECT / "include" / "pipelines" / "flights_weather.yaml"
"""A file of a pipeline whose inputs are tables."""
LOCAL_DAYS = {"slices__every": "1 day", "slices__start": "2026-10-23T22:00Z", "slices__time_zone": "Europe/Berlin"}
"""Slices of local days in Berlin."""
APIA_DAYS = LOCAL_DAYS | {"slices__time_zone": "Pacific/Apia"}
"""Slices of local days in Apia, which skipped 2011-12-30."""


def read_base():
    """Read the pipeline flights_weather without its output stream, which many settings do not allow."""
    content = yaml.safe_load(FLIGHTS_WEATHER.read_text())
    del content["output_stream"]
    return content


def load_base():
    """Load the pipeline of `read_base`."""
    return with_overrides(load_pipeline(FLIGHTS_WEATHER), {"output_stream": None})


def write_variant(path, **changes):
    """Write `read_base` with some settings changed, and return the path.

    Keyword arguments are setting names with `__` between levels.
    """
    content = read_base()
    for name, value in changes.items():
        *parents, last = name.split("__")
        target = content
        for parent in parents:
            target = target[parent]
        target[last] = value
    path.write_text(yaml.safe_dump(content))
    return path


def read_as_json(path):
    """Read a pipeline file as editors do for a JSON Schema, where an unquoted instant is a string."""
    return json.loads(json.dumps(yaml.safe_load(path.read_text()), default=str))
