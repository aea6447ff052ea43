"""Effects of changed settings on output rows."""

import json

import pytest

from tests.conftest import write_pipeline
from tidemark.cli.app import main
from tidemark.config import load_pipeline
from tidemark.config.diff import Effect, diff_pipelines

TUMBLING = {"keys": ["k"], "window": {"tumbling": "10 minutes"}}
RETENTION_SETTINGS = ("replaced_files", "checkpoints", "uncommitted_files", "data_docs", "log_files")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"left__watermark_delay": "7 minutes"}, {"left.watermark_delay": "all slices"}),
        (
            {"on_late_arriving_rows": "reprocess", "on_input_delete": "ignore", "cluster": {"executors": 4}},
            {"on_late_arriving_rows": "new slices", "on_input_delete": "new slices", "cluster.executors": "no rows"},
        ),
        (
            {"compact": {"settled_after": "2 days", "period": "1 day"}},
            dict.fromkeys(("compact.settled_after", "compact.period"), "no rows"),
        ),
        (
            {"retention": dict.fromkeys(RETENTION_SETTINGS, "2 days")},
            {f"retention.{name}": "no rows" for name in RETENTION_SETTINGS},
        ),
        ({"select": ["left_k"]}, {"select.0": "new slices"}),
        ({"explode": "array(struct(left_k))"}, {"explode": "all slices"}),
        (
            {
                "left__where": "v > 1",
                "left__filter": "before_watermark",
                "join__keys": [{"left": "lower(k)", "right": "k"}],
            },
            dict.fromkeys(("left.where", "left.filter", "join.keys.0.left"), "all slices"),
        ),
        (
            {"time_bounds": "off"},
            dict.fromkeys(
                ("time_bounds.earliest", "time_bounds.latest", "time_bounds.max_ahead_of_arrival"), "all slices"
            ),
        ),
        ({"quality": [{"type": "expect_table_row_count_to_be_between", "min_value": 1}]}, None),
        ({"left__allowed_clock_skew": "2 hours"}, {"left.allowed_clock_skew": "no rows"}),
        ({"restarts": ["2024-01-01T02:00:00Z"]}, {"restarts.0": "slices since"}),
        ({"name": "other"}, {"name": "new pipeline", "output": "new pipeline"}),
        ({"slices__end": "2025-01-01T00:00:00Z"}, {"slices.end": "no rows"}),
        ({"slices__every": "30 minutes"}, {"slices.every": "new output"}),
    ],
)
def test_diff_pipelines_names_the_effect_of_each_setting(tmp_path, changes, expected):
    old = write_pipeline(tmp_path / "old.yaml")
    new = write_pipeline(tmp_path / "new.yaml", **changes)

    effects = {change.setting: change.effect for change in diff_pipelines(old, new)}

    if expected is None:
        assert set(effects.values()) == {"no rows"}
    else:
        assert effects == expected


def test_diff_pipelines_other_join_affects_all_slices(tmp_path):
    """Settings with this effect are the ones that the ledger stores."""
    old, new = write_pipeline(tmp_path / "old.yaml"), write_pipeline(tmp_path / "new.yaml", join=TUMBLING)

    changes = diff_pipelines(old, new)

    assert old.output_affecting_settings() != new.output_affecting_settings()
    assert {change.effect for change in changes} == {"all slices"}
    assert [change.effect for change in changes] == sorted(
        (change.effect for change in changes), key=Effect.__args__.index
    )


def test_plan_diff_needs_no_lake(tmp_path, capsys):
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    write_pipeline(old)
    write_pipeline(new, left__watermark_delay="7 minutes", expose_row_values=True)

    assert main(["diff", str(old), str(new), "--json"]) == 0

    changes = json.loads(capsys.readouterr().out)
    assert [(change["setting"], change["new"], change["effect"]) for change in changes] == [
        ("left.watermark_delay", "7 minutes", "all slices"),
        ("expose_row_values", True, "no rows"),
    ]
    assert main(["diff", str(old), str(new)]) == 0
    assert "committed slices: reprocess" in capsys.readouterr().out
    assert main(["diff", str(new), str(new)]) == 0
    assert "no setting differs" in capsys.readouterr().out
    assert load_pipeline(old).name == "orders"
