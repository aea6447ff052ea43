"""Pipeline files as YAML: what no file may be, and that no content ends in more than one line."""

import os
import string

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.test_pipeline_file import FILES
from tidemark.config import load_pipeline, load_reference
from tidemark.config.safe_yaml import read_yaml
from tidemark.errors import PipelineFileError

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 20
STEPS = list(zip("abcdef", "bcdefg", strict=True))
BOMB = "\n".join(["a: &a [1, 2]", *(f"{name}: &{name} [{', '.join([f'*{one}'] * 10)}]" for one, name in STEPS)])
MERGES = "\n".join(
    ["a: &a {x: 1}", *(f"{name}: &{name} {{<<: [{', '.join([f'*{one}'] * 10)}]}}" for one, name in STEPS)]
)
REFUSED = {
    "duplicate": ("name: a\ndialect: spark\nname: b\n", "line 3: name stands in line 1 as well; leave one of them"),
    "inner duplicate": ("left:\n  table: a\n\n  table: b\n", "line 4: table stands in line 2 as well"),
    "quoted duplicate": ("{name: a, 'name': b}", "line 1: name stands in line 1 as well"),
    "two merges": ("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n", "line 4: << stands in line 3 as well"),
    "bomb": (BOMB, "more than 10,000 values, aliases included"),
    "merges": (MERGES, "more than 10,000 values, aliases included"),
    "itself": ("a: &a [*a]\n", "line 1: an alias of what it stands in"),
    "its own key": ("&a a: &b {c: *b}", "line 1: an alias of what it stands in"),
    "deep": ("[" * 5000, "line 1: more than 20 levels"),
    "large": ("#" * 100_001, "has more than 100,000 bytes; a pipeline file has a page or two"),
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


@pytest.mark.parametrize(("content", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_plain_yaml_is_refused_in_one_line(tmp_path, content, told):
    path = tmp_path / "p.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PipelineFileError) as raised:
        load_pipeline(path)
    assert told in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_could_be_read_as_code_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[0].read_text())
    with pytest.raises(PipelineFileError) as raised:
        load_pipeline(path)
    assert str(raised.value) == f"{name!r} is no name for a pipeline file; take letters, digits, _, - and ."


def test_aliases_and_merges_of_a_sensible_size_stay(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("a: &a {x: 1, y: [1, 2]}\nb: *a\nc:\n  <<: *a\n  x: 3\n")
    assert read_yaml(path) == {"a": {"x": 1, "y": [1, 2]}, "b": {"x": 1, "y": [1, 2]}, "c": {"x": 3, "y": [1, 2]}}


@pytest.mark.parametrize("told_by", ["../other/p.yaml", "/etc/hostname", "link.yaml", "notes.txt"])
def test_no_file_but_a_pipeline_beside_it_tells_of_a_stream(tmp_path, monkeypatch, told_by):
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path / "none"))
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    content = yaml.safe_load(FILES[0].read_text())
    for path in (other / "p.yaml", here / "notes.txt"):
        path.write_text(yaml.safe_dump(content))
    (here / "link.yaml").symlink_to(other / "p.yaml")
    mine = here / "p.yaml"
    mine.write_text(yaml.safe_dump({**content, "compare": {"with": "s", "told_by": told_by}}))
    with pytest.raises(PipelineFileError, match=rf"compare.told_by: {told_by} is no pipeline file in .*; put it there"):
        load_reference(mine)


DURATIONS = ["9" * 30 + " days", "9" * 5000 + " s", "1000000 weeks", "-364999 days", "1 hour", "0", "-1 s", "1e400"]
ODD = st.one_of(
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
KEYS = st.text(max_size=5) | st.integers() | st.none()
TREES = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def leaves(content, path=()):
    """The places in a file's content, the content itself among them."""
    yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from leaves(value, (*path, key))


SIGNS = [b"&a ", b"*a", b"<<: ", b"!!int ", b"? ", b"{", b"[", b"- "]
MORE = {
    "quality": [
        {"type": "expect_column_to_exist", "column": "left_k"},
        {"expect_table_row_count_to_equal": {"value": 1}},
    ],
    "compare": {"with": "s", "told_by": "x", "every": "1 day", "budget": {"unexplained": "0.1 %"}},
    "select": {"a": "left_a + 1"},
    "guard": {"earliest": "2000-01-01T00:00:00Z"},
}
VALID = [{**yaml.safe_load(path.read_text()), **MORE} for path in FILES]


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.data())
def test_no_content_ends_in_more_than_one_line(tmp_path_factory, data):
    content = yaml.safe_load(yaml.safe_dump(data.draw(st.sampled_from(VALID))))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(sorted(leaves(content), key=str)))
        odd = data.draw(TREES)
        if not path:
            content = odd
            break
        part = content
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = odd
    _ends_in_a_line(tmp_path_factory, yaml.safe_dump(content, allow_unicode=True).encode("utf-8", "surrogatepass"))


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.data())
def test_no_text_does(tmp_path_factory, data):
    text = FILES[0].read_bytes()
    for _ in range(data.draw(st.integers(1, 5))):
        at, until = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        put = data.draw(
            st.binary(max_size=5) | st.sampled_from([b"&a ", b"*a", b"<<: ", b"!!int ", b"? ", b"{", b"[", b"- "])
        )
        text = text[:at] + put + text[min(until, at + 20) :]
    _ends_in_a_line(tmp_path_factory, text)


def _ends_in_a_line(folders, content):
    path = folders.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(content)
    told = ""
    try:
        load_reference(path)
    except PipelineFileError as error:
        told = str(error)
    assert "\n" not in told
