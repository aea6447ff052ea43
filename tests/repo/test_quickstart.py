"""docs/quickstart.md and the README's example run as written and print what the pages show."""

import re
import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import PROJECT
from tidemark.cli.app import main
from tidemark.config import load_pipeline
from tidemark.delta.table import DeltaTableHandle

QUICKSTART = PROJECT / "docs" / "quickstart.md"
BLOCK = re.compile(r"^```(python|yaml|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read_blocks(page):
    return BLOCK.findall(page.read_text())


def to_pattern(line):
    """Return a pattern of a line of output: spaces may have any length, `...` stands for any text."""
    return r"\s+".join(".*" if word == "..." else re.escape(word) for word in line.split())


def test_quickstart_runs_as_written(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEMARK_LAKE", raising=False)
    missing, tables = [], ""
    for language, block in read_blocks(QUICKSTART):
        if language == "yaml":
            (tmp_path / "orders_payments.yaml").write_text(block)
        elif language == "python":
            exec(compile(block, "quickstart.md", "exec"), {})
            tables += capsys.readouterr().out
        else:
            command, *lines = block.removeprefix("$ tidemark ").splitlines()
            assert main(shlex.split(command)) == 0
            output = capsys.readouterr().out
            missing += [line for line in lines if not re.search(to_pattern(line), output)]

    assert missing == []
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables.splitlines() if "|" in line]
    assert [row[:2] for row in rows[:5]] == [
        ["order_id", "payment_id"],
        ["1", "91"],
        ["2", "92"],
        ["3", "93"],
        ["4", "94"],
    ]
    assert [row[:2] for row in rows[6:]] == [["left", "late"]]


def test_tables_of_csv_and_parquet_files_are_written_as_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").write_text("order_id,ordered_at\n1,2024-01-01T10:05:00Z\n")
    rows = pa.table({"ordered_at": pa.array([0], pa.timestamp("us", "UTC"))})
    for folder in ("shipments", "payments/day=2024-01-01"):
        (tmp_path / "lake" / folder).mkdir(parents=True)
        pq.write_table(rows, tmp_path / "lake" / folder / "a.parquet")

    for block in re.findall(
        r"^```python\n(.*?)^```", (PROJECT / "docs" / "init.md").read_text(), re.MULTILINE | re.DOTALL
    ):
        exec(compile(block, "init.md", "exec"), {})

    columns = {"orders": ["order_id", "ordered_at"], "shipments": ["ordered_at"], "payments": ["ordered_at", "day"]}
    tables = {name: DeltaTableHandle.open(f"lake/{name}") for name in columns}
    assert {name: table.schema.names for name, table in tables.items()} == columns
    assert {table.schema["ordered_at"].dataType.simpleString() for table in tables.values()} == {"timestamp"}


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_page_installs_version_of_delta_whose_jars_are_fetched(page):
    [version] = set(re.findall(r"delta-spark==([\w.]+)", (PROJECT / page).read_text()))

    assert f"-{version}.jar" in (PROJECT / "jars.sha256").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_yaml_blocks_of_page_are_pipeline_files(tmp_path, page):
    blocks = [block for language, block in read_blocks(PROJECT / page) if language == "yaml"]
    file = tmp_path / "pipeline.yaml"

    assert blocks
    for block in blocks:
        file.write_text(block)
        load_pipeline(file)


def test_import_of_the_tutorial_writes_the_file_that_the_page_shows(tmp_path, monkeypatch):
    page = PROJECT / "docs" / "tutorial.md"
    [command] = re.findall(r"^\$ tidemark (import .*)", page.read_text().replace("\\\n", ""), re.MULTILINE)
    shown = next(block for language, block in read_blocks(page) if language == "yaml")
    (tmp_path / "specs").mkdir()
    (tmp_path / "orders_payments.json").symlink_to(PROJECT / "docs/examples/orders_payments.json")
    monkeypatch.chdir(tmp_path)

    assert main(shlex.split(command)) == 0
    assert (tmp_path / "specs" / "orders_payments.yaml").read_text() == shown
