"""Each attack of tests/repo/attacks.py fails with one line and exit code 2, starts no JVM and writes nothing."""

import pyarrow as pa
import pytest
import yaml

from tests.conftest import write_pipeline
from tests.repo.attacks import ATTACKS, BEGIN, END, PAGE, table
from tidemark.cli import app
from tidemark.delta.table import create_internal_table
from tidemark.ledger.ledger import SCHEMA, Entry, Ledger
from tidemark.tables.table_changes import TableChanges
from tidemark.watermarks.watermarks import Watermarks

INPUT = pa.schema(
    {"k": pa.string(), "v": pa.int64(), "happened": pa.timestamp("us", "UTC"), "arrived": pa.timestamp("us", "UTC")}
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A lake with both inputs, another pipeline's tables and a link to a place outside, which has a secret."""
    place = tmp_path_factory.mktemp("attacked")
    for table_ in ("lake/left", "lake/right", "secret"):
        create_internal_table(str(place / table_), INPUT)
    (place / "lake" / "out").symlink_to(place)
    (place / "files").mkdir()
    write_pipeline(place / "secret.yaml")
    theirs = Ledger.from_pipeline(write_pipeline(place / "files" / "theirs.yaml", name="theirs"), str(place / "lake"))
    entry = Entry(0, "run", 1, 1, "{}", (0, 0), Watermarks(), (0, 0), (0, 0), drained=False)
    counts = dict.fromkeys(("read", "carried_in", "late", "rejected", "evicted", "carried_out"), 0)
    row = {**theirs.row(entry), "left": counts, "right": counts, "pipeline": "theirs"}
    create_internal_table(theirs.tables.ledger, SCHEMA)
    theirs.commit([row], 1, TableChanges({}), {}, {})
    return place


def listed(place):
    return {path: path.lstat().st_mtime_ns for path in place.rglob("*")}


@pytest.fixture
def no_spark(monkeypatch):
    """A session of which nothing can be asked but what the catalog has, which is nothing."""

    class Session:
        def sql(self, text):
            raise AssertionError(text)

    monkeypatch.setattr(app, "get_spark_session", lambda *_, **__: Session())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_ends_with_error_line_and_writes_nothing(attack, place, no_spark, capsys, monkeypatch):
    file = place / "files" / attack.file
    content = attack.content
    if content is None:
        content = yaml.safe_dump(changed((place / "files" / "theirs.yaml").read_text(), attack.changes))
    file.write_text(content)
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(place / "files"))
    monkeypatch.setenv("COLUMNS", "10000")
    before = listed(place)
    command = "compare" if "compare" in attack.changes else "run"
    code = app.main([command, *attack.options, "--lake", str(place / "lake"), "--", str(file)])
    told = capsys.readouterr().err.strip()
    file.unlink()
    assert (code, attack.told in told) == (2, True), told
    assert "\n" not in told
    assert listed(place).keys() == before.keys() - {file}


def changed(text, changes):
    """The file of pipeline `orders`, sound but for the changes."""
    content = {**yaml.safe_load(text), "name": "orders"}
    for name, value in changes.items():
        *parents, last = name.split("__")
        part = content
        for parent in parents:
            part = part[parent]
        part[last] = value
    return content


def test_threat_model_table_lists_each_attack():
    page = PAGE.read_text()
    written = page[page.index(BEGIN) : page.index(END) + len(END)]
    assert written == table(), "run: python -m tests.repo.attacks"


def test_attack_names_are_unique():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) > 40
