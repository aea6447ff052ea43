"""Export the expectations of pipeline files as a project of Great Expectations in files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tidemark.config import Expectation, Pipeline
from tidemark.config.allowed_expectations import ROWS
from tidemark.errors import UserError
from tidemark.formatting import ToDict
from tidemark.quality.gx.expectations import build_expectation
from tidemark.quality.gx.project import PROJECT_LOCK, import_gx
from tidemark.quality.gx.suites import get_result_format

BATCH = "rows"
"""Name of the batch definition of each data asset: the rows that a caller passes."""


@dataclass(frozen=True)
class ExportedSuite(ToDict):
    """Expectations of a pipeline file with equal scope, exported as suite, validation definition and checkpoint."""

    name: str
    """Name of all three."""
    rows: str
    """Rows to validate, as in `Expectation.on`."""
    per: str
    """Unit of the rows, as in `Expectation.per`."""
    expectations: int


def export_project(folder: str, pipelines: Sequence[Pipeline]) -> list[ExportedSuite]:
    """Write a project of Great Expectations into a new or empty folder. Spark does not start.

    Each pipeline is a data source, whose assets are data frames: the project validates rows that a caller passes, such
    as those of a slice. Expectations on `history` are left out, because the ledger has their values.

    Raises:
        UserError: The folder is not empty, two pipelines have the same name, or there is nothing to export.
    """
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{folder} is not an empty folder. Name a new one.")
    names = [pipeline.name for pipeline in pipelines]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"Pipeline {repeated[0]} is given twice. Name each pipeline once.")
    if not any(_list_exported(pipeline) for pipeline in pipelines):
        raise UserError(f"{', '.join(names)}: no expectation is on rows, so there is nothing to export.")
    gx = import_gx()
    path.mkdir(parents=True, exist_ok=True)
    with PROJECT_LOCK:
        context = gx.get_context(mode="file", project_root_dir=path)
        return [suite for pipeline in pipelines for suite in _export_pipeline(context, pipeline)]


def _list_exported(pipeline: Pipeline) -> list[Expectation]:
    return [expectation for expectation in pipeline.quality if expectation.on != "history"]


def _export_pipeline(context: Any, pipeline: Pipeline) -> Iterable[ExportedSuite]:
    gx = import_gx()
    exported = sorted(_list_exported(pipeline), key=_get_scope)
    assets = _add_assets(context, pipeline.name, dict.fromkeys(expectation.on for expectation in exported))
    for (on, per), group in groupby(exported, _get_scope):
        expectations, name = [_convert(expectation) for expectation in group], f"{pipeline.name}_{on}_per_{per}"
        suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations))
        batch = assets.get_asset(on).get_batch_definition(BATCH)
        definition = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
        context.checkpoints.add(
            gx.Checkpoint(
                name=name,
                validation_definitions=[definition],
                actions=[gx.checkpoint.UpdateDataDocsAction(name="data_docs")],
                result_format=get_result_format(pipeline),
            )
        )
        yield ExportedSuite(name, on, per, len(expectations))


def _get_scope(expectation: Expectation) -> tuple[str, str]:
    return expectation.on, expectation.per


def _add_assets(context: Any, name: str, rows: Iterable[str]) -> Any:
    """Add a data source with a data frame asset for each kind of rows. The public method would start Spark."""
    gx = import_gx()
    batch, source = gx.core.batch_definition.BatchDefinition, gx.datasource.fluent.spark_datasource
    assets = [source.DataFrameAsset(name=on, batch_definitions=[batch(name=BATCH, partitioner=None)]) for on in rows]
    return context._add_fluent_datasource(source.SparkDatasource(name=name, assets=assets))  # noqa: SLF001


def _convert(expectation: Expectation) -> Any:
    """Build an expectation that Great Expectations knows without Tidemark."""
    built = build_expectation(expectation)
    if expectation.type != ROWS:
        return built
    query = build_rule_query(**expectation.kwargs)
    fields = {"severity": built.severity, "notes": built.notes, "meta": built.meta, "description": built.description}
    return import_gx().expectations.UnexpectedRowsExpectation(unexpected_rows_query=query, **fields)


def build_rule_query(that: str, row_condition: str | None = None, mostly: float = 1) -> str:
    """Build the query of a rule on rows: without a result if rows meet it, as `UnexpectedRowsExpectation` requires.

    >>> build_rule_query("a > 0", "b")
    'SELECT * FROM {batch} WHERE (b) AND NOT (a > 0)'
    """
    # Great Expectations formats the query, in which only {batch} is a field.
    that, condition = (sql.replace("{", "{{").replace("}", "}}") for sql in (that, row_condition or "true"))
    failing = f"NOT ({that})"
    if mostly >= 1:
        return f"SELECT * FROM {{batch}} WHERE ({condition}) AND {failing}"  # noqa: S608 - users' own SQL, checked
    share = f"avg(CASE WHEN {failing} THEN 0 ELSE 1 END)"
    return f"SELECT * FROM (SELECT {share} AS passing FROM {{batch}} WHERE {condition}) WHERE passing < {mostly}"  # noqa: S608
