"""Pipelines whose input is the output of another pipeline: how the file is read, and which joins are refused."""

import re
from pathlib import Path

import pytest
import yaml

from tests.config.pipeline_files import PROJECT
from tidemark.config import load_pipeline
from tidemark.config.candidate_version import to_candidate
from tidemark.config.chain_files import format_upstream_arguments, load_readers, load_upstreams
from tidemark.config.loader import with_overrides
from tidemark.config.output_stream import compute_order_factor, compute_watermark_delay
from tidemark.errors import PipelineFileError

TIMES = {"event_time": "ts", "arrival": "at", "watermark_delay": "1 minute"}
FIRST = {
    "name": "orders_payments",
    "dialect": "flink-sql",
    "left": {"table": "orders", **TIMES},
    "right": {"table": "payments", **TIMES},
    "join": {"keys": ["k"], "type": "left", "interval": {"lower": "-1 minute", "upper": "5 minutes"}},
    "slices": {"every": "1 hour", "start": "2026-01-01T00:00:00Z"},
    "output_stream": True,
}
SECOND = {
    **{key: value for key, value in FIRST.items() if key != "output_stream"},
    "name": "shipments",
    "left": {"pipeline": "orders_payments", "event_time": "left"},
    "join": {**FIRST["join"], "keys": [{"left": "left_k", "right": "k"}]},
}
DAYS, HOURS = ({"keys": ["k"], "window": {"tumbling": size}} for size in ("1 day", "3 hours"))
RECORDED = {**{name: TIMES[name] for name in ("event_time", "arrival")}, "table": "orders", "recorded_watermark": "w"}
DATASTREAM = {"dialect": "flink-datastream", "join": {**FIRST["join"], "type": "inner"}}


def load(folder, first=None, second=None):
    """Write both files with changes, and load the second one."""
    for content in ({**FIRST, **(first or {})}, {**SECOND, **(second or {})}):
        (folder / f"{content['name']}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return load_pipeline(folder / "shipments.yaml")


def test_load_pipeline_input_reads_output_stream_of_other_pipeline(tmp_path):
    pipeline = load(tmp_path)

    assert pipeline.left.table == "orders_payments/output_stream"
    assert pipeline.left.event_time.column == "_left_event_time"
    assert pipeline.left.upstream.depth == 1
    assert (pipeline.on_late_arriving_rows, pipeline.on_input_delete) == ("reprocess", "reprocess")
    assert with_overrides(pipeline, {"join.type": "inner"}).left == pipeline.left


def test_format_upstream_arguments_file_of_another_name_or_folder_is_found_by_them(tmp_path, monkeypatch):
    folder = tmp_path / "my chains"
    folder.mkdir()
    load(folder)
    (folder / "orders_payments.yaml").rename(folder / "first.yaml")
    left = {"left": {"pipeline": "first", "event_time": "left"}}
    (folder / "shipments.yaml").write_text(yaml.safe_dump({**SECOND, **left}))
    pipeline = load_pipeline(folder / "shipments.yaml")

    assert pipeline.left.upstream.pipeline == "orders_payments"
    assert format_upstream_arguments(pipeline, "left") == f"'{folder}/first.yaml'"
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(folder))
    assert format_upstream_arguments(load_pipeline("shipments"), "left") == "first"
    (folder / "first.yaml").unlink()
    assert format_upstream_arguments(pipeline, "left") == "orders_payments"


def test_load_pipeline_docs_example_is_valid_chain(tmp_path):
    page = (PROJECT / "docs/chains.md").read_text()
    for block in re.findall(r"^```(?:yaml|{\.yaml \.chained})\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        (tmp_path / f"{yaml.safe_load(block)['name']}.yaml").write_text(block)

    assert load_pipeline(tmp_path / "orders_shipments.yaml").left.upstream.pipeline == "orders_payments"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"output_stream": False}, {}, "orders_payments has no output stream. Set `output_stream: on`"),
        ({}, {"left": {"pipeline": "orders_payments"}}, "event_time is missing. Write left or right"),
        ({}, {"left": {"pipeline": "orders_payments", "table": "x"}}, "left: table: unknown field. Available: pip"),
        ({}, {"left": {"pipeline": "order_payments", "event_time": "left"}}, "Did you mean orders_payments"),
        (DATASTREAM, DATASTREAM, "rows of flink-datastream have one event time"),
        ({}, {"slices": {"every": "2 hours", "start": "2026-01-01T00:00:00Z"}}, "Use the same slices"),
        ({}, {"restarts": ["2026-01-02T00:00:00Z"]}, "restarts are not supported in a chain"),
        ({}, {"right": {"table": "c", **TIMES, "idle_timeout": "1 minute"}}, "idle_timeout"),
        ({}, {"join": {"keys": ["k"], "window": {"session": {"gap": "1 minute"}}}}, "session windows of flink-sql"),
        ({"explode": "array(named_struct('x', 1))"}, {}, "explode is not supported before another join"),
        (
            {"join": {"keys": ["k"], "window": {"tumbling": "1 minute"}}},
            {"join": {"keys": ["k"], "window": {"tumbling": "2 minutes"}}},
            "Flink's planner makes it a regular join",
        ),
        (
            {"join": DAYS, "time_zone": "Europe/Berlin"},
            {"join": {**DAYS, "keys": SECOND["join"]["keys"]}},
            "time_zone differs from that of orders_payments (Europe/Berlin)",
        ),
        (
            {"join": HOURS, "time_zone": "Europe/Berlin"},
            {"join": {**HOURS, "keys": SECOND["join"]["keys"]}, "time_zone": "Europe/Berlin"},
            "may end in an hour that the clocks of Europe/Berlin skip",
        ),
        (
            {"join": DAYS, "time_zone": "America/Nuuk"},  # skips the last hour of a day
            {"join": {**DAYS, "keys": SECOND["join"]["keys"]}, "time_zone": "America/Nuuk"},
            "may end in an hour that the clocks of America/Nuuk skip",
        ),
        ({"left": RECORDED}, {}, "left.recorded_watermark is not supported in a chain."),
        ({}, {"right": RECORDED}, "right.recorded_watermark is not supported in a chain."),
        (
            {"select": ["left_amount"]},
            {},
            "left.pipeline: orders_payments has no column left_k in its `select`. Add it",
        ),
        (
            {"select": ["left_k"]},
            {"left": {"pipeline": "orders_payments", "event_time": "left", "where": "LEFT_K <> '' AND right_v > 1"}},
            "orders_payments has no column right_v in its `select`",
        ),
        ({"left": {"pipeline": "shipments", "event_time": "left"}}, {}, "A chain must not read its own output"),
    ],
)
def test_load_pipeline_unsupported_chain_is_refused_by_name(tmp_path, first, second, message):
    with pytest.raises(PipelineFileError, match=re.escape(message)) as error:
        load(tmp_path, first, second)

    assert "\n" not in str(error.value)


def test_load_pipeline_days_of_a_time_zone_are_windows_of_a_chain(tmp_path):
    second = {"join": {**DAYS, "keys": SECOND["join"]["keys"]}, "time_zone": "Europe/Berlin"}

    pipeline = load(tmp_path, {"join": DAYS, "time_zone": "Europe/Berlin"}, second)

    assert pipeline.left.upstream.window_time_zone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("interval", "delay"),
    [
        ({"lower": "-1 minute", "upper": "5 minutes"}, 300_000),
        ({"lower": "-6 minutes", "upper": "5 minutes"}, 360_000),
        ({"lower": "-6 minutes", "upper": "-5 minutes"}, 360_000),
        ({"lower": "5 minutes", "upper": "6 minutes", "upper_inclusive": False}, 359_999),
    ],
)
def test_compute_watermark_delay_is_longest_wait_of_either_side(tmp_path, interval, delay):
    load(tmp_path, {"join": {**FIRST["join"], "interval": interval}})

    assert compute_watermark_delay(load_pipeline(tmp_path / "orders_payments.yaml")) == delay


def load_chain(folder, count):
    """Write a chain of joins, of which all write an output stream, and load the last one."""
    load(folder, {}, {"output_stream": True})
    for number in range(3, count + 1):
        before = "shipments" if number == 3 else f"join_{number - 1}"
        left = {"pipeline": before, "event_time": "left"}
        content = {**SECOND, "name": f"join_{number}", "left": left, "output_stream": True}
        (folder / f"join_{number}.yaml").write_text(yaml.safe_dump(content))
    return load_pipeline(folder / f"join_{count}.yaml")


def test_compute_order_factor_three_joins_gives_both_inputs_one_order(tmp_path: Path):
    pipeline = load_chain(tmp_path, 3)

    assert [compute_order_factor(pipeline, side) for side in ("left", "right")] == [1, 1024**2]


def test_load_pipeline_fourth_join_with_output_stream_is_refused(tmp_path):
    with pytest.raises(PipelineFileError, match="output_stream: a chain has at most 4 joins, and this is number 4"):
        load_chain(tmp_path, 4)


def test_load_upstreams_finds_file_by_name_of_its_pipeline(tmp_path):
    pipeline = load(tmp_path)
    (tmp_path / "orders_payments.yaml").rename(tmp_path / "orders.yaml")
    (tmp_path / "broken.yaml").write_text("[")

    assert {side: upstream.name for side, upstream in load_upstreams(pipeline).items()} == {"left": "orders_payments"}

    (tmp_path / "orders.yaml").unlink()
    with pytest.raises(PipelineFileError, match="shipments reads the output of orders_payments, but there is no valid"):
        load_upstreams(pipeline)


def test_load_readers_leaves_out_other_outputs_and_invalid_files(tmp_path):
    shipments = load(tmp_path)
    (orders,) = load_upstreams(shipments).values()
    (tmp_path / "broken.yaml").write_text("[")

    assert [(reader.name, side) for reader, side in load_readers(orders)] == [("shipments", "left")]
    assert load_readers(shipments) == load_readers(to_candidate(orders, "wide")) == []
