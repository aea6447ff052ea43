"""Describe a run's inputs, output tables and committed slices to OpenLineage.

Imported only when OpenLineage's provider calls. Nothing here opens a table: the provider runs in a fork of the task's
process, which delta-rs does not survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.providers.openlineage.extractors import OperatorLineage
from attrs import define, field
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import OutputDatasetFacet, RunFacet, output_statistics_output_dataset

from tidemark.config import Pipeline, load_pipeline
from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.delta.paths import resolve_path

APPENDED_TABLES = ("emissions", "late", "checkpoint", "ledger")
"""Tables that every run appends to."""
COMPACTED_TABLES = ("emissions", "late", "quality")
"""Tables whose files `tidemark tables compact` merges, beside the output stream."""
_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""OpenLineage's schemes by those of Hadoop."""
Lineage = OperatorLineage[Dataset, RunFacet]


@define
class SlicesRunFacet(RunFacet):
    """OpenLineage facet with the slices that a run committed; the fields of the asset's event (docs/airflow.md)."""

    pipeline: str = field()
    first: str = field()
    end: str = field()
    slices: int = field()
    rerun: int = field()
    amended: int = field()
    emissions: int = field()
    released: int = field()
    seconds: float = field()
    incomplete_slices: int = field()
    left: Mapping[str, int] = field(factory=dict)
    right: Mapping[str, int] = field(factory=dict)
    quality: Mapping[str, int] = field(factory=dict)
    failed_expectations: list[str] = field(factory=list)


def command_lineage(file: Path | str, lake: str, arguments: Iterable[str]) -> Lineage:
    """Return the tables that a command reads and writes.

    Args:
        file: The pipeline file.
        lake: The lake root.
        arguments: The command and its options.
    """
    pipeline, options = load_pipeline(Path(file)), list(arguments)
    command = options[1] if options[0] == "tables" else options[0]
    if command == "compare":
        streamed = [pipeline.compare.table] if pipeline.compare else []
        emissions = _table_dataset_name(pipeline, lake, "emissions")
        agreement = _table_dataset_name(pipeline, lake, "agreement")
        inputs = [emissions, *(_input_dataset_name(lake, name) for name in streamed)]
        return OperatorLineage(inputs=_input_datasets(inputs), outputs=_output_datasets([agreement]))
    if command == "compact":
        tables = _list_written_tables(pipeline, lake, COMPACTED_TABLES)
        return OperatorLineage(inputs=_input_datasets(tables), outputs=_output_datasets(tables))
    if command == "quarantine":
        quarantined, emissions = (_table_dataset_name(pipeline, lake, name) for name in ("quarantined", "emissions"))
        return OperatorLineage(
            inputs=_input_datasets([quarantined]), outputs=_output_datasets([emissions, quarantined])
        )
    if command == "vacuum":
        return OperatorLineage()
    inputs = [_input_dataset_name(lake, source.table) for source in (pipeline.left, pipeline.right)]
    written = () if "--dry-run" in options else APPENDED_TABLES
    return OperatorLineage(
        inputs=_input_datasets(inputs),
        outputs=_output_datasets(_list_written_tables(pipeline, lake, written)),
    )


def _list_written_tables(pipeline: Pipeline, lake: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names of tables of a pipeline, with the output stream if it has one and others are written."""
    optional = [OUTPUT_STREAM] if names and pipeline.output_stream else []
    return [_table_dataset_name(pipeline, lake, name) for name in (*names, *optional)]


def commit_lineage(file: Path | str, lake: str, commits: Mapping[str, Any]) -> Lineage:
    """Return the tables of a run with the rows it added, and a facet with the rest of the summary.

    Args:
        file: The pipeline file.
        lake: The lake root.
        commits: The summary of `status_queries.summarize_commits_since`.
    """
    pipeline = load_pipeline(Path(file))
    late = sum(commits[side][name] for side in ("left", "right") for name in ("late", "rejected"))
    rows = {
        "emissions": commits["emissions"] + commits["released"],
        "late": late,
        "ledger": commits["slices"] + commits["amended"],
    }
    outputs: list[Dataset] = []
    for name in APPENDED_TABLES:
        namespace, path = _table_dataset_name(pipeline, lake, name)
        facets: dict[str, OutputDatasetFacet] = {}
        if name in rows:
            facets["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=rows[name]
            )
        outputs.append(OutputDataset(namespace, path, outputFacets=facets))
    fields = {name: commits[name] for name in SlicesRunFacet.__annotations__ if name in commits}
    facet = SlicesRunFacet(first=commits["from"], end=commits["to"], **fields)
    return OperatorLineage(outputs=outputs, run_facets={"tidemark_slices": facet})


def _input_dataset_name(lake: str, name: str) -> tuple[str, str]:
    """Return OpenLineage's name of an input; catalog tables are named by their path in the lake too."""
    return _dataset_name(resolve_path(lake, name))


def _table_dataset_name(pipeline: Pipeline, lake: str, name: str) -> tuple[str, str]:
    return _dataset_name(f"{resolve_path(lake, pipeline.output)}/{name}")


def _dataset_name(path: str) -> tuple[str, str]:
    """Return namespace and name by OpenLineage's rules for files and objects.

    >>> _dataset_name("s3a://lake/flights"), _dataset_name("/lake/flights")
    (('s3://lake', 'flights'), ('file', '/lake/flights'))
    """
    scheme, is_uri, rest = path.partition("://")
    if not is_uri:
        return "file", path
    host, _, name = rest.partition("/")
    return f"{_SCHEMES.get(scheme, scheme)}://{host}", name or "/"


def _input_datasets(tables: Iterable[tuple[str, str]]) -> list[Dataset]:
    return [InputDataset(namespace, name) for namespace, name in tables]


def _output_datasets(tables: Iterable[tuple[str, str]]) -> list[Dataset]:
    return [OutputDataset(namespace, name) for namespace, name in tables]
