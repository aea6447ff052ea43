"""Tidemark itself: watermarks, join, late rows, checkpoint, quality gate and ledger, all slices in one Spark job."""

from __future__ import annotations

from pathlib import Path

import yaml
from deltalake import DeltaTable

from benchmarks.peers.peer import Peer, Work
from tidemark.cli.status_summary import summarize_status
from tidemark.config import Pipeline, load_pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.execution.run import execute
from tidemark.planning.job_sizing import MAX_SLICES
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.session import get_spark_session


class Tidemark(Peer):
    """`tidemark run` over all input rows."""

    name = "tidemark"
    description = "Tidemark: watermarks, join, late rows, state, quality gate and ledger, all slices in one Spark job"

    def run(self, work: Work) -> None:
        """Plan and run all slices."""
        spark = get_spark_session("benchmark")
        plan = create_plan(spark, create_pipeline(work), str(work.lake), Request(slices_per_job=MAX_SLICES))
        for _ in execute(spark, plan, lambda *_: None):
            pass

    def count_output(self, work: Work) -> dict[str, float]:
        """Return counts of the ledger, final `state_rows`, and bytes: `state_bytes` of all slices, `ledger_bytes`."""
        status, tables = summarize_status(create_pipeline(work), str(work.lake)), PipelineTables(work.output_path)
        state = DeltaTable(tables.checkpoint).get_add_actions(flatten=True)
        return {
            "rows": status.emissions,
            "late": status.left.late + status.right.late,
            "slices": status.slices,
            "state_rows": status.left.carried + status.right.carried,
            "state_bytes": sum(state["size_bytes"].to_pylist()),
            "ledger_bytes": sum(file.stat().st_size for file in Path(tables.ledger).rglob("*") if file.is_file()),
        }


def create_pipeline(work: Work) -> Pipeline:
    """Create the case's pipeline with its own output."""
    path = work.lake / f"{work.output}.yaml"
    path.write_text(yaml.safe_dump({**work.case.pipeline_settings, "output": work.output}), encoding="utf-8")
    return load_pipeline(path)
