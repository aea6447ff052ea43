"""Add a minimal example of a chain to the test file of its last pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidemark.comparison.chain_example import ChainExample
from tidemark.comparison.minimal_test_case import describe_case, name_case
from tidemark.errors import UserError
from tidemark.pipeline_tests.chain import TESTED, format_name
from tidemark.pipeline_tests.new_case import ArrivedRow, NewCase, create_new_rows, draft_case
from tidemark.timegrid.time_columns import to_plain_row


def write_chain_test_case(example: ChainExample, table: str, pipeline_file: Path) -> int:
    """Add a minimal example of a chain to the test file of its last pipeline, with the rows that the chain emits.

    Args:
        example: The example.
        table: Table of the stream, for the description.
        pipeline_file: File of the last pipeline.

    Returns:
        The number of given rows.

    Raises:
        UserError: The rows do not show the difference in the order of their arrivals, or the file is invalid.
    """
    tables = example.tables
    name = name_case(example.number)
    pipeline, spark = tables.chain.pipeline, tables.views[TESTED].spark
    rows = list(create_new_rows(_list_arrived_rows(example)))
    types = {key: {field.name: field.dataType for field in schema} for key, schema in tables.schemas.items()}
    description = describe_case(example.cause, pipeline, table)
    case = NewCase(name, description, rows, types, list(_list_sections(example)))
    draft = draft_case(spark, pipeline, pipeline_file, case)
    if not example.check.shows(draft.output.rows["emissions"], draft.output.types["emissions"]):
        raise UserError(
            f"{name}: rows arrive at the same time, and show the difference in one order only. "
            "Choose another difference."
        )
    draft.write()
    return len(rows)


def _list_arrived_rows(example: ChainExample) -> Iterator[ArrivedRow]:
    """Yield the rows in order of arrival."""
    tables = example.tables
    sources = {source.name: source for source in tables.chain.inputs}
    for row in example.events:
        source = sources[row.input_name]
        grid = tables.views[source.join].grid
        values = to_plain_row(row.values, tables.schemas[source.name])
        arrival = getattr(source.pipeline, source.side).arrival
        yield ArrivedRow(source.name, values, arrival, grid, grid.number_at(row.clock))


def _list_sections(example: ChainExample) -> Iterator[str]:
    """Yield the sections to expect: all emissions and late rows of the last join, and late rows of the others."""
    chain = example.tables.chain
    yield from ("emissions", "late")
    if chain.pipeline.join.type != "inner":
        yield "padded"
    yield from (format_name(join, "late") for join in chain.upstream_names)
