"""The suite `derived` where every fact holds: kept as Great Expectations keeps it, whose import takes seconds.

Its results are files of the same names and contents; Data Docs show them once somebody asks (`project.catch_up`), or
the next time that Great Expectations is needed all the same.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import PurePosixPath
from typing import Any
from uuid import uuid4

import pandas as pd
import pyarrow.fs as pafs

from tidemark.config import Pipeline
from tidemark.delta.filesystem import file_system, files_under, remove
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.invariants import DERIVED

KEPT_RESULTS = 50
"""How many results Data Docs keep, the newest: their first page reads all of them, in every job."""
SUITE, DATA, ASSET = "derived", "slices", "facts"
_INSTANT = "%Y%m%dT%H%M%S.%fZ"


def suffices(pipeline: Pipeline, facts: pd.DataFrame) -> bool:
    """Whether facts say all: every one holds, and nothing but them is expected, nor anybody told."""
    return not pipeline.quality and not pipeline.notify and not facts[list(DERIVED)].to_numpy(dtype=bool).any()


def results_of(tables: PipelineTables) -> str:
    """The folder of results: SUITE/RUN/INSTANT/BATCH.json."""
    return f"{tables.papers}/uncommitted/validations"


def kept_results(tables: PipelineTables) -> list[PurePosixPath]:
    """The files of all results below their folder, oldest first."""
    found = (PurePosixPath(one) for one in files_under(file_system(results_of(tables))) if one.endswith(".json"))
    return sorted(found, key=lambda file: file.parent.name)


def keep_held(tables: PipelineTables, facts: pd.DataFrame, run: str) -> None:
    """Keep the result of facts, one row per slice, that all hold."""
    now, results = datetime.now(UTC), file_system(results_of(tables))
    folder = f"{SUITE}/{run}/{now.strftime(_INSTANT)}"
    results.create_dir(folder)
    with results.open_output_stream(f"{folder}/{DATA}-{ASSET}.json") as file:
        file.write(json.dumps(_result(len(facts), run, now), indent=2, sort_keys=True).encode())


def forget_old_results(tables: PipelineTables) -> None:
    """Remove all results but the newest `KEPT_RESULTS`; another process may do so at the same time."""
    for file in kept_results(tables)[:-KEPT_RESULTS]:
        remove(results_of(tables), str(file))


def older_results(folder: str, before: datetime) -> dict[str, int]:
    """The files below a folder of results, or of their pages, of before an instant, with their bytes."""
    everything = pafs.FileSelector("", allow_not_found=True, recursive=True)
    files = (info for info in file_system(folder).get_file_info(everything) if info.is_file)
    return {info.path: info.size for info in files if (at := _judged_at(info.path)) is not None and at < before}


def _judged_at(path: str) -> datetime | None:
    with suppress(ValueError):
        return datetime.strptime(PurePosixPath(path).parent.name, _INSTANT).replace(tzinfo=UTC)
    return None


def _result(slices: int, run: str, now: datetime) -> dict[str, Any]:
    told = now.isoformat()
    frame = {"dataframe": "<DATAFRAME>"}
    definition = {"data_connector_name": "fluent", "datasource_name": DATA, "data_asset_name": ASSET}
    return {
        "id": None,
        "suite_name": SUITE,
        "suite_parameters": {},
        "success": True,
        "results": [_held(name, says, slices) for name, says in DERIVED.items()],
        "statistics": {
            "evaluated_expectations": len(DERIVED),
            "successful_expectations": len(DERIVED),
            "unsuccessful_expectations": 0,
            "success_percent": 100.0,
        },
        "meta": {
            "active_batch_definition": {**definition, "batch_identifiers": frame},
            "batch_markers": {"ge_load_time": now.strftime(_INSTANT)},
            "batch_parameters": frame,
            "batch_spec": {"batch_data": "PandasDataFrame"},
            "checkpoint_id": str(uuid4()),
            "great_expectations_version": version("great_expectations"),
            "run_id": {"run_name": run, "run_time": told},
            "validation_id": str(uuid4()),
            "validation_time": told,
        },
    }


def _held(name: str, says: str, slices: int) -> dict[str, Any]:
    nothing = ("partial_unexpected_counts", "partial_unexpected_index_list", "partial_unexpected_list")
    percents = ("missing_percent", "unexpected_percent", "unexpected_percent_nonmissing", "unexpected_percent_total")
    return {
        "success": True,
        "expectation_config": {
            "id": str(uuid4()),
            "type": "expect_column_values_to_be_in_set",
            "kwargs": {"batch_id": f"{DATA}-{ASSET}", "column": name, "value_set": [0]},
            "meta": {},
            "notes": says,
            "severity": "critical",
        },
        "result": {
            "element_count": slices,
            "missing_count": 0,
            "unexpected_count": 0,
            **dict.fromkeys(percents, 0.0),
            **{one: [] for one in nothing},
        },
        "exception_info": {"exception_message": None, "exception_traceback": None, "raised_exception": False},
        "meta": {},
    }
