"""What follows from a change of a pipeline file."""

import json

import pytest

from tests.conftest import write_pipeline
from tidemark.cli.app import main
from tidemark.config import load_pipeline
from tidemark.config.diff import Effect, differences

TUMBLING = {"keys": ["k"], "window": {"tumbling": "10 minutes"}}
KEPT = ("superseded", "states", "garbage", "docs", "logs")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"left__watermark_delay": "7 minutes"}, {"left.watermark_delay": "answer"}),
        ({"late_landing": "reprocess", "input_deletes": "ignore", "cluster": {"executors": 4}},
         {"late_landing": "next slice", "input_deletes": "next slice", "cluster.executors": "no row"}),
        ({"compact": {"after": "2 days", "into": "1 day"}}, dict.fromkeys(("compact.after", "compact.into"), "no row")),
        ({"retention": dict.fromkeys(KEPT, "2 days")}, {f"retention.{name}": "no row" for name in KEPT}),
        ({"select": ["left_k"]}, {"select.0": "next slice"}),
        ({"flatten": "array(struct(left_k))"}, {"flatten": "answer"}),
        ({"left__where": "v > 1", "left__where_at": "source", "join__keys": [{"left": "lower(k)", "right": "k"}]},
         dict.fromkeys(("left.where", "left.where_at", "join.keys.0.left"), "answer")),
        ({"guard": "off"}, dict.fromkeys(("guard.earliest", "guard.latest", "guard.ahead_of_arrival"), "answer")),
        ({"quality": [{"type": "expect_table_row_count_to_be_between", "min_value": 1}]}, None),
        ({"restarts": ["2024-01-01T02:00:00Z"]}, {"restarts.0": "slices since"}),
        ({"name": "other"}, {"name": "other pipeline", "output": "other pipeline"}),
        ({"slices__end": "2025-01-01T00:00:00Z"}, {"slices.end": "no row"}),
    ],
)  # fmt: skip
def test_each_setting_is_told_with_what_it_changes(tmp_path, changes, expected):
    old = write_pipeline(tmp_path / "old.yaml")
    found = {one.setting: one.effect for one in differences(old, write_pipeline(tmp_path / "new.yaml", **changes))}
    if expected is None:
        assert set(found.values()) == {"no row"}
    else:
        assert found == expected


def test_what_is_semantic_is_what_changes_an_answer(tmp_path):
    """By the settings that the ledger keeps, whichever join."""
    old, new = write_pipeline(tmp_path / "old.yaml"), write_pipeline(tmp_path / "new.yaml", join=TUMBLING)
    found = differences(old, new)
    assert old.semantic_settings() != new.semantic_settings()
    assert {one.effect for one in found} == {"answer"}
    assert [one.effect for one in found] == sorted((one.effect for one in found), key=Effect.__args__.index)


def test_the_command_needs_no_lake(tmp_path, capsys):
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    write_pipeline(old)
    write_pipeline(new, left__watermark_delay="7 minutes", show_rows=True)
    assert main(["plan", str(new), "--diff", str(old), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["setting"], one["now"], one["effect"]) for one in told] == [
        ("left.watermark_delay", "7 minutes", "answer"), ("show_rows", True, "no row")
    ]  # fmt: skip
    assert main(["plan", str(new), "--diff", str(old)]) == 0
    assert "committed slices: reprocess" in capsys.readouterr().out
    assert main(["plan", str(new), "--diff", str(new)]) == 0
    assert "no setting differs" in capsys.readouterr().out
    assert load_pipeline(old).name == "orders"
