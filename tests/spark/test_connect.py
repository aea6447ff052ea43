"""Through a Spark Connect server everything gives what it gives on Spark itself, and no JVM starts in the client."""

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
from tests.spark.lakes import SETTINGS, land_two_hours, read
from tests.spark.serving import serving
from tests.spark.test_confined import PARSED_AWAY
from tests.spark.through_connect import told
from tidemark import api
from tidemark.config.cluster import CONNECT_TOKEN_VARIABLE, Cluster
from tidemark.errors import FaultError, UserError
from tidemark.spark.connect_session import _check_server, get_connect_session
from tidemark.spark.engine import get_engine, require_classic
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.spark.session import DELTA_SETTINGS
from tidemark.streaming.live_query import run_live_query

PATIENCE = 600
"""Seconds for a client: one that hangs is to fail, and not to hold up all tests."""
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
MOVING = {
    "to_timestamp('now')": True,
    "CAST('today' AS date) > left_t": True,
    "to_timestamp('now') > TIMESTAMP '2013-01-01 00:00:00'": True,
    "CAST('2013-01-01' AS date) > left_t": False,
    "to_timestamp('2013-01-01 00:00:00Z') > left_t": False,
    "left_a + 1": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The environment of who may use a server."""
    with serving(tmp_path_factory.mktemp("connect")) as environment:
        yield environment


@pytest.fixture(scope="module")
def ask(server):
    """Asks a client in a process of its own, which finds no Java."""

    def answer(**asked):
        env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        env |= server | {"PYTHONPATH": f"{PROJECT / 'include'}:{PROJECT}", "PATH": "/nowhere"}
        command = [sys.executable, PROJECT / "tests/spark/through_connect.py"]
        done = subprocess.run(
            command,
            env=env,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert told.pop("java") is False
        assert told.pop("library") is False, "nothing is expected of these slices, and the import takes seconds"
        return told

    return answer


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return land_two_hours(tmp_path_factory.mktemp("lake"), 100)


def pipeline(folder, join, where):
    dialect, settings, more = JOINS[join]
    file = folder / f"{join}_{where}.yaml"
    return file, write_pipeline(file, name=file.stem, dialect=dialect, join=settings, **more, **SETTINGS)


@pytest.mark.parametrize("join", ["session", pytest.param("interval", marks=pytest.mark.slow)])
def test_commands_give_what_they_give_on_spark_itself(spark, ask, lake, tmp_path, join):
    _, here = pipeline(tmp_path, join, "here")
    file, _ = pipeline(tmp_path, join, "there")
    api.run(spark, api.plan(spark, here, lake, slices_per_job=1))
    first = ["--lake", str(lake)]
    commands = [
        ["plan", str(file), *first],
        ["run", str(file), *first, "--slices-per-job", "1"],
        ["status", str(file), *first],
        ["explain", str(file), *first, "--left", "v=4"],
        ["what-if", str(file), *first, "--max", "20 minutes", "--steps", "2"],
        ["checkpoint", "show", str(file), *first, "--at", "2024-01-01T01:00Z"],
        ["checkpoint", "verify", str(file), *first, "--at", "2024-01-01T01:00Z"],
        ["reprocess", str(file), *first, "--from", "2024-01-01T00:00Z", "--to", "2024-01-01T01:00Z"],
        ["compare", str(file), *first, "--with", f"{join}_here/emissions"],
        ["dialects", str(file), *first],
        ["checkpoint", "copy", str(file), *first, "--at", "2024-01-01T01:00Z", "--to", f"{join}_buffers"],
        ["checkpoint", "expire", str(file), *first, "--keep", "1"],
        ["checkpoint", "verify", str(file), *first, "--at", "2024-01-01T02:00Z"],
        ["verify", str(file), *first],
        ["vacuum", str(file), *first],
    ]
    told = ask(commands=commands)["commands"]
    assert [(arguments[0], code) for arguments, (code, _) in zip(commands, told, strict=True)] == [
        (arguments[0], 0) for arguments in commands
    ], [said for code, said in told if code]
    for table in ("emissions", "late"):
        assert read(lake / f"{join}_there" / table) == read(lake / f"{join}_here" / table)
    assert read(lake / f"{join}_there" / "emissions").total() > 50
    assert read(lake / f"{join}_buffers").total() > 0


@pytest.mark.slow
def test_a_live_query_can_go_on_from_what_is_exported(ask, lake, tmp_path):
    file, _ = pipeline(tmp_path, "range", "there")
    commands = [
        ["run", str(file), "--lake", str(lake)],
        ["checkpoint", "export", str(file), "--lake", str(lake), "--to", str(tmp_path / "exported")],
    ]
    told = ask(commands=commands)["commands"]
    assert [code for code, _ in told] == [0, 0], told
    assert (tmp_path / "exported" / "README.md").exists()


OF_EACH_DIALECT = {"flink_datastream_interval", "flink_sql_window", "spark"}


@pytest.mark.parametrize("is_of_each", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_recorded_vectors_pass(ask, tmp_path, is_of_each):
    """Of each dialect one kind; and those of the other kinds."""
    for file in VECTORS.glob("*.jsonl.gz"):
        if (file.name.partition(".")[0] in OF_EACH_DIALECT) is not is_of_each:
            continue
        with gzip.open(file, "rt") as lines:
            vectors = lines.readlines()
        (tmp_path / file.stem).write_text("".join(vectors[:: max(1, len(vectors) // 3)]))
    [[code, said]] = ask(commands=[["conformance", *map(str, tmp_path.glob("*.jsonl")), "--cuts", "2"]])["commands"]
    assert code == 0, said
    assert " 0 failed" in said


def test_expressions_are_read_and_confined_as_by_spark_s_own_parser(spark, ask):
    own_tree = [text for text in REFUSED if not any(part in text for part in PARSED_AWAY)]
    shown = ROWS.jsonValue()
    told_there = ask(
        columns=[*ALLOWED, *REFUSED],
        refused=[*ALLOWED, *own_tree],
        conjuncts=[(text, shown) for text in CONDITIONS],
        moving=[(text, shown) for text in MOVING],
    )
    assert told_there["columns"] == [True] * len(ALLOWED) + [False] * len(REFUSED)
    assert told_there["refused"][: len(ALLOWED)] == [None] * len(ALLOWED)
    empty = get_engine(spark).create_opaque_empty(ROWS)
    assert told_there["conjuncts"] == [told(empty, parse_user_expression(spark, text)) for text in CONDITIONS]
    assert told_there["moving"] == list(MOVING.values())


def test_a_session_has_settings_of_its_own(ask, server):
    script = """
from pyspark.sql import SparkSession
from tidemark.spark.session import get_spark_session
import os
mine = get_spark_session("one")
other = SparkSession.builder.remote(os.environ["TIDEMARK_MASTER"]).create()
names = "spark.sql.session.timeZone spark.sql.debug.maxToStringFields spark.sql.parquet.compression.codec".split()
print([mine.conf.get(name) for name in names], [other.conf.get(name) for name in names])
other.stop()  # else Python may wait for its channel when it ends
"""
    env = os.environ | server | {"PYTHONPATH": str(PROJECT / "include"), "TZ": "Asia/Tokyo"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True, timeout=120
    )
    assert "['UTC', '100000', 'zstd'] ['" in done.stdout
    assert "'25', " in done.stdout.split("] [")[1]


@pytest.mark.parametrize("token", ["", "wrong"])
def test_who_has_no_token_gets_no_session(server, token):
    script = "from tidemark.spark.session import get_spark_session; get_spark_session('none')"
    env = os.environ | server | {"PYTHONPATH": str(PROJECT / "include"), CONNECT_TOKEN_VARIABLE: token}
    env = {name: value for name, value in env.items() if value or name != CONNECT_TOKEN_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert f"set {CONNECT_TOKEN_VARIABLE}" in done.stderr.splitlines()[-1]


def test_a_server_that_is_not_there_is_told_with_the_remedy():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(FaultError, match=rf"no Spark Connect server answers at localhost:{port} .*make connect"):
        get_connect_session(f"sc://localhost:{port}/;token=secret", {}, Cluster(), {})


def test_what_needs_a_jvm_of_its_own_is_refused_with_the_remedy(spark):
    require_classic(spark, "it")
    with pytest.raises(UserError, match=r"tidemark stream does not run through Spark Connect; unset TIDEMARK_MASTER"):
        run_live_query(Server("4.1.3"), None, None, None, None, None)
    with pytest.raises(UserError, match=r"run the same command once on Spark itself \(TIDEMARK_MASTER=local"):
        get_engine(Server("4.1.3")).load_replaceable_snapshot("emissions")


class Server:
    """A session of a server with these settings."""

    def __init__(self, version, **settings):
        self.version, self.conf = version, settings


def test_a_server_without_delta_or_of_another_version_is_refused_with_the_remedy(spark):
    _check_server(Server(spark.version, **DELTA_SETTINGS), "it", DELTA_SETTINGS)
    with pytest.raises(FaultError, match="--conf spark.sql.extensions=io.delta"):
        _check_server(Server(spark.version), "it", DELTA_SETTINGS)
    with pytest.raises(FaultError, match="it is Spark 3.5.1, and this is for 4.1"):
        _check_server(Server("3.5.1"), "it", DELTA_SETTINGS)
