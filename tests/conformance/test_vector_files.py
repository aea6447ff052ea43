"""Malformed vector files raise an error of one line; runs without Spark."""

import copy
import gzip
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.test_safe_yaml import ODD_CONTENT, list_paths
from tidemark import cli
from tidemark.errors import UserError
from tidemark_conformance import parse_cuts, read_vectors
from tidemark_conformance.runner import validate_vector

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 20
FILES = sorted((Path(__file__).parents[1] / "semantics" / "vectors").glob("*.gz"))
VECTORS = [next(read_vectors(path)) for path in FILES]
CUTS = "1,2,7,random:5,each"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_validate_vector_recorded_vector_is_unchanged(path):
    assert all(validate_vector(vector, path) == vector for vector in read_vectors(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "a vector is an object with fields, not list"),
        (b"{", "is not a readable vector file"),
        (b"[" * 100_000, "is not a readable vector file"),
        (b'{"n": ' + b"9" * 5000 + b"}", "is not a readable vector file"),
        (b"\xff", "is not a readable vector file"),
        (b'{"dialect": ["spark"]}', "is malformed: TypeError"),
        (b'{"dialect": "spark"}', "is malformed: KeyError"),
        (b'{"dialect": "\xc3\xa9"}', "has dialect"),
    ],
)
def test_read_vectors_malformed_content_raises(tmp_path, content, message):
    path = tmp_path / "v.jsonl"
    path.write_bytes(content)
    assert message in read_error(path)


@pytest.mark.parametrize("file", [file for file in FILES if file.name.startswith("flink_")], ids=lambda file: file.name)
def test_validate_vector_with_unknown_error_at_drain_raises(file):
    vector = VECTORS[FILES.index(file)]
    failing = {**vector, "expected": {**vector["expected"], "error": "at drain: an exception"}}
    with pytest.raises(UserError, match="is malformed: ValueError only an evictor fails at the end of the input"):
        validate_vector(failing, file)


def test_read_vectors_truncated_or_huge_file_raises(tmp_path):
    path = tmp_path / "v.jsonl.gz"
    path.write_bytes(FILES[0].read_bytes()[:100])
    assert "is not a readable vector file" in read_error(path)
    path.write_bytes(gzip.compress(b" " * 20_000_000))
    assert "a line has more than 10,000,000 characters. Split the vector" in read_error(path)


@pytest.mark.parametrize("cuts", ["²", "0", "-1", "random:²", "random:", "", "1,,2", "each,x", "random:1:2"])
def test_parse_cuts_invalid_cut_raises(cuts):
    with pytest.raises(UserError, match="unknown cut. Pass a number of slices above 0, each, or random:SEED"):
        parse_cuts(cuts, VECTORS[0])


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.data())
def test_read_vectors_fuzzed_vector_raises_at_most_a_single_line(tmp_path_factory, data):
    vector = copy.deepcopy(data.draw(st.sampled_from(VECTORS)))
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from([path for path in list_paths(vector) if path]))
        part = vector
        for step in path:
            part = part[step]
        part[last] = data.draw(ODD_CONTENT)
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    path.write_text(json.dumps(vector, default=str, skipkeys=True))
    read_error(path)


def read_error(path):
    """Return the error message of a vector file; empty if it is valid."""
    message = ""
    try:
        for vector in read_vectors(path):
            parse_cuts(CUTS, validate_vector(vector, path))
    except UserError as error:
        message = str(error)
    assert "\n" not in message
    return message


def test_conformance_command_without_the_tests_names_the_remedy(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "tidemark_conformance", None)

    code = cli.main(["conformance", str(FILES[0])])

    message = capfd.readouterr().err
    assert code == 2
    assert "they come with the repository, not with the wheel" in " ".join(message.split())
