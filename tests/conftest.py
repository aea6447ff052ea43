"""Fixtures of all tests: a shared Spark session, a lake, input tables and pipelines."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from tests.browser import Browser, is_browser_installed, open_headless_browser
from tests.tiers import get_order, is_unit, name_promise
from tidemark.config import Pipeline, load_pipeline
from tidemark.spark.session import get_spark_session
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

# Processes of tests, and runs of some minutes, end before the second JIT compiler has paid off. Only long runs, which
# set TIDEMARK_TEST_LONG, use it: after some five minutes of compiling, planning takes 40 % less time. Without that
# compiler the code cache is small by default, and a full cache stops all compiling. A plan is garbage once its query
# has ended: a large young generation needs a fourth of the collections.
FIRST_COMPILER_ONLY = "-XX:TieredStopAtLevel=1"
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    f"{FIRST_COMPILER_ONLY} -XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC -XX:InitialRAMPercentage=8 -XX:NewRatio=1",
)

# py4j logs each closed connection, also when the process ends and its output is closed already.
logging.getLogger("py4j.clientserver").setLevel(logging.WARNING)

PROJECT = Path(__file__).resolve().parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: get_order(item.path))
    for item in filter(is_unit, items):
        item.add_marker("unit")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    name_promise(item, report)
    return report


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Return the session that all files of a worker share, or a new session if a test has ended it."""
    session = SparkSession._instantiatedSession
    if session is not None and not _is_alive(session):
        _discard(session)
    with pytest.MonkeyPatch.context() as environment:
        # Three workers share two cores.
        environment.setenv("TIDEMARK_MASTER", "local[1]")
        if "TIDEMARK_TEST_LONG" in os.environ:
            environment.setenv("JDK_JAVA_OPTIONS", os.environ["JDK_JAVA_OPTIONS"].replace(FIRST_COMPILER_ONLY, ""))
        session = get_spark_session("tidemark tests")
    with tuned_for_tiny_queries(session):
        session.conf.set("spark.sql.shuffle.partitions", "2")
        yield session


def _is_alive(session: SparkSession) -> bool:
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except (AttributeError, ConnectionError, Py4JError):
        return False


def _discard(session: SparkSession) -> None:
    """End a session and its JVM, so that the next session starts another JVM.

    PySpark reuses the JVM that it has started, even a dead one.
    """
    gateway = SparkContext._gateway
    with suppress(Exception):
        session.stop()
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
        gateway.proc.kill()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a headless browser."""
    if not is_browser_installed():
        pytest.skip("no browser to open pages: install Debian's packages chromium and chromium-driver")
    with open_headless_browser() as browser:
        yield browser


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def write(spark, lake) -> Callable[..., None]:
    """Return a function that appends rows (a DataFrame, or tuples and a schema) to an input table of the lake."""

    def append(table: str, rows: list[tuple] | DataFrame, schema: str = "") -> None:
        frame = rows if isinstance(rows, DataFrame) else spark.createDataFrame(rows, schema)
        frame.coalesce(1).write.format("delta").mode("append").save(str(lake / table))

    return append


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[..., Pipeline]:
    """Return a function that writes and loads a small pipeline; see `write_pipeline`."""
    return lambda **changes: write_pipeline(tmp_path / "pipeline.yaml", **changes)


def write_pipeline(path: Path, **changes: object) -> Pipeline:
    """Write a small pipeline in order of arrival, and load it.

    Args:
        path: Pipeline file to write.
        changes: Settings by name, nested ones as `left__where`; None removes a setting.
    """
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


def write_chain(folder: Path) -> Pipeline:
    """Write the pipelines `orders` and `shipped`, which reads the output of `orders`, and load the second one."""
    stream = {"dialect": "flink-sql", "output_stream": True}
    write_pipeline(folder / "orders.yaml", **stream)
    left = {"pipeline": "orders", "event_time": "left"}
    join = {"keys": [{"left": "left_k", "right": "k"}], "interval": {"lower": "0 s", "upper": "1 hour"}}
    return write_pipeline(folder / "shipped.yaml", **stream, name="shipped", left=left, join=join)
