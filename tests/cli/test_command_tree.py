"""Tests of the command tree: options, help, global options and confirmations, without Spark."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from typer.main import get_command

from tests.conftest import write_chain
from tidemark.cli import compare, quality
from tidemark.cli.app import create_app, main
from tidemark.cli.common import GlobalOptions, set_global_options
from tidemark.cli.erase import list_readers
from tidemark.config import load_pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import PipelineFileError
from tidemark.quality.results_table import SCHEMA, append_rejection_results

MAX_OPTIONS = 10
"""Maximum number of options of a command, without --help."""


def list_commands(group, path=()):
    """Yield the path of each command below a group, and the command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(list_commands(get_command(create_app())))


@pytest.fixture
def lake(tmp_path, monkeypatch):
    """Set an empty lake, and a folder with a valid and an invalid pipeline file."""
    files = tmp_path / "pipelines"
    files.mkdir()
    (files / "orders.yaml").write_text(
        """
        name: orders
        dialect: flink-datastream
        left: {table: l, event_time: at, watermark_delay: 1 minute}
        right: {table: r, event_time: at, watermark_delay: 1 minute}
        join: {keys: [k], interval: {lower: 0 seconds, upper: 1 hour}}
        slices: {every: 1 hour, start: 2024-01-01T00:00:00Z, end: 2024-01-03T00:00:00Z}
        """
    )
    (files / "wrong.yaml").write_text("name: wrong\n")
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(files))
    monkeypatch.setenv("TIDEMARK_LAKE", str(tmp_path / "lake"))
    return tmp_path / "lake"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_command_has_few_options_with_help_and_an_example(path):
    command = COMMANDS[path]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    assert len(options) <= MAX_OPTIONS + any(parameter.name == "help" for parameter in options)
    assert [parameter.name for parameter in command.params if not getattr(parameter, "help", None)] == []
    assert f"Example: `tidemark {' '.join(path)}" in command.help


def test_global_options_stand_before_or_after_the_command(lake, capsys):
    outputs = []
    for arguments in (["--json", "list"], ["list", "--json"]):
        assert main([*arguments, "--lake", str(lake)]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0] == outputs[1]


def test_version_option_prints_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "tidemark 0.1.0\n"


def test_list_shows_state_of_each_pipeline_file(lake, capsys):
    assert main(["list", "--json"]) == 0
    orders, wrong = json.loads(capsys.readouterr().out)
    assert (orders["pipeline"], orders["state"], orders["end"]) == ("orders", "no slices", None)
    assert (orders["uncommitted"], orders["conflicts"]) == (48, [])
    assert (wrong["pipeline"], wrong["state"]) == ("wrong.yaml", "invalid")
    assert "dialect: is missing" in wrong["problem"]

    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].rstrip().endswith(" 48")
    assert [line.split()[:3] for line in lines[:3]] == [
        ["pipeline", "state", "slices"],
        ["orders", "no", "slices"],
        ["wrong.yaml", "invalid", "0"],
    ]
    assert lines[3:] == [f"wrong.yaml: {wrong['problem']}"]


def test_status_and_list_show_a_rejected_first_run(lake, capsys):
    name = "expect_column_values_to_not_be_null(column left_v)"
    result = {"slice": datetime(2024, 1, 1, 1, tzinfo=UTC), "expectation": name, "outcome": "failed"}
    rows = pa.Table.from_pylist([result], SCHEMA)
    append_rejection_results(PipelineTables(f"{lake}/orders"), rows)

    assert main(["status", "orders"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "slice 2024-01-01T01:00Z was rejected by the quality gate at 20" in output
    assert output.endswith(f"Z: {name} To see why: tidemark quality show orders")
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "rejected"


def test_printed_command_of_a_candidate_shows_its_results(lake, capsys):
    result = {"slice": datetime(2024, 1, 1, tzinfo=UTC), "expectation": "rows", "severity": "critical"}
    rows = pa.Table.from_pylist([{**result, "outcome": "failed"}], SCHEMA)
    append_rejection_results(PipelineTables(f"{lake}/orders/candidates/wide"), rows)

    assert main(["status", "orders", "--candidate", "wide"]) == 0
    command = capsys.readouterr().out.rpartition("tidemark ")[2].split()

    assert command == ["quality", "show", "orders", "--candidate", "wide"]
    assert main([*command, "--json"]) == 0
    [history] = json.loads(capsys.readouterr().out)
    assert (history["expectation"], history["outcomes"]) == ("rows", {"failed": 1})


def test_list_shows_other_pipelines_if_tables_of_one_cannot_be_read(lake, capsys):
    file = lake.parent / "pipelines" / "orders.yaml"
    (file.parent / "refunds.yaml").write_text(file.read_text().replace("name: orders", "name: refunds"))
    log = lake / "orders" / "ledger" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("no commit\n")

    assert main(["list", "--json"]) == 0

    orders, refunds, _ = json.loads(capsys.readouterr().out)
    assert (orders["state"], refunds["state"]) == ("invalid", "no slices")
    assert orders["problem"].startswith("its tables cannot be read: ")
    assert orders["problem"].endswith(". Check their folder.")


def test_list_warns_of_files_with_equal_names_or_outputs(lake, capsys):
    folder = lake.parent / "pipelines"
    text = (folder / "orders.yaml").read_text()
    (folder / "orders_by_day.yaml").write_text(text)
    (folder / "refunds.yaml").write_text(text.replace("name: orders", "name: refunds\n        output: orders"))

    assert main(["list", "--json"]) == 0
    conflicts = {summary["file"]: summary["conflicts"] for summary in json.loads(capsys.readouterr().out)}
    assert conflicts == {
        "orders.yaml": [],
        "orders_by_day.yaml": ["the same name and output as orders.yaml"],
        "refunds.yaml": ["the same output as orders.yaml"],
        "wrong.yaml": [],
    }

    assert main(["list"]) == 0
    assert (
        "warning: orders_by_day.yaml: has the same name and output as orders.yaml. Change one of the files."
    ) in capsys.readouterr().out


def test_validate_refuses_files_with_the_same_name_or_output(lake, tmp_path, capsys):
    orders = tmp_path / "pipelines" / "orders.yaml"
    same_name, same_output = tmp_path / "same_name.yaml", tmp_path / "same_output.yaml"
    same_name.write_text(orders.read_text().rstrip() + "\n        output: other\n")
    other_name = orders.read_text().rstrip().replace("name: orders", "name: others")
    same_output.write_text(other_name + "\n        output: ./orders\n")

    assert main(["validate", str(orders), str(orders)]) == 0
    assert main(["validate", *map(str, (orders, same_name, same_output))]) == 2

    errors = " ".join(capsys.readouterr().err.split())
    assert f"{same_name}: has the same name as {orders}. Give each file" in errors
    assert f"{same_output}: has the same output as {orders}. Give each file" in errors


def test_validate_checks_a_file_once_that_is_named_in_several_ways(lake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path / "pipelines")

    assert main(["validate", "orders", "./orders.yaml", str(tmp_path / "pipelines" / "orders.yaml")]) == 0

    assert capsys.readouterr().out.count("valid") == 1


def test_validate_names_each_file_with_the_same_name_or_output(lake, tmp_path, capsys):
    orders = tmp_path / "pipelines" / "orders.yaml"
    files = [orders, tmp_path / "b.yaml", tmp_path / "c.yaml"]
    files[1].write_text(orders.read_text().replace("name: orders", "name: b"))
    files[2].write_text(orders.read_text().rstrip() + "\n        output: b\n")

    assert main(["validate", *map(str, files)]) == 2

    errors = " ".join(capsys.readouterr().err.split())
    assert f"{files[2]}: has the same name as {orders} and the same output as {files[1]}. Give each file" in errors


def test_validate_needs_no_lake_and_names_invalid_fields(lake, capsys):
    assert main(["validate", "orders"]) == 0
    assert "orders: valid. orders: inner join, dialect flink-datastream, " in capsys.readouterr().out
    assert main(["validate", "wrong", "orders", "missing.yaml"]) == 2
    output = capsys.readouterr()
    assert output.out.startswith("orders: valid. ")
    errors = output.err.splitlines()
    assert ["dialect: is missing" in errors[0], "there is no pipeline file missing.yaml" in errors[1]] == [True, True]
    assert main(["validate", "wrong", "orders", "--json"]) == 2
    wrong, orders = json.loads(capsys.readouterr().out)
    assert (orders["pipeline"], orders["problem"]) == ("orders", None)
    assert "dialect: is missing" in wrong["problem"]
    assert not lake.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["tables", "vacuum", "orders"],
        ["tables", "erase", "orders", "--left", "k = 1"],
        ["version", "drop", "orders", "wide"],
    ],
    ids=" ".join,
)
def test_irreversible_command_without_terminal_requires_yes(lake, capsys, arguments):
    assert main(arguments) == 2
    assert "This cannot be undone. Pass --yes to confirm." in " ".join(capsys.readouterr().err.split())
    assert not lake.exists()


def test_compare_names_the_origin_of_the_table_in_errors(lake):
    set_global_options(GlobalOptions())
    by_option = compare._Selection.from_options("orders", "typo", None, None, (None, None, None), ())
    of_candidate = compare._Selection.from_options("orders", None, "orders", "wide", (None, None, None), ())

    assert (by_option.request.table, by_option.request.origin) == ("typo", "--with")
    assert (of_candidate.request.table, of_candidate.request.origin) == ("orders/emissions", "--candidate")
    with pytest.raises(PipelineFileError, match="--reference: there is no pipeline orderz in .* Did you mean orders"):
        compare._Selection.from_options("orders", "typo", "orderz", None, (None, None, None), ())


def test_compare_set_without_value_is_a_user_error(lake, capsys):
    assert main(["compare", "run", "orders", "--with", "t", "--set", "ignore_columns"]) == 2
    assert "--set ignore_columns: the value is missing. Write NAME=VALUE" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["plan", "orders", "--to", ""], "--to"),
        (["plan", "orders", "--to="], "--to"),
        (["reprocess", "orders", "--plan-file", "", "--json"], "--plan-file"),
        (["status", "orders", "--lake", ""], "--lake"),
    ],
)
def test_main_empty_value_of_an_option_is_refused(lake, capsys, arguments, option):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: the value of {option} is empty. Write a value, or leave")


def test_main_empty_reference_stands_for_none(lake, capsys):
    assert main(["compare", "run", "orders", "--reference", "", "--set", "nope"]) == 2
    assert "there is no table to compare with" in " ".join(capsys.readouterr().err.split())


def test_quality_show_without_results_names_no_data_docs(lake, capsys):
    assert main(["quality", "show", "orders"]) == 0
    assert "Data Docs" not in capsys.readouterr().out


def test_conformance_missing_file_is_refused_before_spark_starts(lake, monkeypatch, capsys):
    monkeypatch.setenv("TIDEMARK_JARS", str(lake / "none"))
    assert main(["conformance", "missing.jsonl"]) == 2
    assert "there is no vector file missing.jsonl. Check the path." in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["checkpoint", "show", "orders"],
        ["adopt", "orders", "streamed", "--until", "2024-01-01T00:00Z"],
    ],
)
def test_main_without_slices_names_a_command_that_can_be_copied(lake, capsys, arguments):
    assert main(arguments) == 2
    assert "se tidemark run orders." in " ".join(capsys.readouterr().err.replace("Run tide", "Use tide").split())


def test_erasure_in_a_chain_names_the_command_for_the_pipeline_that_reads_the_rows(tmp_path):
    write_chain(tmp_path)
    [line] = list_readers(load_pipeline(tmp_path / "orders.yaml"))
    assert line.startswith("shipped reads this output. Erase the rows derived from them there, too: ")
    assert line.endswith(f"tidemark tables erase {tmp_path}/shipped.yaml --left SQL")


def test_quality_show_of_a_lake_without_write_access_leaves_data_docs_alone(lake, monkeypatch):
    monkeypatch.setattr(quality, "find_unwritable_folder", str)
    monkeypatch.setattr(quality, "update_data_docs", lambda _: pytest.fail("it writes pages"))
    assert main(["quality", "show", "orders"]) == 0
