"""JSON Schema of pipeline files."""

import json

import jsonschema
import pytest

from tests.config.pipeline_files import FILES, PROJECT, read_as_json, write_variant
from tidemark.config import build_json_schema


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_json_schema_accepts_valid_files(path):
    jsonschema.validate(read_as_json(path), build_json_schema())


@pytest.mark.parametrize("changes", [{"left__event_tme": "x"}, {"join__type": "cross"}, {"join__keys": [3]}])
def test_json_schema_refuses_invalid_files(tmp_path, changes):
    content = read_as_json(write_variant(tmp_path / "p.yaml", **changes))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, build_json_schema())


def test_json_schema_equals_the_published_file():
    published = json.loads((PROJECT / "docs" / "pipeline.schema.json").read_text())
    assert published == build_json_schema(), "run: tidemark schema > docs/pipeline.schema.json"
