"""A fault in one hour's weather, on real flights, under each `on_failure`, by the command alone."""

import json
import shutil
from datetime import UTC, datetime

import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from jobs.land_flights import FLIGHTS, WEATHER, read_january, with_departure, with_observation
from tests.conftest import PROJECT
from tidemark.cli.app import main
from tidemark.delta.table import DeltaTableHandle

START, FAULTY, END = (datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (10, 12, 15))
"""The first slices with flights; the hour whose weather has the fault; the end."""
PAIR = ["left_carrier", "left_flight", "left_scheduled_departure", "right_observed_at"]
EXPECTED = {
    "nulls": {"type": "expect_column_values_to_not_be_null", "column": "right_temp"},
    "doubled": {"type": "expect_compound_columns_to_be_unique", "column_list": PAIR},
    "a hundred times": {"type": "expect_column_values_to_be_between", "column": "right_temp", "max_value": 130},
}
GRID = {("nulls", "stop"), ("doubled", "quarantine"), ("a hundred times", "warn")}


@pytest.fixture(scope="module")
def clean(spark, tmp_path_factory):
    """Five hours of flights and weather, and of the latter each fault in one hour."""
    lake = tmp_path_factory.mktemp("flights")
    flights = with_departure(read_january(spark, "flights.csv.zip", FLIGHTS))
    weather = with_observation(read_january(spark, "weather.csv", WEATHER))
    hours = F.col("scheduled_departure").between(START, END), F.col("observed_at").between(START, END)
    weather = weather.where(hours[1])
    flights.where(hours[0]).coalesce(1).write.format("delta").save(str(lake / "flights"))
    bad = F.col("observed_at") == FAULTY
    changed = {"nulls": F.lit(None).cast("double"), "a hundred times": F.col("temp") * 100}
    faulty = {
        name: weather.withColumn("temp", F.when(~bad, F.col("temp")).otherwise(of)) for name, of in changed.items()
    }
    for name, rows in {"weather": weather, "doubled": weather.unionByName(weather.where(bad)), **faulty}.items():
        rows.coalesce(1).write.format("delta").save(str(lake / name))
    return lake


@pytest.fixture
def tidemark(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TIDEMARK_LAKE", str(tmp_path / "lake"))

    def command(name, *options):
        code = main([*name.split(), str(tmp_path / "flights.yaml"), *options])
        told = capsys.readouterr()
        return code, told.out if code == 0 else told.err

    return command


def emissions(lake):
    """Each row in full, with its slice; and how many were made of the faulty hour's weather."""
    rows = DeltaTable(str(lake / "out/emissions")).to_pyarrow_table().to_pylist()
    return sorted(map(str, rows)), sum(row["right_observed_at"] == FAULTY for row in rows)


@pytest.mark.parametrize(("fault", "on_failure"), [
    pytest.param(fault, action, marks=[] if (fault, action) in GRID else pytest.mark.slow)
    for fault in EXPECTED for action in ("stop", "quarantine", "warn")
])  # fmt: skip
def test_what_is_published_what_the_next_slice_does_and_how_it_goes_on(
    spark, clean, tmp_path, tidemark, fault, on_failure
):
    lake, ends = tmp_path / "lake", ["--to", "2013-01-01T15:00Z", "--slices-per-job", "1"]
    lake.mkdir()
    for name, source in (("flights", "flights"), ("weather", fault)):
        shutil.copytree(clean / source, lake / name)
    file = yaml.safe_load((PROJECT / "include/pipelines/flights_weather.yaml").read_text())
    file["slices"]["start"], file["output"] = "2013-01-01T10:00:00Z", "out"
    (tmp_path / "flights.yaml").write_text(yaml.safe_dump({**file, "quality": []}))
    assert tidemark("run", *ends)[0] == 0
    everything, faulty = emissions(lake)
    assert faulty > 10
    shutil.rmtree(lake / "out")
    quality = [{**EXPECTED[fault], "on_failure": on_failure}]
    (tmp_path / "flights.yaml").write_text(yaml.safe_dump({**file, "quality": quality}))

    code, told = tidemark("run", *ends)
    status = json.loads(tidemark("status", "--json")[1])[0]
    match on_failure:
        case "stop":
            assert code == 1
            assert f"quality gate: {quality[0]['type']}(" in told
            assert "Ways on: mend the rows" in told
            assert status["end"] <= "2013-01-01T12:00Z", "nothing of the hour is published, nor of those behind it"
            assert emissions(lake)[1] == 0
            mended = DeltaTable(str(clean / "weather")).to_pyarrow_table()
            write_deltalake(str(lake / "weather"), mended, mode="overwrite")
            assert tidemark("run", *ends)[0] == 0
            assert json.loads(tidemark("status", "--json")[1])[0]["quality"] == {"passed": 5}
        case "quarantine":
            assert code == 0
            assert (status["slices"], status["quarantined"]) == (5, faulty), "the slices behind it have run"
            assert emissions(lake)[1] == 0
            assert not set(emissions(lake)[0]) - set(everything)
            for one in json.loads(tidemark("quarantine list", "--json")[1]):
                code, told = tidemark("release", "--slice", one["slice"])
                assert code == 0, told
            assert emissions(lake) == (everything, faulty), "what the join gave, in the slices in which it did"
            assert DeltaTableHandle.open(str(lake / "out/quarantined")).files.empty
            again = ["--from", "2013-01-01T12:00Z", "--to", "2013-01-01T13:00Z"]
            assert tidemark("reprocess", *again)[0] == 0
            status = json.loads(tidemark("status", "--json")[1])[0]
            assert 0 < status["quarantined"] < faulty, "those of that slice are judged again"
            assert status["emissions"] + status["quarantined"] == len(everything)
        case "warn":
            assert code == 0
            assert emissions(lake) == (everything, faulty)
            assert {"passed", "warned"} == set(status["quality"])
            assert status["failed_expectations"]
