"""Store the result of passed invariants without importing Great Expectations, which takes seconds.

File names and contents equal those of Great Expectations. Data Docs show them after `data_docs.update_data_docs`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import pandas as pd

from tidemark.config import Pipeline
from tidemark.delta.filesystem import open_filesystem
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.gx.result_store import INSTANT_FORMAT, get_results_folder
from tidemark.quality.invariants import INVARIANTS

SUITE, DATA_SOURCE, ASSET = "invariants", "slices", "invariants"
"""Names in Great Expectations: the suite, and the source and asset of its data."""


def can_skip_gx(pipeline: Pipeline, invariants: pd.DataFrame) -> bool:
    """Return True if all invariants hold, and the pipeline has neither expectations nor receivers of notifications."""
    return not pipeline.quality and not pipeline.notify and not invariants[list(INVARIANTS)].to_numpy(dtype=bool).any()


def store_passed_result(tables: PipelineTables, invariants: pd.DataFrame, run: str) -> None:
    """Store the result of invariants, one row per slice, that all hold."""
    now, results = datetime.now(UTC), open_filesystem(get_results_folder(tables))
    folder = f"{SUITE}/{run}/{now.strftime(INSTANT_FORMAT)}"
    results.create_dir(folder)
    with results.open_output_stream(f"{folder}/{DATA_SOURCE}-{ASSET}.json") as file:
        file.write(json.dumps(_create_suite_result(len(invariants), run, now), indent=2, sort_keys=True).encode())


def _create_suite_result(slices: int, run: str, now: datetime) -> dict[str, Any]:
    time = now.isoformat()
    frame = {"dataframe": "<DATAFRAME>"}
    definition = {"data_connector_name": "fluent", "datasource_name": DATA_SOURCE, "data_asset_name": ASSET}
    return {
        "id": None,
        "suite_name": SUITE,
        "suite_parameters": {},
        "success": True,
        "results": [_create_result(name, sentence, slices) for name, sentence in INVARIANTS.items()],
        "statistics": {
            "evaluated_expectations": len(INVARIANTS),
            "successful_expectations": len(INVARIANTS),
            "unsuccessful_expectations": 0,
            "success_percent": 100.0,
        },
        "meta": {
            "active_batch_definition": {**definition, "batch_identifiers": frame},
            "batch_markers": {"ge_load_time": now.strftime(INSTANT_FORMAT)},
            "batch_parameters": frame,
            "batch_spec": {"batch_data": "PandasDataFrame"},
            "checkpoint_id": str(uuid4()),
            "great_expectations_version": version("great_expectations"),
            "run_id": {"run_name": run, "run_time": time},
            "validation_id": str(uuid4()),
            "validation_time": time,
        },
    }


def _create_result(name: str, sentence: str, slices: int) -> dict[str, Any]:
    lists = ("partial_unexpected_counts", "partial_unexpected_index_list", "partial_unexpected_list")
    percents = ("missing_percent", "unexpected_percent", "unexpected_percent_nonmissing", "unexpected_percent_total")
    return {
        "success": True,
        "expectation_config": {
            "id": str(uuid4()),
            "type": "expect_column_values_to_be_in_set",
            "kwargs": {"batch_id": f"{DATA_SOURCE}-{ASSET}", "column": name, "value_set": [0]},
            "meta": {},
            "notes": sentence,
            "severity": "critical",
        },
        "result": {
            "element_count": slices,
            "missing_count": 0,
            "unexpected_count": 0,
            **dict.fromkeys(percents, 0.0),
            **{key: [] for key in lists},
        },
        "exception_info": {"exception_message": None, "exception_traceback": None, "raised_exception": False},
        "meta": {},
    }
