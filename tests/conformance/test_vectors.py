"""Vector files that are none end in one line, whatever they hold; no Spark takes part."""

import copy
import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.test_files import TREES, leaves
from tidemark.errors import UserError
from tidemark_conformance import parse_cuts, read_vectors
from tidemark_conformance.runner import readable

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 20
FILES = sorted((Path(__file__).parents[1] / "semantics" / "vectors").glob("*.gz"))
VECTORS = [next(read_vectors(path)) for path in FILES]
CUTS = "1,2,7,random:5,each"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_recorded_vectors_are_readable(path):
    assert all(readable(vector, path) == vector for vector in read_vectors(path))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[1]", "a vector is an object with fields, not list"),
        (b"{", "cannot be read as a vector file"),
        (b"[" * 100_000, "cannot be read as a vector file"),
        (b'{"n": ' + b"9" * 5000 + b"}", "cannot be read as a vector file"),
        (b"\xff", "cannot be read as a vector file"),
        (b'{"dialect": ["spark"]}', "is not as recorded vectors are: TypeError"),
        (b'{"dialect": "spark"}', "is not as recorded vectors are: KeyError"),
        (b'{"dialect": "\xc3\xa9"}', "is of dialect"),
    ],
)
def test_what_is_no_vector_is_refused_in_one_line(tmp_path, content, told):
    path = tmp_path / "v.jsonl"
    path.write_bytes(content)
    assert told in refusal(path)


def test_a_file_that_is_cut_off_or_unpacks_without_end_is_refused(tmp_path):
    path = tmp_path / "v.jsonl.gz"
    path.write_bytes(FILES[0].read_bytes()[:100])
    assert "cannot be read as a vector file" in refusal(path)
    path.write_bytes(gzip.compress(b" " * 20_000_000))
    assert "has a line of more than 10,000,000 characters; split the vector" in refusal(path)


@pytest.mark.parametrize("cuts", ["²", "0", "-1", "random:²", "random:", "", "1,,2", "each,x", "random:1:2"])
def test_what_is_no_cut_is_refused_in_one_line(cuts):
    with pytest.raises(UserError, match="a cut is a number of slices above 0, 'each', or random:SEED"):
        parse_cuts(cuts, VECTORS[0])


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.data())
def test_no_vector_ends_in_more_than_one_line(tmp_path_factory, data):
    vector = copy.deepcopy(data.draw(st.sampled_from(VECTORS)))
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from([path for path in leaves(vector) if path]))
        part = vector
        for step in path:
            part = part[step]
        part[last] = data.draw(TREES)
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    path.write_text(json.dumps(vector, default=str, skipkeys=True))
    refusal(path)


def refusal(path):
    """What is told of a file, empty where it is taken."""
    told = ""
    try:
        for vector in read_vectors(path):
            parse_cuts(CUTS, readable(vector, path))
    except UserError as error:
        told = str(error)
    assert "\n" not in told
    return told
