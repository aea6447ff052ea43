"""What OpenLineage is told of a run: its inputs, its tables, and what was committed.

Imported when OpenLineage's provider asks, and without that never. Nothing here opens a table: the provider asks in a
fork of the task's process, and delta-rs does not survive one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow.providers.openlineage.extractors import OperatorLineage
from attrs import define, field
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import OutputDatasetFacet, RunFacet, output_statistics_output_dataset

from tidemark.config import Pipeline, load_pipeline
from tidemark.delta.paths import place

COMMITTED = ("emissions", "late", "checkpoint", "ledger")
"""Tables that every run adds to; others come and go with what is asked of a pipeline."""
REWRITTEN = ("emissions", "late", "quality")
"""Tables whose files `tidemark compact` merges."""
_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""What OpenLineage calls a store that Hadoop calls otherwise."""
Lineage = OperatorLineage[Dataset, RunFacet]


@define
class SlicesRunFacet(RunFacet):
    """What a run has committed, as the event of the asset tells it: docs/airflow.md."""

    pipeline: str = field()
    first: str = field()
    end: str = field()
    slices: int = field()
    again: int = field()
    emissions: int = field()
    seconds: float = field()
    incomplete: int = field()
    left: Mapping[str, int] = field(factory=dict)
    right: Mapping[str, int] = field(factory=dict)
    quality: Mapping[str, int] = field(factory=dict)
    findings: list[str] = field(factory=list)


def of_command(file: Path | str, lake: str, arguments: Iterable[str]) -> Lineage:
    """What a command over slices reads and writes, by its arguments."""
    pipeline, (command, *options) = load_pipeline(Path(file)), list(arguments)
    if command == "compare":
        streamed = [pipeline.compare.table] if pipeline.compare else []
        inputs = [_table(pipeline, lake, "emissions"), *(_named(lake, name) for name in streamed)]
        return OperatorLineage(inputs=_inputs(inputs), outputs=_outputs([_table(pipeline, lake, "agreement")]))
    if command == "compact":
        tables = [_table(pipeline, lake, name) for name in REWRITTEN]
        return OperatorLineage(inputs=_inputs(tables), outputs=_outputs(tables))
    if command == "vacuum":
        return OperatorLineage()
    inputs = [_named(lake, source.table) for source in (pipeline.left, pipeline.right)]
    written = () if "--dry-run" in options else COMMITTED
    return OperatorLineage(inputs=_inputs(inputs), outputs=_outputs(_table(pipeline, lake, name) for name in written))


def of_committed(file: Path | str, lake: str, found: Mapping[str, Any]) -> Lineage:
    """The tables with how many rows a run has added (`look.committed_since`), and what else is known of it."""
    pipeline = load_pipeline(Path(file))
    late = sum(found[side][name] for side in ("left", "right") for name in ("late", "rejected"))
    rows = {"emissions": found["emissions"], "late": late, "ledger": found["slices"]}
    outputs: list[Dataset] = []
    for name in COMMITTED:
        namespace, path = _table(pipeline, lake, name)
        facets: dict[str, OutputDatasetFacet] = {}
        if name in rows:
            facets["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=rows[name]
            )
        outputs.append(OutputDataset(namespace, path, outputFacets=facets))
    told = {name: found[name] for name in SlicesRunFacet.__annotations__ if name in found}
    facet = SlicesRunFacet(first=found["from"], end=found["to"], **told)
    return OperatorLineage(outputs=outputs, run_facets={"tidemark_slices": facet})


def _named(lake: str, name: str) -> tuple[str, str]:
    """An input as OpenLineage names it; a table that is in a catalog alone has its path in the lake here, too."""
    return _dataset(place(lake, name))


def _table(pipeline: Pipeline, lake: str, name: str) -> tuple[str, str]:
    return _dataset(f"{place(lake, pipeline.output)}/{name}")


def _dataset(path: str) -> tuple[str, str]:
    """Namespace and name, by OpenLineage's rules for files and objects.

    >>> _dataset("s3a://lake/flights"), _dataset("/lake/flights")
    (('s3://lake', 'flights'), ('file', '/lake/flights'))
    """
    scheme, is_uri, rest = path.partition("://")
    if not is_uri:
        return "file", path
    host, _, name = rest.partition("/")
    return f"{_SCHEMES.get(scheme, scheme)}://{host}", name or "/"


def _inputs(found: Iterable[tuple[str, str]]) -> list[Dataset]:
    return [InputDataset(namespace, name) for namespace, name in found]


def _outputs(found: Iterable[tuple[str, str]]) -> list[Dataset]:
    return [OutputDataset(namespace, name) for namespace, name in found]
