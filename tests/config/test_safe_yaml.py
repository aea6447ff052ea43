"""Reading of YAML: refused documents, and single-line errors for any content."""

import os
import string

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.pipeline_files import FILES, FLIGHTS_WEATHER, read_base
from tidemark.config import load_pipeline, load_reference
from tidemark.config.safe_yaml import read_yaml
from tidemark.errors import PipelineFileError

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 20
ALIAS_CHAIN = list(zip("abcdef", "bcdefg", strict=True))
BOMB = "\n".join(
    ["a: &a [1, 2]", *(f"{name}: &{name} [{', '.join([f'*{previous}'] * 10)}]" for previous, name in ALIAS_CHAIN)]
)
MERGES = "\n".join(
    [
        "a: &a {x: 1}",
        *(f"{name}: &{name} {{<<: [{', '.join([f'*{previous}'] * 10)}]}}" for previous, name in ALIAS_CHAIN),
    ]
)
REFUSED = {
    "duplicate": (
        "name: a\ndialect: spark\nname: b\n",
        "line 3: duplicate key name, first in line 1. Remove one of them.",
    ),
    "inner duplicate": ("left:\n  table: a\n\n  table: b\n", "line 4: duplicate key table, first in line 2"),
    "quoted duplicate": ("{name: a, 'name': b}", "line 1: duplicate key name, first in line 1"),
    "two merges": ("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n", "line 4: duplicate key <<, first in line 3"),
    "bomb": (BOMB, "more than 10,000 values, aliases included"),
    "merges": (MERGES, "more than 10,000 values, aliases included"),
    "itself": ("a: &a [*a]\n", "line 1: an alias of a node that contains it"),
    "its own key": ("&a a: &b {c: *b}", "line 1: an alias of a node that contains it"),
    "deep": ("[" * 5000, "line 1: more than 20 levels"),
    "large": ("#" * 100_001, "has more than 100,000 bytes. Pipeline files have a page or two."),
    "list as key": ("? [a, b]\n: c\n", "line 1: a key that is not a word"),
    "python": ("!!python/object/apply:os.system ['true']", "line 1: could not determine a constructor for the tag"),
    "huge number": ("a: " + "9" * 5000, "cannot be read as YAML: Exceeds the limit"),
    "no such day": ("a: 2013-02-31", "cannot be read as YAML: day is out of range for month"),
    "binary": (b"\xff\xfe\x00", "cannot be read as YAML: byte 0 is not UTF-8"),
    "key of two lines": ('"a\\n\\e[2J": 1', "a  [2J: unknown field"),
    "two documents": ("a: 1\n---\nb: 2\n", "cannot be read as YAML: line 2: but found another document"),
    "secrets": ("password: hunter2\n- oops", "cannot be read as YAML: line 2: "),
}
NAMES = ["{{ ds }}.yaml", "$(touch x).yaml", "`id`.yml", "a;b.yaml", "-rf.yaml", "a b.yaml", "a\nb.yaml", "{% x %}.yml"]


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_load_invalid_yaml_raises_a_single_line(tmp_path, content, message):
    path = tmp_path / "p.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(PipelineFileError) as raised:
        load_pipeline(path)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("name", NAMES)
def test_load_file_name_with_code_raises(tmp_path, name):
    path = tmp_path / name
    path.write_text(FLIGHTS_WEATHER.read_text())
    with pytest.raises(PipelineFileError) as raised:
        load_pipeline(path)
    assert (
        str(raised.value) == f"{name!r} is not a valid name of a pipeline file. Use letters, digits, _, - and . only."
    )


def test_read_yaml_resolves_small_aliases_and_merges(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("a: &a {x: 1, y: [1, 2]}\nb: *a\nc:\n  <<: *a\n  x: 3\n")
    assert read_yaml(path) == {"a": {"x": 1, "y": [1, 2]}, "b": {"x": 1, "y": [1, 2]}, "c": {"x": 3, "y": [1, 2]}}


def test_read_yaml_numbers_are_decimal(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("[0123, 12:30, -1:30.5, no, 0, -7, 0.5, 0x1F, 1_000]")
    assert read_yaml(path) == ["0123", "12:30", "-1:30.5", "no", 0, -7, 0.5, 31, 1000]


@pytest.mark.parametrize("reference", ["../other/p.yaml", "/etc/hostname", "link.yaml", "notes.txt"])
def test_load_reference_outside_the_allowed_folders_raises(tmp_path, monkeypatch, reference):
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path / "none"))
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    content = read_base()
    for path in (other / "p.yaml", folder / "notes.txt"):
        path.write_text(yaml.safe_dump(content))
    (folder / "link.yaml").symlink_to(other / "p.yaml")
    file = folder / "p.yaml"
    file.write_text(yaml.safe_dump({**content, "compare": {"table": "s", "reference": reference}}))

    with pytest.raises(
        PipelineFileError, match=rf"compare.reference: {reference} is not a pipeline file in .*. Move it there."
    ):
        load_reference(file)


DURATIONS = ["9" * 30 + " days", "9" * 5000 + " s", "1000000 weeks", "-364999 days", "1 hour", "0", "-1 s", "1e400"]
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.dates(),
    st.datetimes(),
    st.text(max_size=20),
    st.sampled_from(DURATIONS),
    st.sampled_from(["rand()", "left_x + 1", "../x", "²", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00"]),
    st.text(string.printable, max_size=30),
    st.binary(max_size=5),
)
MAPPING_KEYS = st.text(max_size=5) | st.integers() | st.none()
ODD_CONTENT = st.recursive(
    ODD_VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MAPPING_KEYS, inner, max_size=3),
    max_leaves=6,
)


def list_paths(content, path=()):
    """Yield the paths of all values in a file's content, including the content itself."""
    yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from list_paths(value, (*path, key))


YAML_TOKENS = [b"&a ", b"*a", b"<<: ", b"!!int ", b"? ", b"{", b"[", b"- "]
OPTIONAL_SETTINGS = {
    "quality": [
        {"type": "expect_column_to_exist", "column": "left_k"},
        {"expect_table_row_count_to_equal": {"value": 1}},
    ],
    "compare": {"table": "s", "reference": "x", "every": "1 day", "budget": {"unexplained": "0.1 %"}},
    "select": {"a": "left_a + 1"},
    "time_bounds": {"earliest": "2000-01-01T00:00:00Z"},
}
VALID = [{**yaml.safe_load(path.read_text()), **OPTIONAL_SETTINGS} for path in FILES]


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.data())
def test_load_odd_content_raises_at_most_a_single_line(tmp_path_factory, data):
    content = yaml.safe_load(yaml.safe_dump(data.draw(st.sampled_from(VALID))))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(sorted(list_paths(content), key=str)))
        odd = data.draw(ODD_CONTENT)
        if not path:
            content = odd
            break
        part = content
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = odd
    _check_error_is_single_line(
        tmp_path_factory, yaml.safe_dump(content, allow_unicode=True).encode("utf-8", "surrogatepass")
    )


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.data())
def test_load_odd_text_raises_at_most_a_single_line(tmp_path_factory, data):
    text = FLIGHTS_WEATHER.read_bytes()
    for _ in range(data.draw(st.integers(1, 5))):
        start, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        inserted = data.draw(st.binary(max_size=5) | st.sampled_from(YAML_TOKENS))
        text = text[:start] + inserted + text[min(end, start + 20) :]
    _check_error_is_single_line(tmp_path_factory, text)


def _check_error_is_single_line(folders, content):
    path = folders.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(content)
    message = ""
    try:
        load_reference(path)
    except PipelineFileError as error:
        message = str(error)
    assert "\n" not in message
