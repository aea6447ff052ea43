"""Columns of test cases follow from the pipeline, the given and the expected rows, and their types from the values."""

from dataclasses import replace
from decimal import Decimal

import pytest
import yaml
from pyspark.sql import types as T

from tests.conftest import write_chain, write_pipeline
from tidemark.errors import PipelineFileError
from tidemark.pipeline_tests.case_file import read_case_file
from tidemark.pipeline_tests.chain import Chain
from tidemark.pipeline_tests.columns import convert_row, convert_value, create_schemas
from tidemark.pipeline_tests.new_case import select_relevant_columns

TIMES = ("happened", "arrived")


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a case with these left and right rows and expected emissions."""
    (tmp_path / "tests").mkdir()

    def read(left, right=(), emissions=(), **pipeline):
        write_pipeline(tmp_path / "orders.yaml", **pipeline)
        case = {"given": [{"left": left}, {"right": list(right)}], "expect": {"emissions": list(emissions)}}
        (tmp_path / "tests" / "orders.yaml").write_text(yaml.safe_dump({"cases": {"first": case}}))
        return read_case_file(tmp_path / "orders.yaml")

    return read


def find_types(file):
    """Return the types of the columns of each input that are no times."""
    schemas = create_schemas(None, file, file.cases[0])
    return {
        side: {
            field.name: field.dataType.simpleString() for field in schema if field.name not in ("happened", "arrived")
        }
        for side, schema in schemas.items()
    }


@pytest.mark.parametrize(
    ("keys", "left", "right"),
    [
        ([{"left": "Order ID", "right": "order-id"}], "Order ID", "order-id"),
        ([{"left": "customer.id", "right": "c.id"}], "customer.id", "c.id"),
    ],
)
def test_create_schemas_key_with_any_name_is_a_column(read, keys, left, right):
    file = read([{left: 1}], [{right: 1}], [{f"left_{left}": 1}], join__keys=keys)

    assert find_types(file) == {"left": {left: "bigint"}, "right": {right: "bigint"}}


def test_create_schemas_sql_with_other_case_reads_the_given_column(read):
    file = read(
        [{"k": "a", "status": "ok"}],
        emissions=[{"left_status": "ok"}],
        left__where="Status = 'ok'",
        join__condition="LEFT_STATUS <> 'late' OR right_V > 1",
    )

    assert find_types(file) == {"left": {"k": "string", "status": "string"}, "right": {"k": "string", "V": "string"}}


def test_select_relevant_columns_of_chain_have_the_names_of_the_table(tmp_path):
    chain = Chain.from_pipeline(write_chain(tmp_path))
    reader = chain.pipeline.model_copy(update={"explode": "array(LEFT_LEFT_STATUS)"})
    schema = T.StructType([T.StructField(name, T.StringType()) for name in ("k", "Status", "note", "happened")])

    [orders] = [source for source in chain.inputs if source.name == "orders.left"]
    selected = select_relevant_columns(Chain({**chain.joins, "": reader}), orders, schema)

    assert selected.names == ["k", "Status", "happened"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["2013-01-01T10:00Z", "2013-01-01T10:00:00Z"], "timestamp"),
        (["2013-01-01 10:00:00.5+01:00", None], "timestamp"),
        (["2013-01-01T10:00"], "string"),
        (["at 2013-01-01T10:00Z"], "string"),
    ],
)
def test_create_schemas_text_that_is_an_instant_is_a_timestamp(read, values, dtype):
    file = read([{"k": "a", "v": value} for value in values], emissions=[{"left_v": None}])

    assert find_types(file)["left"]["v"] == dtype


def test_create_schemas_instants_and_text_need_a_declared_type(read):
    file = read([{"v": "2013-01-01T10:00Z"}, {"v": "later"}], emissions=[{"left_v": None}])

    with pytest.raises(PipelineFileError, match="the type of left column v does not follow from its values"):
        create_schemas(None, file, file.cases[0])


def test_convert_row_csv_cell_keeps_its_text_in_columns_of_text_and_decimals(read, tmp_path):
    (tmp_path / "tests" / "rows.csv").write_text("zip,note,price,n\n12345,NO,0.12345678901234567890,1\ntrue,,,\n")
    types = {"zip": T.StringType(), "note": T.StringType(), "price": T.DecimalType(38, 20), "n": T.LongType()}
    schema = T.StructType([T.StructField(name, dtype) for name, dtype in types.items()])

    file = read("rows.csv")
    first, second = (convert_row(row, schema, {}) for row in file.cases[0].given)

    assert (first["zip"], first["note"], str(first["price"]), first["n"]) == (
        "12345",
        "NO",
        "0.12345678901234567890",
        1,
    )
    assert second == {"zip": "true", "note": None, "price": None, "n": None}


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("1", T.DecimalType(38, 30)),
        ("12345678901234567890123456789012", T.DecimalType(38, 0)),
        ("123456789.12345678901234567890", T.DecimalType(38, 20)),
    ],
)
def test_convert_value_long_decimals_are_exact(text, dtype):
    assert convert_value(text, dtype) == Decimal(text)


@pytest.mark.parametrize("text", ["123.45", "1.234"])
def test_convert_value_decimal_with_more_digits_than_its_type_is_refused(text):
    with pytest.raises(ValueError, match=rf"'{text}' has more digits than decimal\(4,2\)"):
        convert_value(text, T.DecimalType(4, 2))


def test_create_schemas_of_selected_cases_has_the_types_of_the_whole_file(tmp_path, read):
    read([{"k": "a", "note": "x"}])
    path = tmp_path / "tests" / "orders.yaml"
    content = yaml.safe_load(path.read_text())
    content["cases"]["second"] = {"given": [{"left": [{"k": "b"}]}], "expect": {"emissions": [{"left_note": "x"}]}}
    path.write_text(yaml.safe_dump(content))

    file = replace(read_case_file(tmp_path / "orders.yaml"), selection=frozenset({"first"}))

    assert [case.name for case in file.selected_cases] == ["first"]
    assert find_types(file)["left"] == {"k": "string", "note": "string"}
