"""A fault in one hour of real weather data, under each `on_failure`, by the command line alone."""

import json
import shutil
from datetime import UTC, datetime

import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from jobs.land_flights import FLIGHTS, WEATHER, read_january, with_departure, with_observation
from tests.config.pipeline_files import read_base
from tidemark.cli.app import main
from tidemark.delta.table import DeltaTableHandle

START, FAULTY, END = (datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (10, 12, 15))
"""The first slice with flights; the hour whose weather is faulty; the end."""
PAIR = ["left_carrier", "left_flight", "left_scheduled_departure", "right_observed_at"]
EXPECTATIONS = {
    "nulls": {"type": "expect_column_values_to_not_be_null", "column": "right_temp"},
    "doubled": {"type": "expect_compound_columns_to_be_unique", "column_list": PAIR},
    "a hundred times": {"type": "expect_column_values_to_be_between", "column": "right_temp", "max_value": 130},
}
FAST_CASES = {("nulls", "stop"), ("doubled", "quarantine"), ("a hundred times", "warn")}


@pytest.fixture(scope="module")
def source_tables(spark, tmp_path_factory):
    """Write five hours of flights and weather, and a copy of the weather with each fault."""
    lake = tmp_path_factory.mktemp("flights")
    flights = with_departure(read_january(spark, "flights.csv.zip", FLIGHTS))
    weather = with_observation(read_january(spark, "weather.csv", WEATHER))
    hours = F.col("scheduled_departure").between(START, END), F.col("observed_at").between(START, END)
    weather = weather.where(hours[1])
    flights.where(hours[0]).coalesce(1).write.format("delta").save(str(lake / "flights"))
    is_faulty = F.col("observed_at") == FAULTY
    changed = {"nulls": F.lit(None).cast("double"), "a hundred times": F.col("temp") * 100}
    faulty = {
        name: weather.withColumn("temp", F.when(~is_faulty, F.col("temp")).otherwise(value))
        for name, value in changed.items()
    }
    doubled = weather.unionByName(weather.where(is_faulty))
    for name, rows in {"weather": weather, "doubled": doubled, **faulty}.items():
        rows.coalesce(1).write.format("delta").save(str(lake / name))
    return lake


@pytest.fixture
def run_command(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command and returns its exit code and its output, or its errors."""
    monkeypatch.setenv("TIDEMARK_LAKE", str(tmp_path / "lake"))

    def run(name, *options):
        code = main([*name.split(), str(tmp_path / "flights.yaml"), *options])
        output = capsys.readouterr()
        return code, output.out if code == 0 else output.err

    return run


def read_emissions(lake):
    """Return all rows in full, sorted, and the number of rows with weather of the faulty hour."""
    rows = DeltaTable(str(lake / "out/emissions")).to_pyarrow_table().to_pylist()
    return sorted(map(str, rows)), sum(row["right_observed_at"] == FAULTY for row in rows)


@pytest.mark.parametrize(("fault", "on_failure"), [
    pytest.param(fault, action, marks=[] if (fault, action) in FAST_CASES else pytest.mark.slow)
    for fault in EXPECTATIONS for action in ("stop", "quarantine", "warn")
])  # fmt: skip
def test_run_faulty_hour_follows_on_failure(spark, source_tables, tmp_path, run_command, fault, on_failure):
    lake, options = tmp_path / "lake", ["--to", "2013-01-01T15:00Z", "--slices-per-job", "1"]
    lake.mkdir()
    for name, source in (("flights", "flights"), ("weather", fault)):
        shutil.copytree(source_tables / source, lake / name)
    file = read_base()
    file["slices"]["start"], file["output"] = "2013-01-01T10:00:00Z", "out"
    (tmp_path / "flights.yaml").write_text(yaml.safe_dump({**file, "quality": []}))
    assert run_command("run", *options)[0] == 0
    all_rows, faulty_count = read_emissions(lake)
    assert faulty_count > 10
    shutil.rmtree(lake / "out")
    quality = [{**EXPECTATIONS[fault], "on_failure": on_failure}]
    (tmp_path / "flights.yaml").write_text(yaml.safe_dump({**file, "quality": quality}))

    code, output = run_command("run", *options)

    status = json.loads(run_command("status", "--json")[1])[0]
    match on_failure:
        case "stop":
            assert code == 1
            assert f"quality gate: {quality[0]['type']}(" in output
            assert "Fix the rows" in output
            assert status["end"] <= "2013-01-01T12:00Z", "neither the faulty hour nor a later one is published"
            assert read_emissions(lake)[1] == 0
            repaired = DeltaTable(str(source_tables / "weather")).to_pyarrow_table()
            write_deltalake(str(lake / "weather"), repaired, mode="overwrite")
            assert run_command("run", *options)[0] == 0
            assert json.loads(run_command("status", "--json")[1])[0]["quality"] == {"passed": 5}
        case "quarantine":
            assert code == 0
            assert (status["slices"], status["quarantined"]) == (5, faulty_count), "later slices have run"
            assert read_emissions(lake)[1] == 0
            assert not set(read_emissions(lake)[0]) - set(all_rows)
            groups = json.loads(run_command("quarantine list", "--json")[1])
            starts = [part for group in groups for part in ("--slice", group["slice"])]
            code, output = run_command("quarantine release", *starts, "--json")
            assert code == 0, output
            assert sum(release["rows"] for release in json.loads(output)) == faulty_count
            assert read_emissions(lake) == (all_rows, faulty_count), "released rows are in the slices that emitted them"
            assert DeltaTableHandle.open(str(lake / "out/quarantined")).files.empty
            slice_range = ["--from", "2013-01-01T12:00Z", "--to", "2013-01-01T13:00Z"]
            assert run_command("reprocess", *slice_range)[0] == 0
            status = json.loads(run_command("status", "--json")[1])[0]
            assert 0 < status["quarantined"] < faulty_count, "rows of the reprocessed slice are quarantined again"
            assert status["emissions"] + status["quarantined"] == len(all_rows)
        case "warn":
            assert code == 0
            assert read_emissions(lake) == (all_rows, faulty_count)
            assert {"passed", "warned"} == set(status["quality"])
            assert status["failed_expectations"]
