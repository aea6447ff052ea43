"""A lake with the pipeline `orders`."""

from dataclasses import dataclass
from pathlib import Path

from tidemark.cli.app import main
from tidemark.config import Pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class OrdersLake:
    spark: object
    root: Path
    file: Path
    settings: Pipeline

    @property
    def tables(self):
        return PipelineTables(f"{self.root}/orders")

    @property
    def grid(self):
        return Grid.from_config(self.settings.slices)

    def log(self, name="emissions"):
        return DeltaTableHandle.open(getattr(self.tables, name))

    def run(self, settings=None, **request):
        """Plan and run, by default one slice per job; return the result of each job."""
        request = Request(**{"slices_per_job": 1, **request})
        plan = create_plan(self.spark, settings or self.settings, str(self.root), request)
        return list(execute(self.spark, plan, lambda *_: None))

    def command(self, name, *options):
        """Run a command of the CLI on the lake; return its exit code."""
        first, *more = name.split()
        return main([first, *more, str(self.file), "--lake", str(self.root), *options])
