"""Import joins of Flink SQL from plans that Flink's planner has compiled, without Flink and without a JVM."""

import copy
import json
import re
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from tests.importing.recorded_planner import SCRIPTS, list_scripts, read_answers, write_reference_script
from tests.importing.reference_pipelines import PIPELINES
from tidemark.cli.app import main
from tidemark.cli.draft_output import parse_settings
from tidemark.config import load_pipeline
from tidemark.errors import ImportRefusedError, PipelineFileError
from tidemark.importing import flink_planner
from tidemark.importing.draft_completion import ImportOptions, create_draft
from tidemark.importing.expressions import Call, Column
from tidemark.importing.flink_bounds import CLEANUP, TIME_ZONE
from tidemark.importing.flink_input import PlanInput
from tidemark.importing.flink_join import IDLE_TIMEOUT, JobSettings, _check_append_only, _read_event_time
from tidemark.importing.flink_output import read_output
from tidemark.importing.flink_plan import PlanNode, create_plan
from tidemark.importing.sources import import_compiled_plan

PROJECT = Path(__file__).parents[2]
FLINK = PROJECT / ".venv-flink" / "bin" / "python"
ANSWERS = read_answers()
FILLED = ["--left-table", "l", "--right-table", "r", "--arrival", "received_at", "--start", "2024-01-01T00:00Z"]
"""Options for everything that no plan has."""


@pytest.fixture(autouse=True)
def recorded_answers(monkeypatch, tmp_path):
    """Return recorded answers instead of starting Flink, and work in a temporary folder."""
    by_script = {record.script: record.answer for record in ANSWERS.values()}
    monkeypatch.setattr(flink_planner, "run_planner", lambda script, _: by_script[script])
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def import_script(tmp_path):
    """Return a function that imports a join of a script with the command, and loads the written file."""

    def run(name, *options, script=None):
        (tmp_path / f"{name}.sql").write_text(script or SCRIPTS[name])
        arguments = ["import", f"{name}.sql", "--output", f"{name}.yaml", *FILLED, *options]
        assert main(arguments) == 0
        return load_pipeline(tmp_path / f"{name}.yaml")

    return run


@pytest.fixture
def import_plan(tmp_path):
    """Return a function that imports the plan of a script's query with the command, and returns the exit code."""

    def run(plan, *options, output="p.yaml"):
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        return main(["import", "plan.json", "--output", output, *options])

    return run


def get_plan(name, number=0):
    return copy.deepcopy(ANSWERS[name].answer["plans"][number]["plan"])


def test_recorded_scripts_are_those_of_the_tests():
    assert {name: record.script for name, record in ANSWERS.items()} == list_scripts()


@pytest.mark.parametrize("name", PIPELINES)
def test_import_of_a_reference_job_gives_the_join_of_its_pipeline(name, import_script):
    expected = PIPELINES[name]

    pipeline = import_script(name, "--arrival", "event-time", script=write_reference_script(expected))

    assert pipeline.dialect == expected.dialect
    assert pipeline.time_zone == expected.time_zone
    assert (pipeline.left.where, pipeline.right.where) == ("side = 'left'", "side = 'right'")
    assert pipeline.join.type == expected.join.type
    assert [(pair.left, pair.right) for pair in pipeline.join.keys] == [("key_0", "key_0"), ("key_1", "key_1")]
    assert pipeline.join.window == expected.join.window
    assert pipeline.join.min_cleanup_interval == expected.join.min_cleanup_interval
    if expected.join.interval:
        assert pipeline.join.interval.to_closed(1000) == expected.join.interval.to_closed(1000)


def test_import_of_an_interval_join_takes_over_all_of_the_plan(import_script):
    pipeline = import_script("orders", "--set", "flink_version='2.2'", "--every", "1 day")

    settings = pipeline.model_dump(mode="json", exclude_defaults=True)
    assert settings == {
        "name": "shipped_orders",
        "dialect": "flink-sql",
        "flink_version": "2.2",
        "output": "shipped_orders",
        "left": {
            "table": "l",
            "event_time": {"column": "order_ts"},
            "arrival": {"column": "received_at"},
            "watermark_delay": "10 seconds",
            "idle_timeout": "20 seconds",
            "where": r"customer IN ('a', 'c\\d', 'it\'s')",
        },
        "right": {
            "table": "r",
            "event_time": {"column": "ship_ts"},
            "arrival": {"column": "received_at"},
            "watermark_delay": "5 minutes",
            "idle_timeout": "30 seconds",
            "where": "id <> 7",
        },
        "join": {
            "type": "left",
            "keys": [{"left": "order_id", "right": "order_id"}, {"left": "customer", "right": "client"}],
            "interval": {"lower": "-59 minutes 59 seconds 999 ms", "upper": "4 hours"},
            "condition": "left_amount > 10",
            "min_cleanup_interval": "5 minutes",
        },
        "slices": {"every": "1 day", "start": "2024-01-01T00:00Z"},
        "select": {
            "order_id": "left_order_id",
            "customer": "left_customer",
            "shipment": "right_id",
            "ship_ts": "right_ship_ts",
        },
    }


BERLIN = {"time_zone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("number", "join", "top_level"),
    [
        (
            1,
            {
                "type": "full",
                "window": {"tumbling": "1 hour", "offset": "10 minutes"},
                "condition": "right_v > left_id",
            },
            {"time_zone": "America/New_York"},
        ),
        (2, {"type": "anti", "window": {"sliding": {"size": "1 hour", "slide": "10 minutes"}}}, BERLIN),
        (3, {"type": "right", "window": {"cumulate": {"size": "1 day", "step": "10 minutes"}}}, BERLIN),
        (4, {"type": "semi", "window": {"tumbling": "1 minute 30 seconds", "offset": "-10 seconds"}}, {}),
        (5, {"window": {"session": {"gap": "10 minutes"}}}, BERLIN),
    ],
)
def test_import_of_a_window_join_takes_over_windows_and_their_time_zone(number, join, top_level, import_script):
    pipeline = import_script("windows", "--join", str(number), "--conf", f"{TIME_ZONE}=America/New_York")

    settings = pipeline.model_dump(mode="json", exclude_defaults=True)
    keys = {"keys": [{"left": "k", "right": "k"}]}
    assert settings["join"] == keys | join
    assert {name: settings[name] for name in ("time_zone",) if name in settings} == top_level


def test_import_without_time_zone_leaves_it_open(import_script):
    with pytest.raises(PipelineFileError, match="time_zone: still TODO"):
        import_script("windows", "--join", "1")


def test_import_reads_epoch_columns_as_event_time(import_script):
    pipeline = import_script("windows", "--join", "2")

    assert (pipeline.left.event_time.column, pipeline.left.event_time.unit) == ("ms", "ms")
    assert (pipeline.right.event_time.column, pipeline.right.event_time.unit) == ("ts", None)
    assert pipeline.right.where == "v > 3"


def test_import_of_processing_time_uses_the_arrival(import_script):
    pipeline = import_script("processing_time")

    assert pipeline.join.time == "processing"
    assert pipeline.left.event_time == pipeline.left.arrival
    assert pipeline.left.watermark_delay is None
    assert pipeline.join.interval.to_closed(1000) == (-5000, 10_000)
    assert pipeline.join.keys[0].left == "lower(email)"


def test_import_translates_conditions_and_struct_fields(import_script):
    pipeline = import_script("filters", "--join", "1")

    assert pipeline.left.where == (
        "((n > 3) OR (f < 1.5E0) OR ok) AND k LIKE 'x%' AND (n < 5 OR n > 7) AND upper(k) <> 'X' AND `a b` IS NOT NULL"
    )
    assert pipeline.right.where == "d >= 1.25 AND upper(k) <> 'X' AND k LIKE 'x%'"
    assert pipeline.right.watermark_delay == timedelta(seconds=1.5)
    assert pipeline.join.condition == "left_n < right_d"
    assert [(pair.left, pair.right) for pair in pipeline.join.keys] == [("customer.id", "id"), ("k", "k")]


@pytest.mark.parametrize(
    ("number", "omitted"),
    [("1", "operator after the join: The pipeline ends with the join, before node"), ("2", "filter after the join: ")],
)
def test_import_lists_what_follows_the_join(number, omitted, import_script, tmp_path, capsys):
    import_script("filters", "--join", number)

    assert f"- {omitted}" in capsys.readouterr().out
    assert f"# - {omitted}" in (tmp_path / "filters.yaml").read_text()


def test_import_of_a_join_with_several_sinks_lists_their_filters():
    types = {2: "calc_1", 3: "calc_1", 4: "sink_2", 5: "calc_1", 6: "sink_2", 7: "group-aggregate_1", 8: "calc_1"}
    nodes = [{"id": 1, "type": "stream-exec-interval-join_1"}]
    nodes += [{"id": number, "type": f"stream-exec-{kind}"} for number, kind in types.items()]
    for number in (2, 5, 8):
        nodes[number - 1] |= {"condition": {"kind": "CALL"}, "description": f"Calc {number}"}
    edges = [(1, 2), (2, 4), (1, 3), (3, 5), (5, 6), (3, 7), (7, 8)]
    content = {"flinkVersion": "2.3", "nodes": nodes, "edges": [{"source": a, "target": b} for a, b in edges]}
    plan = create_plan(content)

    output = read_output(plan, plan.nodes[1], (), inner=True)

    assert (output.select, output.conditions) == ({}, ())
    assert [(omission.subject, omission.reason.partition(". Filter")[0]) for omission in output.omissions] == [
        ("select", "2 operators read the rows of the join. The emissions have all columns."),
        ("filter after the join", "node 2: Calc 2"),
        ("filter after the join", "node 5: Calc 5"),
        ("operator after the join", "The pipeline ends with the join, before node 7: group-aggregate"),
    ]


def test_import_leaves_an_unknown_output_column_to_the_user(import_plan, tmp_path, capsys):
    plan = get_plan("shipped")
    calc = next(node for node in plan["nodes"] if node["id"] == 9)
    customer = calc["projection"][1]
    reverse = {"kind": "CALL", "internalName": "$REVERSE$1", "operands": [customer], "type": customer["type"]}
    calc["projection"][1] = reverse

    assert import_plan(plan, *FILLED) == 0
    assert "Fill in: select.customer\n" in capsys.readouterr().out

    file = tmp_path / "p.yaml"
    text = file.read_text()
    comments = " ".join(text.replace("#", " ").split())
    assert (
        "calls REVERSE, which may differ in Spark SQL. Store its result as a column, or write its SQL here" in comments
    )
    with pytest.raises(PipelineFileError, match=r"select.customer: still TODO. Write a value"):
        load_pipeline(file)
    file.write_text(text.replace("TODO", "reverse(left_customer)"))
    columns = {"order_id": "left_order_id", "customer": "reverse(left_customer)", "carrier": "right_carrier"}
    assert load_pipeline(file).select == columns


@pytest.mark.parametrize(("text", "value"), [("2.10", "2.10"), ("'2.2'", "2.2"), ("2.1", "2.1")])
def test_set_reads_a_flink_version_as_text(text, value):
    assert parse_settings([f"flink_version={text}", "float=2.1"]) == {"flink_version": value, "float": 2.1}


REASONS = {
    1: "IS NOT DISTINCT FROM",
    3: "the left input is the output of another join (inner interval join, node 16: a with b). Leave out --left-table",
    4: "has no equal keys",
    5: "calls /, which may differ in Spark SQL",
    6: "the left input of the join is an aggregate",
    7: "is not the event time minus a constant",
    8: "the left input of the join is a union of tables",
    9: "is a changelog with updates",
    10: "calls REVERSE, which may differ in Spark SQL",
}


@pytest.mark.parametrize("number", REASONS)
def test_import_of_a_join_that_a_pipeline_cannot_express_is_refused(number, tmp_path, capsys):
    (tmp_path / "refused.sql").write_text(SCRIPTS["refused"])

    code = main(["import", "refused.sql", "--join", str(number), *FILLED])

    assert code == 2
    assert REASONS[number] in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("*.yaml"))


def test_import_of_the_first_join_of_a_chain_writes_its_output_stream(import_script):
    pipeline = import_script("refused", "--join", "2")

    assert pipeline.output_stream
    assert pipeline.name == "refused_join2"


def test_import_of_a_chain_writes_a_file_per_join(tmp_path, capsys):
    (tmp_path / "chain.sql").write_text(SCRIPTS["chain"])
    arguments = ["import", "chain.sql", "--arrival", "received_at", "--start", "2024-01-01T00:00Z"]

    assert main([*arguments, "--left-table", "a"]) == 2
    assert "is a chain of 2 joins, each with a file. Pass --join N with --left-table" in capsys.readouterr().err
    assert main([*arguments, "--name", "chain_join1"]) == 2
    assert "two joins of the chain would have one file" in capsys.readouterr().err
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "chain_join1.yaml exists already" in capsys.readouterr().err

    for name in ("chain_join1", "chain"):
        file = tmp_path / f"{name}.yaml"
        file.write_text(file.read_text().replace("TODO", "t"))
    pipeline = load_pipeline(tmp_path / "chain.yaml")
    assert pipeline.left.upstream.pipeline == "chain_join1"
    assert [(pair.left, pair.right) for pair in pipeline.join.keys] == [("left_k", "k")]
    assert pipeline.select == {"k": "left_left_k"}


CHAINS = {
    1: {"output_stream": True},
    2: {"left": ("chains_join1", "right"), "keys": [("left_k", "k")]},
    4: {"left": ("chains_join3", "left"), "keys": [("right_k", "k")]},
    6: {"left": ("chains_join5", "right"), "keys": [("left_k", "k")]},
    8: {"left": ("chains_join7", "left"), "keys": [("left_k", "k")]},
    11: {"left": ("chains_join9", "left"), "right": ("chains_join10", "right"), "keys": [("left_k", "left_k")]},
    13: {"left": ("chains_join12", "left"), "keys": [("left_k", "k")], "output_stream": True},
    14: {"left": ("chains_join13", "left"), "keys": [("left_left_k", "k")]},
    15: {},
}
"""Joins by number: the pipeline and the side whose time an input keeps, the keys, and if another join reads it."""


@pytest.mark.parametrize("number", CHAINS)
def test_import_of_a_chained_join_reads_the_output_of_the_first_one(number, tmp_path):
    (tmp_path / "chains.sql").write_text(SCRIPTS["chains"])
    expected = CHAINS[number]

    options = ["--arrival", "received_at", "--start", "2024-01-01T00:00Z", "--output", "j.yaml"]
    assert main(["import", "chains.sql", "--join", str(number), *options]) == 0

    content = yaml.safe_load((tmp_path / "j.yaml").read_text())
    for side in ("left", "right"):
        pipeline, time = expected.get(side, (None, None))
        assert content[side].get("pipeline") == pipeline
        assert content[side]["event_time"] == (time or "ts")
    pairs = [(key, key) if isinstance(key, str) else (key["left"], key["right"]) for key in content["join"]["keys"]]
    assert pairs == expected.get("keys", [("k", "k")])
    assert content.get("output_stream", False) == expected.get("output_stream", False)


@pytest.mark.parametrize("setting", ["slices.every=2 hours", "slices.start=2024-02-01T00:00Z", "output_stream=false"])
def test_import_of_a_chained_join_takes_over_settings(setting, tmp_path):
    (tmp_path / "chains.sql").write_text(SCRIPTS["chains"])
    options = ["--arrival", "received_at", "--start", "2024-01-01T00:00Z", "--output", "j.yaml", "--set", setting]

    assert main(["import", "chains.sql", "--join", "13", *options]) == 0

    content = yaml.safe_load((tmp_path / "j.yaml").read_text())
    name, value = setting.split("=")
    section = content["slices"] if "." in name else content
    assert str(section[name.rpartition(".")[2]]).lower().startswith(value[:10].lower())


def test_import_of_a_chain_that_cannot_be_one_is_refused(tmp_path, capsys):
    (tmp_path / "chains.sql").write_text(SCRIPTS["chains"])

    assert main(["import", "chains.sql", "--join", "16"]) == 2
    assert "the semi window join, node 128, is before another join" in capsys.readouterr().err
    assert main(["import", "chains.sql", "--join", "2", "--arrival", "kafka:received_at"]) == 2
    assert "node 8: a with b: The next join cannot read the output: left.partition is not" in capsys.readouterr().err


def test_import_without_a_join_names_the_operator(tmp_path, capsys):
    (tmp_path / "regular_join.sql").write_text(SCRIPTS["regular_join"])

    assert main(["import", "regular_join.sql"]) == 2
    assert "inner join, node 9, is a regular join" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("option", [[], ["--join", "6"]])
def test_import_of_one_of_several_joins_needs_its_number(option, tmp_path, capsys):
    (tmp_path / "windows.sql").write_text(SCRIPTS["windows"])

    assert main(["import", "windows.sql", *option]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "there are 5 joins. Choose with --join N: 1: full window join, node 12; 2: anti window join" in message


def test_import_of_a_compiled_plan_has_its_version_and_leaves_open_what_no_plan_has(import_plan, tmp_path, capsys):
    assert import_plan(get_plan("orders"), "--name", "orders") == 0

    out = " ".join(capsys.readouterr().out.split())
    assert "Fill in: left.table, left.arrival, right.table, right.arrival, slices.start" in out
    assert f"If the job sets it, pass --conf {CLEANUP}=T" in out
    content = yaml.safe_load((tmp_path / "p.yaml").read_text())
    assert (content["name"], content["flink_version"]) == ("orders", "2.3")

    assert main(["validate", "p.yaml"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "p.yaml: left.table, left.arrival, right.table, right.arrival, slices.start: still TODO." in message


def test_import_with_all_options_leaves_nothing_open(import_plan, capsys):
    conf = ["--conf", f"{CLEANUP}=1 h", "--conf", f"{IDLE_TIMEOUT}=PT1M30S"]

    assert import_plan(get_plan("orders"), *FILLED, *conf) == 0
    assert "Fill in" not in capsys.readouterr().out
    pipeline = load_pipeline("p.yaml")
    assert pipeline.join.min_cleanup_interval == timedelta(hours=1)
    assert pipeline.left.idle_timeout == pipeline.right.idle_timeout == timedelta(seconds=90)


def test_import_names_settings_of_the_job_that_it_does_not_read(import_plan, capsys):
    assert import_plan(get_plan("orders"), *FILLED, "--conf", f"{CLEANUP}s=1 h", "--conf", f"{TIME_ZONE}=UTC") == 0

    output = " ".join(capsys.readouterr().out.split())
    assert f"- {CLEANUP}s: The import does not read it. Did you mean {CLEANUP}?" in output
    assert f"- {TIME_ZONE}" not in output


def test_import_writes_a_comment_for_each_setting(import_plan, tmp_path):
    import_plan(get_plan("orders"), *FILLED)

    previous = ""
    for line in (tmp_path / "p.yaml").read_text().splitlines():
        is_value = not line.strip().startswith("#") and not line.endswith(":")
        assert not is_value or "# " in line or previous.strip().startswith("# "), line
        previous = line


def test_import_does_not_replace_a_file(import_plan, capsys):
    assert import_plan(get_plan("orders")) == 0
    assert import_plan(get_plan("orders")) == 2
    assert "p.yaml exists already." in " ".join(capsys.readouterr().err.split())


def test_import_of_a_script_of_many_forms_lists_what_was_not_read(import_script, capsys):
    pipeline = import_script("forms", "--join", "2")

    assert pipeline.name == "out2"
    assert pipeline.left.watermark_delay == timedelta(seconds=10)
    out = " ".join(capsys.readouterr().out.split())
    assert "statement: ADD JAR '/x.jar' ... is not run." in out
    assert "hint: /*+ OPTIONS('scan.startup.mode'='earliest') */ is not read." in out


def test_import_of_temporary_tables_whose_schema_the_plan_lacks_is_the_same(import_plan):
    plan = get_plan("windows", 1)
    for node in plan["nodes"]:
        node.get("scanTableSource", {}).get("table", {}).pop("resolvedTable", None)
    conf = ["--conf", f"{TIME_ZONE}=UTC"]

    assert import_plan(get_plan("windows", 1), *FILLED, *conf, output="q.yaml") == 0
    assert import_plan(plan, *FILLED, *conf) == 0
    assert load_pipeline("p.yaml") == load_pipeline("q.yaml")


def push_watermark_into_source(plan):
    """Move the first watermark into its source, as the planner does for Kafka."""
    scan, assigner = plan["nodes"][:2]
    ability = {"watermarkExpr": assigner["watermarkExpr"], "idleTimeoutMillis": 45_000, "type": "WatermarkPushDown"}
    scan["scanTableSource"]["abilities"] = [ability]
    plan["nodes"].remove(assigner)
    for edge in plan["edges"]:
        edge["source"] = scan["id"] if edge["source"] == assigner["id"] else edge["source"]
    plan["edges"] = [edge for edge in plan["edges"] if edge["target"] != assigner["id"]]
    return scan


def test_import_of_a_watermark_in_the_source_has_its_idle_timeout_and_names_the_partition(import_plan, capsys):
    plan = get_plan("orders")
    push_watermark_into_source(plan)

    assert import_plan(plan, *FILLED) == 0
    assert "left.partition: The source has a watermark per partition." in capsys.readouterr().out
    pipeline = load_pipeline("p.yaml")
    assert pipeline.left.watermark_delay == timedelta(seconds=10)
    assert pipeline.left.idle_timeout == timedelta(seconds=45)


def test_import_of_a_filter_in_the_source_is_before_the_watermark(import_plan):
    plan = get_plan("orders")
    scan = push_watermark_into_source(plan)
    calc = plan["nodes"][1]
    filters = {"type": "FilterPushDown", "predicates": [calc["condition"]]}
    calc["condition"] = None
    scan["scanTableSource"]["abilities"].insert(0, filters)

    assert import_plan(plan, *FILLED) == 0
    assert load_pipeline("p.yaml").left.filter == "before_watermark"


@pytest.mark.parametrize("script", ["orders", "processing_time"])
def test_import_with_mini_batches_is_refused_if_watermarks_matter(script, import_plan, capsys):
    plan = get_plan(script)
    node = next(node for node in plan["nodes"] if node["type"].startswith("stream-exec-exchange"))
    node["type"] = "stream-exec-mini-batch-assigner_1"

    if script == "processing_time":
        assert import_plan(plan, *FILLED) == 0
    else:
        assert import_plan(plan, *FILLED) == 2
        assert "is delayed to the ends of mini-batches" in " ".join(capsys.readouterr().err.split())


def test_import_of_an_earlier_flink_whose_inputs_can_be_idle_leaves_its_version_out(import_plan, capsys, tmp_path):
    idle = ["--conf", f"{IDLE_TIMEOUT}=30 s"]

    assert import_plan(get_plan("orders") | {"flinkVersion": "1.17"}, *FILLED, *idle) == 0
    assert "- flink_version: The plan is of Flink 1.17, whose join keeps its watermark" in capsys.readouterr().out
    pipeline = load_pipeline("p.yaml")
    assert pipeline.flink_version is None
    assert pipeline.join.min_cleanup_interval == "half"
    origin = f"default of Flink 1.17; if the job sets it, pass --conf {CLEANUP}=T"
    assert origin in re.sub(r"\s+(# )?", " ", Path("p.yaml").read_text())
    assert import_plan(get_plan("orders") | {"flinkVersion": "2.2"}, *FILLED, *idle, output="q.yaml") == 0
    assert load_pipeline("q.yaml").flink_version == "2.2"


@pytest.mark.parametrize(("version", "code"), [("1.17", 0), ("2.3", 0), ("2.4", 2), ("3.0", 2), ("next", 2)])
def test_import_of_a_plan_of_a_later_flink_is_refused(version, code, import_plan, capsys):
    assert import_plan(get_plan("orders") | {"flinkVersion": version}, *FILLED) == code
    if code:
        assert f"the plan is of Flink {version}, and plans are read up to 2.3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "path", "name"),
    [
        ("orders", (), "earlyFireDelay"),
        ("orders", ("intervalJoinSpec", "windowBounds"), "intervalJoinSpec.windowBounds.grace"),
        ("orders", ("intervalJoinSpec", "joinSpec"), "intervalJoinSpec.joinSpec.hint"),
        ("windows", ("leftWindowing", "window"), "leftWindowing.window.trigger"),
    ],
)
def test_import_of_a_join_with_an_unknown_property_is_refused(script, path, name, import_plan, capsys):
    plan = get_plan(script)
    target = next(node for node in plan["nodes"] if re.search("interval-join|window-join", node["type"]))
    for part in path:
        target = target[part]
    target[name.rpartition(".")[2]] = None
    assert import_plan(plan, *FILLED, "--conf", f"{TIME_ZONE}=UTC") == 0
    target[name.rpartition(".")[2]] = 60_000

    assert import_plan(plan, *FILLED, "--conf", f"{TIME_ZONE}=UTC", output="q.yaml") == 2
    assert f"has the property {name}, which is not read" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("precision", "event_time"), [(0, "TODO"), (2, "TODO"), (3, "order_ts"), (6, "order_ts")])
def test_import_of_an_event_time_without_its_milliseconds_leaves_it_open(precision, event_time):
    cast = Call("CAST", (Column(("order_ts",), "TIMESTAMP(6)"),), f"TIMESTAMP({precision})")

    assert _read_event_time(cast, PlanNode(1, "watermark-assigner", {}, ())).value == event_time


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({"connector": "confluent", "changelog.mode": "upsert"}, True),
        ({"connector": "confluent", "changelog.mode": "retract"}, True),
        ({"connector": "confluent", "changelog.mode": "append"}, False),
        ({"connector": "upsert-kafka"}, True),
        ({"connector": "kafka", "value.format": "debezium-json"}, True),
        ({"connector": "kafka"}, False),
    ],
)
def test_check_append_only_refuses_changelogs(options, is_refused):
    rows = PlanInput("t", {}, (), PlanNode(1, "table-source-scan", {}, ()))
    job = JobSettings({}, {"t": options}, is_job_plan=False)

    with pytest.raises(ImportRefusedError, match="is a changelog") if is_refused else nullcontext():
        _check_append_only("left", rows, job)


def test_import_names_tables_that_may_be_changelogs(import_script, capsys):
    import_script("forms", "--join", "2")

    out = " ".join(capsys.readouterr().out.split())
    assert "- primary key of prod.shop.orders: If the connector iceberg reads updates, Flink refuses the join." in out
    assert "primary key of prod.shop.shipments" not in out


def test_import_reads_tables_after_they_were_changed_or_copied(import_script, tmp_path, capsys):
    pipeline = import_script("alter", "--join", "1")

    assert pipeline.left.watermark_delay == pipeline.right.watermark_delay == timedelta(minutes=1)
    assert pipeline.left.idle_timeout == pipeline.right.idle_timeout == timedelta(seconds=40)
    assert pipeline.left.where == "order_id > 7 AND region = 'x'"
    assert main(["import", "alter.sql", "--join", "2", *FILLED]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "the right input (default_catalog.default_database.corrections) is a changelog with updates" in message


@pytest.mark.parametrize("number", range(1, 8))
def test_import_reads_queries_of_all_statements(number, import_script):
    pipeline = import_script("statements", "--join", str(number))

    assert -pipeline.join.interval.lower == timedelta(minutes=number)
    assert pipeline.name == ("joined_rows" if number < 3 else "sink")
    if number == 1:
        assert pipeline.select == {"w": "right_v", "v": "left_v"}


def test_import_of_a_script_with_a_byte_order_mark_reads_it(import_plan, tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(get_plan("orders")), encoding="utf-8-sig")

    assert main(["import", "plan.json", "--output", "p.yaml", *FILLED]) == 0


@pytest.mark.parametrize(("zone", "name"), [("GMT+08:00", "Etc/GMT-8"), ("GMT-03:00", "Etc/GMT+3")])
def test_import_of_a_time_zone_of_whole_hours_has_its_name(zone, name, import_script):
    assert import_script("windows", "--join", "1", "--conf", f"{TIME_ZONE}={zone}").time_zone == name


def test_import_of_windows_in_two_time_zones_is_refused(import_plan, capsys):
    plan = get_plan("windows", 1)
    join = next(node for node in plan["nodes"] if "rightWindowing" in node)
    join["rightWindowing"]["timeAttributeType"]["type"] = "TIMESTAMP_WITHOUT_TIME_ZONE"

    assert import_plan(plan, *FILLED) == 2
    assert "in two time zones" in " ".join(capsys.readouterr().err.split())


def test_import_of_filters_on_both_sides_of_the_watermark_is_refused(import_plan, capsys):
    plan = get_plan("orders")
    scan = push_watermark_into_source(plan)
    filters = {"type": "FilterPushDown", "predicates": [plan["nodes"][1]["condition"]]}
    scan["scanTableSource"]["abilities"].insert(0, filters)

    assert import_plan(plan, *FILLED) == 2
    assert "filtered both before and after its watermark" in " ".join(capsys.readouterr().err.split())


def test_import_of_a_computed_event_time_leaves_it_open(import_plan, tmp_path):
    plan = get_plan("windows", 1)
    for node in plan["nodes"]:
        for expression in node.get("projection") or ():
            if expression.get("internalName") == "$TO_TIMESTAMP_LTZ$1":
                expression["internalName"] = "$TO_TIMESTAMP$1"

    assert import_plan(plan, *FILLED, "--conf", f"{TIME_ZONE}=UTC") == 0
    assert yaml.safe_load((tmp_path / "p.yaml").read_text())["left"]["event_time"] == "TODO"
    assert import_plan(plan, *FILLED, "--set", "left.event_time=ts", output="q.yaml") == 0
    assert load_pipeline("q.yaml").left.event_time.column == "ts"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("== Optimized Physical Plan ==", "it is not JSON"),
        ('{"nodes": []}', "it is not a compiled plan"),
        ("[]", "it is not a compiled plan"),
        ('{"flinkVersion": "2.3", "nodes": [], "edges": []}', "the plan has no join"),
    ],
)
def test_import_of_something_else_names_what_to_give(text, message, tmp_path, capsys):
    (tmp_path / "plan.json").write_text(text)

    assert main(["import", "plan.json"]) == 2
    assert f"plan.json: {message}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("source", ["missing.json", "missing.sql", "folder.txt", "nothing"])
def test_import_of_a_missing_source_is_one_line(source, capsys):
    assert main(["import", source]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_import_of_sql_without_flink_names_the_command_that_installs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.sql").write_text(SCRIPTS["orders"])

    assert main(["import", "orders.sql"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "pip install apache-flink==2.3.0" in message
    assert "or give the JSON that COMPILE PLAN writes" in message


@pytest.mark.parametrize(
    "options",
    [
        ["--set", "left"],
        ["--conf", "=1"],
        ["--set", "name.x=1"],
        ["--start", "yesterday"],
        ["--every", "1 month"],
        ["--arrival", "kafka:"],
        ["--set", "slices.time_zone=Nowhere"],
        ["--set", "slices.time_zone=Europe"],
        ["--set", "slices.time_zone=5"],
    ],
)
def test_import_with_an_invalid_option_is_refused(options, import_plan, tmp_path):
    assert import_plan(get_plan("orders"), *options) == 2
    assert not (tmp_path / "p.yaml").exists()


PUBLIC_JOBS = {
    "Flink's documentation, window join": None,
    "Flink's documentation, interval join": None,
    "Confluent's tutorial": None,
    "Flink SQL cookbook": "is a regular join",
    "Nexmark q3": "is a regular join",
    "Nexmark q4, q9": "is a regular join",
    "Nexmark q7": "is a regular join",
    "Nexmark q8": "the left input of the join is an aggregate",
    "Nexmark q20": "is a regular join",
}
"""Reason for the refusal of each public job, None if its join is imported."""


def test_joins_of_public_jobs_are_imported_or_refused_with_a_reason(import_plan, capsys):
    plans = [query["plan"] for query in ANSWERS["public_jobs"].answer["plans"]]
    for number, ((job, reason), plan) in enumerate(zip(PUBLIC_JOBS.items(), plans, strict=True)):
        code = import_plan(plan, *FILLED, output=f"p{number}.yaml")

        assert (code, job) == (2 if reason else 0, job)
        assert (reason or "") in " ".join(capsys.readouterr().err.split())


def list_paths(value, path=()):
    """Yield the path of each part of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from list_paths(part, (*path, key))


@pytest.mark.parametrize("name", ["orders", "windows", "processing_time"])
def test_import_of_a_damaged_plan_is_refused_or_complete(name, tmp_path):
    original, file = get_plan(name), tmp_path / "plan.json"
    for path in list_paths(original):
        plan = copy.deepcopy(original)
        *parents, last = path
        target = plan
        for parent in parents:
            target = target[parent]
        del target[last]
        file.write_text(json.dumps(plan))

        with suppress(ImportRefusedError):
            join = import_compiled_plan(file, None, {TIME_ZONE: "UTC"})
            create_draft(join, ImportOptions("p", arrival="at"))


PAGE = (PROJECT / "docs" / "import.md").read_text()


def test_transcripts_of_the_page_are_output_of_the_command(tmp_path, capsys):
    commands = re.findall(r"^\$ tidemark (.*)\n((?:(?!\$|```).+\n)*)", PAGE, re.MULTILINE)
    for name in ("shipped", "chain"):
        (tmp_path / f"{name}.sql").write_text(SCRIPTS[name])

    for command, output in commands:
        main(command.split())
        captured = capsys.readouterr()
        assert captured.out + captured.err == output
    assert len(commands) == 4
    [yaml_block] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    lines = (tmp_path / "shipped.yaml").read_text().splitlines(keepends=True)
    assert yaml_block == "".join(line for line in lines if not line.startswith("#"))


def test_page_names_the_public_jobs():
    for job in PUBLIC_JOBS:
        assert job.partition(" q")[0].partition(",")[0] in PAGE


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not FLINK.exists(), reason="Flink is not installed: make flink-reference installs it")
@pytest.mark.parametrize("name", ["orders", "alter", "statements"])
def test_planner_answers_as_recorded(name, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv(flink_planner.FLINK_PYTHON_VARIABLE, str(FLINK))
    record = ANSWERS[name]

    assert flink_planner.run_planner(record.script, {}) == record.answer


def test_plan_of_another_flink_is_read_in_the_same_way():
    plan = get_plan("orders")
    for node in plan["nodes"]:
        node["type"] = node["type"].removeprefix("stream-exec-")

    assert [node.kind for node in create_plan(plan).list_joins()] == ["interval-join"]


def test_plan_error_is_a_user_error():
    with pytest.raises(ImportRefusedError):
        create_plan({"flinkVersion": "2.3"})
