"""Tidemark itself: watermarks, join, late rows, checkpoint, quality gate and ledger, all slices in one Spark job."""

from __future__ import annotations

from pathlib import Path

import yaml
from deltalake import DeltaTable

from benchmarks.peers.peer import Peer, Work
from tidemark.cli.status import status_of
from tidemark.config import Pipeline, load_pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.execution.run import execute
from tidemark.planning.job_sizing import MOST_SLICES
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.session import spark_session


class Tidemark(Peer):
    """`tidemark run` over all that the inputs have."""

    name = "tidemark"
    told = "Tidemark: watermarks, join, late rows, state, quality gate and ledger, all slices in one Spark job"

    def run(self, work: Work) -> None:
        """Plan and run."""
        spark = spark_session("benchmark")
        plan = make_plan(spark, pipeline(work), str(work.lake), Request(slices_per_job=MOST_SLICES))
        for _ in execute(spark, plan, lambda *_: None):
            pass

    def counted(self, work: Work) -> dict[str, float]:
        """Its ledger's counts, `state_rows` at the end, and in bytes `state_bytes` of all slices and `ledger_bytes`."""
        status, tables = status_of(pipeline(work), str(work.lake)), PipelineTables(work.out)
        state = DeltaTable(tables.checkpoint).get_add_actions(flatten=True)
        return {
            "rows": status.emissions,
            "late": status.left.late + status.right.late,
            "slices": status.slices,
            "state_rows": status.left.carried + status.right.carried,
            "state_bytes": sum(state["size_bytes"].to_pylist()),
            "ledger_bytes": sum(file.stat().st_size for file in Path(tables.ledger).rglob("*") if file.is_file()),
        }


def pipeline(work: Work) -> Pipeline:
    """The case's pipeline, with an output of its own."""
    path = work.lake / f"{work.output}.yaml"
    path.write_text(yaml.safe_dump({**work.case.pipeline, "output": work.output}), encoding="utf-8")
    return load_pipeline(path)
