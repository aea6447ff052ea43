"""Writes the test data of one format: `python -m tests.ledger.write_format`, once for each `ledger.FORMAT`.

A lake with two inputs of six hours, and pipelines over them that have committed three, as this version writes them.
"""

import random
import sys
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conftest import write_pipeline
from tidemark.execution.run import execute
from tidemark.ledger.ledger import FORMAT
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.session import spark_session

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
CUT, END = START + timedelta(hours=3), START + timedelta(hours=6)
PIPELINES = {
    "datastream": {},
    "sql": {"dialect": "flink-sql", "join__type": "full"},
    "spark": {
        "dialect": "spark",
        "join": {"keys": ["k"], "type": "left", "window": {"sliding": {"size": "1 hour", "slide": "30 minutes"}}},
    },
}
KEPT = (".yaml", ".json", ".parquet")


def rows_of(chance):
    """Six hours of rows, a tenth of them up to two hours late."""
    for number in range(60):
        arrived = START + timedelta(minutes=6 * number + chance.randrange(6))
        late = timedelta(minutes=chance.randrange(120) if chance.random() < 0.1 else chance.randrange(10))
        yield chance.choice("ab"), max(START, arrived - late), arrived, number


def write(folder: Path) -> None:
    """Make the lake, and pack it."""
    spark, chance = spark_session("tidemark format"), random.Random(FORMAT)
    with TemporaryDirectory() as lake:
        for side in ("left", "right"):
            frame = spark.createDataFrame(list(rows_of(chance)), ROW)
            frame.coalesce(1).write.format("delta").save(f"{lake}/{side}")
        for name, changes in PIPELINES.items():
            pipeline = write_pipeline(Path(lake, f"{name}.yaml"), name=name, **changes)
            plan = make_plan(spark, pipeline, lake, Request(end=CUT, slices_per_job=2))
            list(execute(spark, plan, lambda *_: None))
        folder.mkdir(exist_ok=True)
        with tarfile.open(folder / "lake.tar.gz", "w:gz") as archive:
            for path in sorted(Path(lake).rglob("*")):
                if path.suffix in KEPT and "quality" not in path.parts:
                    archive.add(path, path.relative_to(lake))


if __name__ == "__main__":
    write(Path(__file__).parent / f"format_{FORMAT}")
    sys.exit()
