"""Data Docs show values and names of columns as text."""

from pathlib import Path

import pandas as pd

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.gx.data_docs import get_docs_index, update_data_docs
from tidemark.quality.gx.project import import_gx, open_project
from tidemark.quality.gx.suites import run_suite

VALUE = "<svg onload=alert(1)>"
COLUMN = "left_<img src=x>"


def test_pages_escape_values_and_column_names_once(tmp_path, caplog):
    gx = import_gx().expectations
    rows = pd.DataFrame({"s": [VALUE, VALUE, "b", "$column"], COLUMN: [1, 2, 3, 3]})
    expectations = [
        gx.ExpectColumnValuesToBeInSet(column="s", value_set=["a"]),
        gx.ExpectColumnMostCommonValueToBeInSet(column="s", value_set=["q"]),
        gx.ExpectColumnDistinctValuesToBeInSet(column="s", value_set=["b"]),
        gx.ExpectColumnValuesToMatchRegex(column="s", regex="(?<!x)$"),
        gx.ExpectColumnValuesToBeUnique(column=COLUMN),
    ]
    tables = PipelineTables(str(tmp_path))
    with open_project(tables) as context:
        asset = context.data_sources.add_pandas("pandas").add_dataframe_asset("rows")
        result_format = {"result_format": "SUMMARY", "partial_unexpected_count": 5}
        run_suite(context, "suite", asset, rows, expectations, "run", result_format)

    update_data_docs(tables)

    [file] = Path(get_docs_index(tables)).parent.glob("validations/**/*.html")
    page = file.read_text()
    assert not [text for text in ("<svg onload", "<img src=x", "&amp;lt;") if text in page]
    assert all(text in page for text in ("&lt;svg onload=alert(1)&gt;", "left_&lt;img src=x&gt;", "(?&lt;!x)&#36;"))
    assert "Exception" not in caplog.text
