"""The command as a user meets it: exit codes, one line for a mistake, JSON for scripts."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
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
    """The pipeline file of a lake with one pair."""
    one = datetime(2024, 1, 1, 1, tzinfo=UTC)
    for table in ("left", "right"):
        write(table, [("a", one, one)], ROW)
    pipeline()
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))
    return str(tmp_path / "pipeline.yaml")


@pytest.fixture
def json_lines(monkeypatch):
    """The log as JSON, for this test alone."""
    log = logging.getLogger("tidemark")
    before = log.handlers, log.propagate, log.level
    monkeypatch.setenv("TIDEMARK_LOG_FORMAT", "json")
    yield
    log.handlers, log.propagate = before[:2]
    log.setLevel(before[2])


def test_plan_run_and_status_for_scripts(orders, lake, capsys, json_lines):
    assert main(["plan", orders, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["slices"] == 2
    assert planned["jobs"] == [{"from": "2024-01-01T00:00Z", "to": "2024-01-01T02:00Z", "slices": 2}]
    assert main(["run", orders, "--slices-per-job", "1", "--atomic", "--json"]) == 0
    said = capsys.readouterr()
    ran = json.loads(said.out)
    assert len(ran["ran"]["jobs"]) == 2
    assert ran["status"]["emissions"] == 1
    lines = [json.loads(line) for line in said.err.splitlines()]
    assert [(one["event"], one["pipeline"], one["slice"], one["emissions"]) for one in lines] == [
        ("committed", "orders", "2024-01-01T00:00Z", 0),
        ("committed", "orders", "2024-01-01T01:00Z", 1),
    ]
    assert len({one["run"] for one in lines}) == 2
    assert main(["run", orders, "--to", "2024-01-01T00:30Z"]) == 2
    [line] = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["level"], line["exit_code"]) == ("error", 2)
    assert "is not on a slice boundary" in line["event"]
    assert main(["status", orders, "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    assert told["slices"] == 2
    for name, kept in told["tables"].items():
        log = DeltaTableHandle.open(f"{lake}/orders/{name}")
        on_disk = sum((lake / "orders" / name / path).stat().st_size for path in log.files["path"])
        assert kept == {"version": log.version, "files": len(log.files), "bytes": on_disk}
    assert {"ledger", "emissions", "late", "checkpoint"} <= told["tables"].keys()


def test_plan_run_and_status_for_people(orders, capsys):
    assert main(["plan", orders]) == 0
    assert "no slice is committed yet" in capsys.readouterr().out
    assert main(["run", orders]) == 0
    told = capsys.readouterr().out
    assert "committed 2024-01-01T00:00Z to 2024-01-01T02:00Z: 2 slices" in told
    assert main(["run", orders]) == 0
    assert "all slices up to 2024-01-01T02:00Z are committed" in " ".join(capsys.readouterr().out.split())


def test_expectations_are_proposed_once_there_is_something_to_learn_from(orders, capsys):
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
    assert main(["quality", orders, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["evaluated"] for one in found} == {2}
    assert {outcome for one in found for outcome in one["outcomes"]} == {"passed"}
    page = file.with_name("quality.html")
    assert main(["quality", orders, "--report", str(page)]) == 0
    told = page.read_text()
    assert "2 committed slices" in told
    assert all(name in told for name in ("late share, left input", "emissions per row, right input"))


@pytest.mark.slow
def test_what_a_run_tells_and_keeps_beside_its_rows_has_no_value_of_them(
    spark, lake, pipeline, write, tmp_path, capfd, monkeypatch
):
    one, secret = datetime(2024, 1, 1, 1, tzinfo=UTC), "secret4711"
    for table in ("left", "right"):
        write(table, [("a", one, one, secret), ("a", None, one, secret)], f"{ROW}, s string")
    write("streamed", [(one, "a", f"not {secret}")], "left_happened timestamp, left_k string, left_s string")
    bounds = [{"expect_column_values_to_be_in_set": {"column": "left_s", "value_set": ["x"], "severity": severity}}
              for severity in ("warning", "critical")]  # fmt: skip
    others = ["left_arrived", *(f"right_{name}" for name in ("k", "happened", "arrived", "s"))]
    compared = {"table": "streamed", "key_columns": ["left_k", "left_happened"], "ignore_columns": others}
    file = str(tmp_path / "pipeline.yaml")
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))
    for quality, code in ((bounds[:1], 0), (bounds, 1)):
        pipeline(quality=quality, output=f"out{code}", compare=compared)
        assert main(["run", file]) == code
        assert main(["status", file, "--json"]) == 0
    pipeline(quality=bounds[:1], output="out0", compare=compared)
    assert main(["compare", file, "--save"]) in {0, 1}
    told = capfd.readouterr()
    assert "1 of 1 values" in told.out + told.err
    papers = [told.out, told.err, _get_log_path().read_text()]
    papers += [path.read_text() for path in (lake / "out0/gx").rglob("*.json")]
    papers += [path.read_text() for path in (lake / "out0/gx").rglob("*.html")]
    for table in ("ledger", "agreement"):
        rows = DeltaTable(str(lake / "out0" / table)).to_pyarrow_table().to_pylist()
        # Files have the extremes of their columns beside them, as in the log of any Delta table.
        papers += [str({name: value for name, value in row.items() if name != "files"}) for row in rows]
    assert len(papers) > 7
    assert not [paper for paper in papers if secret in paper]


def test_asked_to_stop_it_ends_between_jobs_and_the_same_command_goes_on(orders, capsys, monkeypatch):
    def execute(*arguments):
        for result in run.execute(*arguments):
            signal.raise_signal(signal.SIGTERM)
            yield result

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("tidemark.cli.progress.execute", execute)
    assert main(["run", orders, "--slices-per-job", "1"]) == 143
    told = capsys.readouterr()
    assert "committed 2024-01-01T00:00Z to 2024-01-01T01:00Z: 1 slice in " in told.out
    assert "; 1 of 2 slices, " in told.out
    assert "left\n" in told.out
    assert "stopping after the current job is committed. Send the signal again to end at once." in told.err
    assert "stopped before slice 2024-01-01T01:00Z; all slices before it are committed" in told.err
    assert signal.getsignal(signal.SIGTERM) is before
    assert main(["run", orders]) == 0, "asked during the last job, which is done"


def test_asked_twice_it_ends_at_once():
    script = (
        "import signal\nfrom tidemark.cli.progress import _stop_on_signals\n"
        "with _stop_on_signals() as stop:\n"
        "    signal.raise_signal(signal.SIGINT)\n    assert stop.is_requested\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("stopping after")) == (-signal.SIGTERM, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "no_such"], "there is no pipeline no_such"),
        (["plan", "{orders}", "--from", "noon"], "--from: 'noon' is not an instant"),
        (["run", "{orders}", "--slices-per-job", "none"], "--slices-per-job: 'none' is not a number of slices"),
        (["run", "{orders}", "--form", "x"], "No such option: --form"),
        (["run", "{orders}", "--from", "2024-01-01T05:00Z"], "run from 2024-01-01T00:00Z, or pass --from-empty-state"),
    ],
)
def test_mistakes_end_with_2_and_say_what_to_do(orders, capsys, arguments, told):
    assert main([argument.format(orders=orders) for argument in arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", ["plan", "run", "reprocess", "status", "vacuum", "conformance", "schema"])
def test_every_command_has_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    assert "Example: tidemark" in capsys.readouterr().out


def _alone(arguments, **environment):
    kept = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYSPARK_GATEWAY_PORT")}
    return subprocess.run(
        [*COMMAND, *arguments], env={**kept, **environment}, cwd=PROJECT, capture_output=True, text=True, check=False
    )


def test_without_java(tmp_path):
    done = _alone(["plan", "flights_weather", "--lake", str(tmp_path)], PATH=str(tmp_path))
    assert done.returncode == 3
    assert "install Java 17" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_only_reads_metadata_needs_no_java(orders, lake, tmp_path):
    assert main(["run", orders, "--to", "2024-01-01T02:00Z"]) == 0
    told = ("status", "plan", "run", "checkpoint show", "checkpoint expire --keep 1", "vacuum")
    for command in told:
        done = _alone([*command.split(), orders], PATH=str(tmp_path), TIDEMARK_LAKE=str(lake))
        assert (done.returncode, done.stderr) == (0, ""), command


def test_vacuum_tells_what_it_removes(orders, lake, capsys):
    assert main(["run", orders]) == 0
    garbage = lake / "orders/emissions/run=00000009.20240101T000000Z.1.deadbeef/0/part-0.parquet"
    garbage.parent.mkdir(parents=True)
    garbage.write_bytes(b"12345")
    capsys.readouterr()
    assert main(["vacuum", orders]) == 0
    told = capsys.readouterr().out
    assert "orders: gone" in told
    assert "1 other file may be of a run that goes on" in told
    assert "oldest versions that can then be read: emissions 0, late 0, checkpoint 0" in told
    assert main(["vacuum", orders, "--older-than", "0 s", "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "orders: would go" in told
    assert "never committed 1 5 bytes" in told
    assert garbage.exists()
    assert main(["vacuum", orders, "--older-than", "0 s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["files"] == [str(garbage.relative_to(lake / "orders"))]
    assert not garbage.exists()


def test_without_jars(tmp_path):
    done = _alone(["plan", "flights_weather", "--lake", str(tmp_path)], TIDEMARK_JARS=str(tmp_path))
    assert done.returncode == 3
    assert f"Delta's jars are not in {tmp_path}; run 'make setup'" in done.stderr


def test_with_a_full_disk(orders, lake, tmp_path, spark):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a small disk of its own needs root")
    output = lake / "orders"
    output.mkdir()
    # A file system with room for a table's first files, but not for all of a job's tables.
    script = f'mount -t tmpfs -o size=48k none {output} && shift && exec "$@"'
    inside = ["unshare", "-m", "sh", "-c", script, "sh", "sh", *COMMAND, "run", orders, "--lake", str(lake)]
    done = subprocess.run(inside, cwd=PROJECT, capture_output=True, text=True, check=False)
    if "mount" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert done.returncode == 3, done.stderr
    assert "the disk is full" in done.stderr
    assert "nothing of this job was published" in done.stderr
    assert "Traceback" not in done.stderr
    assert _alone(["run", orders, "--lake", str(lake)]).returncode == 0, "with room again it runs"
    ledger = spark.read.format("delta").load(f"{output}/ledger")
    assert ledger.count() == 2
