"""Each attack of tests/repo/attacks.py fails with one line and exit code 2, starts no JVM and writes nothing."""

import pyarrow as pa
import pytest
import yaml

from tests.conftest import write_pipeline
from tests.repo.attacks import ATTACKS, BEGIN, END, PAGE, render_list
from tidemark.cli import app, run
from tidemark.delta.table import create_internal_table
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import SCHEMA
from tidemark.tables.table_changes import TableChanges
from tidemark.watermarks.values import Watermarks

INPUT = pa.schema(
    {"k": pa.string(), "v": pa.int64(), "happened": pa.timestamp("us", "UTC"), "arrived": pa.timestamp("us", "UTC")}
)


@pytest.fixture(scope="module")
def attacked_folder(tmp_path_factory):
    """Create a lake with both inputs, another pipeline's tables and a link to the parent folder with a secret."""
    folder = tmp_path_factory.mktemp("attacked")
    for table in ("lake/left", "lake/right", "secret"):
        create_internal_table(str(folder / table), INPUT)
    (folder / "lake" / "out").symlink_to(folder)
    (folder / "files").mkdir()
    write_pipeline(folder / "secret.yaml")
    theirs = Ledger.from_pipeline(write_pipeline(folder / "files" / "theirs.yaml", name="theirs"), str(folder / "lake"))
    entry = Entry(0, "run", 1, 1, "{}", (0, 0), Watermarks(), (0, 0), (0, 0), drained=False)
    counts = dict.fromkeys(("read", "carried_in", "late", "rejected", "evicted", "carried_out"), 0)
    row = {**entry.to_row(theirs.grid), "left": counts, "right": counts, "pipeline": "theirs"}
    create_internal_table(theirs.tables.ledger, SCHEMA)
    theirs.commit([row], 1, TableChanges({}), {}, {})
    return folder


def list_files(folder):
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture
def no_spark(monkeypatch):
    """Replace the session by one that fails on any SQL and has an empty catalog."""

    class Session:
        def sql(self, statement):
            raise AssertionError(statement)

    monkeypatch.setattr(run, "get_spark_session", lambda *_, **__: Session())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_ends_with_error_line_and_writes_nothing(attack, attacked_folder, no_spark, capsys, monkeypatch):
    file = attacked_folder / "files" / attack.file
    content = attack.content
    if content is None:
        content = yaml.safe_dump(
            create_settings((attacked_folder / "files" / "theirs.yaml").read_text(), attack.changes)
        )
    file.write_text(content)
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(attacked_folder / "files"))
    monkeypatch.setenv("COLUMNS", "10000")
    before = list_files(attacked_folder)
    command = ["compare", "run"] if "compare" in attack.changes else ["run"]

    code = app.main([*command, *attack.options, "--lake", str(attacked_folder / "lake"), "--", str(file)])

    error = capsys.readouterr().err.strip()
    file.unlink()
    assert (code, attack.expected_message in error) == (2, True), error
    assert "\n" not in error
    assert list_files(attacked_folder).keys() == before.keys() - {file}


def create_settings(text, changes):
    """Create the settings of a pipeline `orders` that are valid except for the changes."""
    content = {**yaml.safe_load(text), "name": "orders"}
    for name, value in changes.items():
        *parents, last = name.split("__")
        part = content
        for parent in parents:
            part = part[parent]
        part[last] = value
    return content


def test_threat_model_lists_each_attack():
    page = PAGE.read_text()

    attacks = page[page.index(BEGIN) : page.index(END) + len(END)]

    assert attacks == render_list(), "run: python -m tests.repo.attacks"


def test_attack_names_are_unique():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) > 40
