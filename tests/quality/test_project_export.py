"""Projects of Great Expectations that `tidemark quality export` writes, opened by Great Expectations itself."""

import json

import great_expectations as gx
import pytest

from tests.conftest import write_pipeline
from tidemark.cli.app import main

RULE = {"type": "rows", "that": "left_v < 3 OR left_k = '{x}'"}
BETWEEN = {"type": "expect_column_values_to_be_between", "column": "left_v", "max_value": 2}
QUALITY = [
    {**RULE, "severity": "warning", "notes": "a note"},
    {**RULE, "mostly": 0.6, "row_condition": "left_k <> 'y'"},
    {**BETWEEN, "row_condition": "left_k = 'x'", "mostly": 0.5},
    {**BETWEEN, "on": "history", "column": "rows"},
    {**BETWEEN, "on": "left", "column": "v", "per": "job"},
]


@pytest.fixture
def project(tmp_path, capsys):
    """Export the expectations of two pipelines; return the folder and the output."""
    for name in ("orders", "rides"):
        write_pipeline(tmp_path / f"{name}.yaml", name=name, quality=QUALITY if name == "orders" else [BETWEEN])
    files = [str(tmp_path / f"{name}.yaml") for name in ("orders", "rides")]
    assert main(["quality", "export", str(tmp_path / "project"), *files]) == 0
    return tmp_path / "project", capsys.readouterr().out


def test_export_project_is_opened_with_suites_and_checkpoints(project):
    folder, output = project

    context = gx.get_context(mode="file", project_root_dir=folder)

    names = ["orders_emissions_per_slice", "orders_left_per_job", "rides_emissions_per_slice"]
    for store in (context.suites, context.validation_definitions, context.checkpoints):
        assert sorted(stored.name for stored in store.all()) == names
    rule, share, between = context.suites.get(names[0]).expectations
    assert (rule.severity, rule.notes, rule.meta["tidemark_on_failure"]) == ("warning", "a note", "warn")
    assert rule.unexpected_rows_query == "SELECT * FROM {batch} WHERE (true) AND NOT (left_v < 3 OR left_k = '{{x}}')"
    assert isinstance(share, gx.expectations.UnexpectedRowsExpectation)
    assert (between.max_value, between.mostly) == (2, 0.5)
    assert "orders_emissions_per_slice: 3 expectations on emissions per slice\n" in output
    assert "left out: 1 expectation on history" in output


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["orders.yaml", "orders.yaml"], "Pipeline orders is given twice"),
        (["bare.yaml"], "bare: no expectation is on rows, so there is nothing to export"),
    ],
)
def test_export_project_unsuitable_pipelines_write_nothing(tmp_path, capsys, files, message):
    write_pipeline(tmp_path / "orders.yaml", quality=[BETWEEN])
    write_pipeline(tmp_path / "bare.yaml", name="bare", quality=[{**BETWEEN, "on": "history", "column": "rows"}])

    code = main(["quality", "export", str(tmp_path / "project"), *(str(tmp_path / name) for name in files)])

    assert (code, message in capsys.readouterr().err) == (2, True)
    assert not (tmp_path / "project").exists()


def test_export_project_into_used_folder_is_refused(project, tmp_path, capsys):
    folder, _ = project

    assert main(["quality", "export", str(folder), str(tmp_path / "orders.yaml")]) == 2

    assert f"{folder} is not an empty folder. Name a new one." in capsys.readouterr().err


def test_exported_checkpoint_judges_rows_as_the_gate_does(spark, project):
    folder, _ = project
    context = gx.get_context(mode="file", project_root_dir=folder)
    rows = spark.createDataFrame(
        [("x", 1), ("x", 5), ("{x}", 7), ("y", 9), ("z", None), (None, None)], "left_k string, left_v int"
    )

    result = context.checkpoints.get("orders_emissions_per_slice").run(batch_parameters={"dataframe": rows})

    [validation] = result.run_results.values()
    assert not result.success
    # Of rows other than y, three of four meet the rule; of x, one of two is in bounds.
    assert [(part.success, part.exception_info["raised_exception"]) for part in validation.results] == [
        (False, False),
        (True, False),
        (True, False),
    ]
    assert validation.results[0].result["observed_value"] == 2
    stored = [json.loads(path.read_text()) for path in (folder / "gx/uncommitted/validations").rglob("*.json")]
    assert len(stored) == 1
