"""Tests of the command line: exit codes, one-line errors, JSON output, signals and missing requirements."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tidemark.cli.app import main
from tidemark.delta.table import DeltaTableHandle
from tidemark.execution import run
from tidemark.spark.session import _get_log_path

PROJECT = Path(__file__).resolve().parents[2]
ROW = "k string, happened timestamp, arrived timestamp"
COMMAND = [sys.executable, "-c", "import sys; from tidemark.cli import main; sys.exit(main(sys.argv[1:]))"]


@pytest.fixture
def orders(spark, lake, pipeline, write, tmp_path, monkeypatch):
    """Write a lake with a single pair; return the path of its pipeline file."""
    time = datetime(2024, 1, 1, 1, tzinfo=UTC)
    for table in ("left", "right"):
        write(table, [("a", time, time)], ROW)
    pipeline()
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))
    return str(tmp_path / "pipeline.yaml")


@pytest.fixture
def json_lines(monkeypatch):
    """Write the log as JSON during a test."""
    log = logging.getLogger("tidemark")
    before = log.handlers, log.propagate, log.level
    monkeypatch.setenv("TIDEMARK_LOG_FORMAT", "json")
    yield
    log.handlers, log.propagate = before[:2]
    log.setLevel(before[2])


def test_plan_run_and_status_json_have_slices_jobs_and_tables(orders, lake, capsys, json_lines):
    assert main(["plan", orders, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["slices"] == 2
    assert planned["jobs"] == [
        {"from": "2024-01-01T00:00Z", "to": "2024-01-01T02:00Z", "slices": 2, "replay": "rows cached"}
    ]

    assert main(["run", orders, "--slices-per-job", "1", "--atomic", "--json"]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert len(result["plan"]["jobs"]) == 2
    assert result["status"]["emissions"] == 1
    lines = [json.loads(line) for line in output.err.splitlines()]
    assert [(line["event"], line["pipeline"], line["slice"], line["emissions"]) for line in lines] == [
        ("committed", "orders", "2024-01-01T00:00Z", 0),
        ("committed", "orders", "2024-01-01T01:00Z", 1),
    ]
    assert len({line["run"] for line in lines}) == 2

    assert main(["run", orders, "--to", "2024-01-01T00:30Z"]) == 2
    [line] = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["level"], line["exit_code"]) == ("error", 2)
    assert "is not on a slice boundary" in line["event"]

    assert main(["status", orders, "--json"]) == 0
    [status] = json.loads(capsys.readouterr().out)
    assert status["slices"] == 2
    for name, size in status["tables"].items():
        table = DeltaTableHandle.open(f"{lake}/orders/{name}")
        bytes_on_disk = sum((lake / "orders" / name / path).stat().st_size for path in table.files["path"])
        assert size == {"version": table.version, "files": len(table.files), "bytes": bytes_on_disk}
    assert {"ledger", "emissions", "late", "checkpoint"} <= status["tables"].keys()


def test_commands_print_committed_slices_and_rows_ahead(orders, pipeline, write, capsys):
    """The left delay of 10 minutes allows 100 minutes of clock skew."""
    arrived = [datetime(2024, 1, 1, 1, minute, tzinfo=UTC) for minute in (20, 30)]
    skews = [timedelta(minutes=100), timedelta(minutes=101)]
    keys = ["at the bound", "device-7"]
    write("left", [(k, time + skew, time) for k, time, skew in zip(keys, arrived, skews, strict=True)], ROW)
    pipeline(expose_row_values=True)

    def run_command(*arguments):
        assert main([*arguments, orders] if len(arguments) < 3 else [arguments[0], orders, *arguments[1:]]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "no slice is committed yet" in run_command("plan")

    first_run = run_command("run")
    assert "committed 2024-01-01T00:00Z to 2024-01-01T02:00Z: 2 slices" in first_run
    assert "/orders/{ledger,emissions,late,quality,checkpoint}" in first_run, "the tables that exist"
    warning = (
        "warning: expect_column_values_to_be_between(column left_rows_ahead, max_value 0) on history: 1 warned of 2 "
        "slices, worst in 2024-01-01T01:00Z: found 1. Event times are up to 1 h 41 min after arrival (k device-7, "
        "event time 2024-01-01T03:11Z). The left watermark is 2024-01-01T03:00:59.999Z at the slice's end, and rows "
        "before it can be late. Correct the clock that set them, or reject such rows with "
        "time_bounds.max_ahead_of_arrival"
    )
    assert warning in first_run
    assert first_run.count("rows_ahead") == 1

    assert "all slices up to 2024-01-01T02:00Z are committed" in run_command("run")

    run_command("reprocess", "--from", "2024-01-01T01:00Z")
    assert warning in run_command("status")
    assert warning in run_command("quality", "show")


def test_quality_suggest_proposes_expectations_that_committed_rows_pass(orders, capsys):
    assert main(["quality", "suggest", orders]) == 2
    assert "orders has committed nothing to learn from" in capsys.readouterr().err

    assert main(["run", orders]) == 0
    capsys.readouterr()
    assert main(["quality", "suggest", orders]) == 0
    proposed = capsys.readouterr().out
    assert "- {type: expect_column_values_to_be_in_set, column: left_k, value_set: [a], severity: warning}" in proposed

    file = Path(orders)
    file.write_text(file.read_text() + proposed)
    assert main(["reprocess", orders, "--from", "2024-01-01T00:00Z"]) == 0
    capsys.readouterr()
    assert main(["quality", "show", orders, "--json"]) == 0
    summaries = json.loads(capsys.readouterr().out)
    assert {summary["evaluated"] for summary in summaries} == {2}
    assert {outcome for summary in summaries for outcome in summary["outcomes"]} == {"passed"}

    report = file.with_name("quality.html")
    assert main(["quality", "show", orders, "--report", str(report)]) == 0
    page = report.read_text()
    assert "2 committed slices" in page
    assert all(name in page for name in ("late share, left input", "emissions per row, right input"))


@pytest.mark.slow
def test_commands_do_not_disclose_row_values(spark, lake, pipeline, write, tmp_path, capfd, monkeypatch):
    """Values occur only in rows: not in output, logs, Data Docs, the ledger or stored agreements."""
    time, secret = datetime(2024, 1, 1, 1, tzinfo=UTC), "secret4711"
    for table in ("left", "right"):
        write(table, [("a", time, time, secret), ("a", None, time, secret)], f"{ROW}, s string")
    write("streamed", [(time, "a", f"not {secret}")], "left_happened timestamp, left_k string, left_s string")
    bounds = [{"expect_column_values_to_be_in_set": {"column": "left_s", "value_set": ["x"], "severity": severity}}
              for severity in ("warning", "critical")]  # fmt: skip
    ignored = ["left_arrived", *(f"right_{name}" for name in ("k", "happened", "arrived", "s"))]
    compare = {"table": "streamed", "key_columns": ["left_k", "left_happened"], "ignore_columns": ignored}
    file = str(tmp_path / "pipeline.yaml")
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))

    for quality, code in ((bounds[:1], 0), (bounds, 1)):
        pipeline(quality=quality, output=f"out{code}", compare=compare)
        assert main(["run", file]) == code
        assert main(["status", file, "--json"]) == 0
    pipeline(quality=bounds[:1], output="out0", compare=compare)
    assert main(["compare", "run", file, "--save"]) in {0, 1}

    output = capfd.readouterr()
    assert "1 of 1 values" in output.out + output.err
    texts = [output.out, output.err, _get_log_path().read_text()]
    texts += [path.read_text() for path in (lake / "out0/gx").rglob("*.json")]
    texts += [path.read_text() for path in (lake / "out0/gx").rglob("*.html")]
    for table in ("ledger", "agreement"):
        rows = DeltaTable(str(lake / "out0" / table)).to_pyarrow_table().to_pylist()
        # Statistics of files contain the extremes of columns, as the log of any Delta table does.
        texts += [str({name: value for name, value in row.items() if name != "added_files"}) for row in rows]
    assert len(texts) > 7
    assert not [text for text in texts if secret in text]


def test_run_after_sigterm_stops_between_jobs_and_can_continue(orders, capsys, monkeypatch):
    def execute(*arguments):
        for result in run.execute(*arguments):
            signal.raise_signal(signal.SIGTERM)
            yield result

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("tidemark.cli.progress.execute", execute)

    assert main(["run", orders, "--slices-per-job", "1"]) == 143

    output = capsys.readouterr()
    assert "committed 2024-01-01T00:00Z to 2024-01-01T01:00Z: 1 slice in " in output.out
    assert "; 1 of 2 slices, " in output.out
    assert "left\n" in output.out
    assert "stopping after the current job. Send the signal again to end at once." in output.err
    assert "stopped before slice 2024-01-01T01:00Z; all slices before it are committed" in output.err
    assert signal.getsignal(signal.SIGTERM) is handler
    assert main(["run", orders]) == 0, "a signal during the last job changes nothing"


def test_stop_on_signals_second_signal_ends_at_once():
    script = (
        "import signal\nfrom tidemark.cli.progress import _stop_on_signals\n"
        "with _stop_on_signals() as stop:\n"
        "    signal.raise_signal(signal.SIGINT)\n    assert stop.is_requested\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
    )

    process = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False)

    assert (process.returncode, process.stderr.count("stopping after")) == (-signal.SIGTERM, 1)


@pytest.mark.parametrize(
    ("arguments", "expected_message"),
    [
        (["plan", "no_such"], "there is no pipeline no_such"),
        (["plan", "{orders}", "--from", "noon"], "--from: 'noon' is not an instant"),
        (["run", "{orders}", "--slices-per-job", "none"], "--slices-per-job: 'none' is not a number of slices"),
        (["run", "{orders}", "--form", "x"], "No such option: --form"),
        (["run", "{orders}", "--from", "2024-01-01T05:00Z"], "Run from 2024-01-01T00:00Z, or pass --from-empty-state"),
    ],
)
def test_main_user_error_exits_with_2_and_remedy(orders, capsys, arguments, expected_message):
    assert main([argument.format(orders=orders) for argument in arguments]) == 2
    assert expected_message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "command", ["plan", "status", "tables vacuum", "conformance", "diff", "compare minimize", "schema"]
)
def test_main_help_has_an_example(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    assert "Example: tidemark" in capsys.readouterr().out


def run_in_process(arguments, **environment):
    """Run a command in another process, without the JVM of this one."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYSPARK_GATEWAY_PORT")}
    env = {**inherited, **environment}
    return subprocess.run([*COMMAND, *arguments], env=env, cwd=PROJECT, capture_output=True, text=True, check=False)


def test_plan_without_java_names_the_remedy(tmp_path):
    process = run_in_process(["plan", "flights_weather", "--lake", str(tmp_path)], PATH=str(tmp_path))

    assert process.returncode == 3
    assert "Install Java 17" in process.stderr
    assert "Traceback" not in process.stderr


def test_commands_that_read_only_metadata_need_no_java(orders, lake, tmp_path):
    assert main(["run", orders, "--to", "2024-01-01T02:00Z"]) == 0

    for command in ("status", "plan", "run", "checkpoint show", "checkpoint expire --keep 1", "tables vacuum --yes"):
        process = run_in_process([*command.split(), orders], PATH=str(tmp_path), TIDEMARK_LAKE=str(lake))
        assert (process.returncode, process.stderr) == (0, ""), command


def test_vacuum_reports_removed_files(orders, lake, capsys):
    assert main(["run", orders]) == 0
    uncommitted = lake / "orders/emissions/run=00000009.20240101T000000Z.1.deadbeef/0/part-0.parquet"
    uncommitted.parent.mkdir(parents=True)
    uncommitted.write_bytes(b"12345")
    two_hours_ago = time.time() - 2 * 3600
    os.utime(uncommitted, (two_hours_ago, two_hours_ago))
    capsys.readouterr()

    assert main(["tables", "vacuum", orders, "--yes"]) == 0
    output = capsys.readouterr().out
    assert "orders: removed" in output
    assert "1 other file may belong to an active run" in output
    assert "oldest versions that can then be read: emissions 0, late 0, quality 0, checkpoint 0" in output

    for age in ("59 minutes", "-1 day"):
        assert main(["tables", "vacuum", orders, "--older-than", age, "--yes"]) == 2
        assert "--older-than: must be at least 1 hour" in capsys.readouterr().err
    assert main(["tables", "vacuum", orders, "--older-than", "1 hour", "--dry-run"]) == 0
    output = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "orders: would be removed" in output
    assert "uncommitted 1 5 bytes" in output
    assert uncommitted.exists()

    assert main(["tables", "vacuum", orders, "--older-than", "1 hour", "--json", "--yes"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["files"] == [str(uncommitted.relative_to(lake / "orders"))]
    assert not uncommitted.exists()


def test_plan_without_jars_names_the_remedy(tmp_path):
    process = run_in_process(["plan", "flights_weather", "--lake", str(tmp_path)], TIDEMARK_JARS=str(tmp_path))

    assert process.returncode == 2
    assert f"TIDEMARK_JARS names {tmp_path}, which has no jars of Delta. Correct it" in process.stderr


def test_run_on_a_full_disk_publishes_nothing_and_can_be_repeated(orders, lake, tmp_path, spark):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a small disk of its own needs root")
    output = lake / "orders"
    output.mkdir()
    # The file system has space for a table's first files, but not for all tables of a job.
    script = f'mount -t tmpfs -o size=48k none {output} && shift && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", "sh", *COMMAND, "run", orders, "--lake", str(lake)]

    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    if "mount" in process.stderr:
        pytest.skip("this machine does not allow to mount")
    assert process.returncode == 3, process.stderr
    assert "the disk is full" in process.stderr
    assert "this job published nothing" in process.stderr
    assert "Traceback" not in process.stderr
    assert run_in_process(["run", orders, "--lake", str(lake)]).returncode == 0, "the same command succeeds with space"
    ledger = spark.read.format("delta").load(f"{output}/ledger")
    assert ledger.count() == 2
