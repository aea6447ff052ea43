"""Commands through a Spark Connect server give the results of a local session, without a JVM in the client."""

import gzip
import json
import os
import socket
import subprocess
import sys

import pytest
from pyspark.sql import types as T

from tests.config.test_expressions import ALLOWED, REFUSED
from tests.conftest import PROJECT, write_pipeline
from tests.spark.connect_client import list_conjuncts
from tests.spark.connect_server import run_connect_server
from tests.spark.sample_lake import SETTINGS, read_rows, write_two_hours
from tests.spark.test_expression_sandbox import PARSED_AWAY
from tidemark import api
from tidemark.config.cluster import CONNECT_TOKEN_VARIABLE, Cluster
from tidemark.errors import FaultError, UserError
from tidemark.spark.connect_session import _check_server, get_connect_session
from tidemark.spark.engine import get_engine, require_classic_session
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.spark.session_settings import DELTA_SETTINGS
from tidemark.streaming.live_query import run_live_query

pytestmark = pytest.mark.process

TIMEOUT_SECONDS = 600
"""Limit for a client, so that a hanging client fails instead of blocking all tests."""
VECTORS = PROJECT / "tests/semantics/vectors"
SESSION = {"keys": ["k"], "window": {"session": {"gap": "6 minutes"}}, "allowed_lateness": "20 minutes"}
INTERVAL = {"keys": ["k"], "type": "full", "interval": {"lower": "-5 minutes", "upper": "10 minutes"}}
RANGE = {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "10 minutes"}}
NUMBERS = "transform(filter(array(left_v + 1, right_v), v -> v % 3 > 0), v -> named_struct('v', v))"
JOINS = {
    "session": ("flink-datastream", SESSION, {}),
    "range": ("spark", RANGE, {}),
    "interval": ("flink-sql", INTERVAL | {"condition": "left_v > 3 AND right_v <> left_v"}, {"explode": NUMBERS}),
}
ROWS = T.StructType(
    [
        T.StructField("left_a", T.LongType()),
        T.StructField("LEFT_s", T.StringType()),
        T.StructField("left_d", T.DecimalType(10, 2)),
        T.StructField("left_f", T.DoubleType()),
        T.StructField("left_r", T.StructType([T.StructField("x", T.LongType())])),
        T.StructField("left_t", T.TimestampType()),
        T.StructField("right_a", T.IntegerType()),
        T.StructField("right_a b", T.StringType()),
    ]
)
CONDITIONS = """
left_a >= 5
5 < left_a AND right_a IS NOT NULL
left_a BETWEEN 1 AND 2 * 3600 AND left_s = right_a
(left_a = right_a AND left_d >= 3) AND (left_f > 1e10 OR right_a < 3 AND left_a = 1)
NOT (left_a < 5 OR left_d > 3)
left_s >= '5' AND left_s <> 'x AND (y)'
left_r.x > right_a AND left_r.x >= 7
upper(`right_a b`) = left_s AND coalesce(left_a, 1) = right_a
CASE WHEN left_a = 1 AND right_a = 2 THEN true ELSE left_f >= 2.5 END AND left_a > 0
exists(array(left_a), x -> x > 3 AND x < right_a) AND left_t > TIMESTAMP '2013-01-01 00:00:00'
true
left_a > 3 AND false
""".strip().splitlines()
NONDETERMINISTIC = {
    "to_timestamp('now')": True,
    "CAST('today' AS date) > left_t": True,
    "to_timestamp('now') > TIMESTAMP '2013-01-01 00:00:00'": True,
    "CAST('2013-01-01' AS date) > left_t": False,
    "to_timestamp('2013-01-01 00:00:00Z') > left_t": False,
    "left_a + 1": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run a server; return the environment of a client."""
    with run_connect_server(tmp_path_factory.mktemp("connect")) as environment:
        yield environment


@pytest.fixture(scope="module")
def request_client(server):
    """Return a function that sends a request to a client in another process without Java."""

    def send(**request):
        env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        env |= server | {"PYTHONPATH": f"{PROJECT / 'include'}:{PROJECT}", "PATH": "/nowhere"}
        command = [sys.executable, PROJECT / "tests/spark/connect_client.py"]
        process = subprocess.run(
            command,
            env=env,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            timeout=TIMEOUT_SECONDS,
        )
        assert process.returncode == 0, process.stderr
        response = json.loads(process.stdout.splitlines()[-1])
        assert response.pop("java") is False
        assert response.pop("great_expectations") is False, "no pipeline has expectations; the import takes seconds"
        return response

    return send


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return write_two_hours(tmp_path_factory.mktemp("lake"), 100)


def write_join_pipeline(folder, join, engine):
    """Write the pipeline file of a join for an engine, `local` or `connect`; return its path and the pipeline."""
    dialect, settings, changes = JOINS[join]
    file = folder / f"{join}_{engine}.yaml"
    return file, write_pipeline(file, name=file.stem, dialect=dialect, join=settings, **changes, **SETTINGS)


@pytest.mark.parametrize("join", ["session", pytest.param("interval", marks=pytest.mark.slow)])
def test_connect_commands_equal_those_of_a_local_session(spark, request_client, lake, tmp_path, join):
    _, local_pipeline = write_join_pipeline(tmp_path, join, "local")
    file, _ = write_join_pipeline(tmp_path, join, "connect")
    api.run(spark, api.plan(spark, local_pipeline, lake, slices_per_job=1))
    options = [str(file), "--lake", str(lake)]
    commands = [
        ["plan", *options],
        ["run", *options, "--slices-per-job", "1"],
        ["status", *options],
        ["explain", *options, "--left", "v=4"],
        ["what-if", *options, "--max", "20 minutes", "--steps", "2"],
        ["checkpoint", "show", *options, "--at", "2024-01-01T01:00Z"],
        ["checkpoint", "verify", *options, "--at", "2024-01-01T01:00Z"],
        ["reprocess", *options, "--from", "2024-01-01T00:00Z", "--to", "2024-01-01T01:00Z"],
        ["compare", "run", *options, "--with", f"{join}_local/emissions"],
        ["compare", "dialects", *options],
        ["checkpoint", "copy", *options, "--at", "2024-01-01T01:00Z", "--to", f"{join}_buffers"],
        ["checkpoint", "expire", *options, "--keep", "1"],
        ["checkpoint", "verify", *options, "--at", "2024-01-01T02:00Z"],
        ["tables", "verify", *options],
        ["tables", "vacuum", *options, "--yes"],
    ]

    results = request_client(commands=commands)["commands"]

    codes = [(arguments[0], code) for arguments, (code, _) in zip(commands, results, strict=True)]
    assert codes == [(arguments[0], 0) for arguments in commands], [output for code, output in results if code]
    for table in ("emissions", "late"):
        assert read_rows(lake / f"{join}_connect" / table) == read_rows(lake / f"{join}_local" / table)
    assert read_rows(lake / f"{join}_connect" / "emissions").total() > 50
    assert read_rows(lake / f"{join}_buffers").total() > 0


@pytest.mark.slow
def test_connect_checkpoint_export_writes_a_spark_checkpoint(request_client, lake, tmp_path):
    file, _ = write_join_pipeline(tmp_path, "range", "connect")
    commands = [
        ["run", str(file), "--lake", str(lake)],
        ["checkpoint", "export", str(file), "--lake", str(lake), "--to", str(tmp_path / "exported")],
    ]

    results = request_client(commands=commands)["commands"]

    assert [code for code, _ in results] == [0, 0], results
    assert (tmp_path / "exported" / "README.md").exists()


FAST_VECTORS = {"flink_datastream_interval", "flink_sql_window", "spark"}
"""One file of vectors for each dialect."""


@pytest.mark.parametrize("is_fast", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_connect_conformance_recorded_vectors_pass(request_client, tmp_path, is_fast):
    for file in VECTORS.glob("*.jsonl.gz"):
        if (file.name.partition(".")[0] in FAST_VECTORS) is not is_fast:
            continue
        with gzip.open(file, "rt") as lines:
            vectors = lines.readlines()
        (tmp_path / file.stem).write_text("".join(vectors[:: max(1, len(vectors) // 3)]))
    command = ["conformance", *map(str, tmp_path.glob("*.jsonl")), "--cuts", "2"]

    [[code, output]] = request_client(commands=[command])["commands"]

    assert code == 0, output
    assert " 0 failed" in output


def test_connect_expressions_are_parsed_and_checked_as_locally(spark, request_client):
    refused_by_tree = [expression for expression in REFUSED if not any(part in expression for part in PARSED_AWAY)]
    schema = ROWS.jsonValue()

    response = request_client(
        columns=[*ALLOWED, *REFUSED],
        refusals=[*ALLOWED, *refused_by_tree],
        conjuncts=[(condition, schema) for condition in CONDITIONS],
        nondeterministic=[(expression, schema) for expression in NONDETERMINISTIC],
    )

    assert response["columns"] == [True] * len(ALLOWED) + [False] * len(REFUSED)
    assert response["refusals"][: len(ALLOWED)] == [None] * len(ALLOWED)
    empty = get_engine(spark).create_empty_dataframe(ROWS)
    assert response["conjuncts"] == [
        list_conjuncts(empty, parse_user_expression(spark, condition)) for condition in CONDITIONS
    ]
    assert response["nondeterministic"] == list(NONDETERMINISTIC.values())


def test_connect_session_settings_do_not_affect_other_sessions(request_client, server):
    script = """
from pyspark.sql import SparkSession
from tidemark.spark.session import get_spark_session
import os
session = get_spark_session("session")
other = SparkSession.builder.remote(os.environ["TIDEMARK_MASTER"]).create()
names = "spark.sql.session.timeZone spark.sql.debug.maxToStringFields spark.sql.parquet.compression.codec".split()
print([session.conf.get(name) for name in names], [other.conf.get(name) for name in names])
other.stop()  # else Python may wait for its channel when it ends
"""
    env = os.environ | server | {"PYTHONPATH": str(PROJECT / "include"), "TZ": "Asia/Tokyo"}

    process = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True, timeout=120
    )

    assert "['UTC', '100000', 'zstd'] ['" in process.stdout
    assert "'25', " in process.stdout.split("] [")[1]


@pytest.mark.parametrize("token", ["", "wrong"])
def test_get_connect_session_without_token_is_refused(server, token):
    script = "from tidemark.spark.session import get_spark_session; get_spark_session('none')"
    env = os.environ | server | {"PYTHONPATH": str(PROJECT / "include"), CONNECT_TOKEN_VARIABLE: token}
    env = {name: value for name, value in env.items() if value or name != CONNECT_TOKEN_VARIABLE}

    process = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )

    assert f"Set {CONNECT_TOKEN_VARIABLE}" in process.stderr.splitlines()[-1]


def test_get_connect_session_without_server_raises_with_remedy():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(FaultError, match=rf"No Spark Connect server listens at localhost:{port} .*make connect"):
        get_connect_session(f"sc://localhost:{port}/;token=secret", {}, Cluster(), {})


def test_connect_session_operation_that_needs_a_jvm_raises_with_remedy(spark):
    require_classic_session(spark, "it")
    with pytest.raises(UserError, match=r"tidemark stream does not run through Spark Connect. Omit --warm"):
        run_live_query(FakeSession("4.1.3"), None, None, None, None, None)
    with pytest.raises(UserError, match=r"Run the same command once without Spark Connect \(without --warm"):
        get_engine(FakeSession("4.1.3")).load_replaceable_snapshot("emissions")


class FakeSession:
    """A session on a server with a version of Spark and settings."""

    def __init__(self, version, **settings):
        self.version, self.conf = version, settings


def test_check_server_without_delta_or_of_another_version_raises(spark):
    _check_server(FakeSession(spark.version, **DELTA_SETTINGS), "it", DELTA_SETTINGS)
    with pytest.raises(FaultError, match="--conf spark.sql.extensions=io.delta"):
        _check_server(FakeSession(spark.version), "it", DELTA_SETTINGS)
    with pytest.raises(FaultError, match="it has Spark 3.5.1. Start one with Spark 4.1"):
        _check_server(FakeSession("3.5.1"), "it", DELTA_SETTINGS)
