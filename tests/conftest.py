import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession

from tidemark.settings import Pipeline, load_pipeline
from tidemark.spark.session import spark_session

# In the JVM of a subprocess, which lives for seconds, the second compiler costs more than it saves. Without it the code
# cache is small by default, and a full one stops all compiling.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC")

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC")
        session = spark_session("tidemark tests")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def write(spark, lake) -> Callable[..., None]:
    """Append rows, given as tuples and a schema, to an input table of the lake."""

    def append(table: str, rows: list[tuple] | DataFrame, schema: str = "") -> None:
        frame = rows if isinstance(rows, DataFrame) else spark.createDataFrame(rows, schema)
        frame.coalesce(1).write.format("delta").mode("append").save(str(lake / table))

    return append


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[..., Pipeline]:
    """A small pipeline on the arrival clock, with any field changed by its dotted name."""
    return lambda **changes: write_pipeline(tmp_path / "pipeline.yaml", **changes)


def write_pipeline(path: Path, **changes: object) -> Pipeline:
    times = {"event_time": "happened", "arrival": "arrived"}
    content = {
        "name": "orders",
        "dialect": "flink-datastream",
        "left": {"table": "left", "watermark_delay": "10 minutes", **times},
        "right": {"table": "right", "watermark_delay": "0 seconds", **times},
        "join": {"keys": ["k"], "interval": {"lower": "-30 minutes", "upper": "0 seconds"}},
        "slices": {"every": "1 hour", "start": "2024-01-01T00:00:00Z"},
    }
    for name, value in changes.items():
        *parents, last = name.split("__")
        target = content
        for parent in parents:
            target = target[parent]
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_pipeline(path)
