"""Check that docs/tables.md has each column of the tables whose schema is fixed."""

import re

import pyarrow as pa
import pytest

from tests.conftest import PROJECT
from tidemark.comparison import agreement
from tidemark.joins.late_table import LATE_COLUMNS
from tidemark.ledger import ledger_table
from tidemark.quality import results_table, waivers

SCHEMAS = {
    "late": pa.schema([(name, pa.string()) for name in LATE_COLUMNS]),
    "ledger": ledger_table.SCHEMA,
    "quality": results_table.SCHEMA,
    "waivers": waivers.SCHEMA,
    "agreement": agreement.SCHEMA,
}


@pytest.mark.parametrize("table", SCHEMAS)
def test_documented_columns_equal_those_of_the_schema(table):
    text = (PROJECT / "docs" / "tables.md").read_text()
    section = re.search(rf"^## {table}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    documented = [column for cell in cells for column in re.findall(r"`(\w+)`", cell)]

    assert sorted(documented) == sorted(list_columns(SCHEMAS[table]))


def list_columns(schema: pa.Schema | str) -> list[str]:
    if isinstance(schema, str):
        return [column.split()[0] for column in re.split(r",\s+(?!\w+>)", schema.strip())]
    return schema.names
