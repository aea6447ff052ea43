"""Tests of table `agreement`, due slices, budgets and the exit code of `tidemark compare`."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F

from tests.comparison.conftest import HOUR, LEFT_JOIN, ROW, START
from tidemark import cli
from tidemark.comparison import ComparisonRequest, agreement, find_due_slices
from tidemark.comparison.result import Agreement, check_budget
from tidemark.config import Budget
from tidemark.config.types import format_instant
from tidemark.ledger.ledger import Ledger
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

INNER = LEFT_JOIN | {"type": "inner"}


@pytest.fixture
def write_stream(lake):
    def write(rows, table="stream"):
        rows.write.format("delta").mode("overwrite").save(str(lake / table))

    return write


@pytest.fixture
def run_compare(spark, lake, tmp_path, capsys):
    """Run `tidemark compare` on the pipeline file; return exit code, standard error and JSON."""

    def run(*options):
        arguments = ["compare", "run", str(tmp_path / "pipeline.yaml"), "--lake", str(lake), "--json"]
        arguments += ["--set", "try_settings=false"]
        with tuned_for_tiny_queries(spark):
            code = cli.main([*arguments, *options])
        captured = capsys.readouterr()
        return code, captured.err, json.loads(captured.out) if captured.out else None

    return run


@pytest.fixture
def read_agreement(spark, lake):
    """Read the rows of the agreement, by start of the slice and table, at the newest or another version."""

    def read(**options):
        table = spark.read.format("delta").options(**options).load(str(lake / "orders" / "agreement"))
        rows = table.withColumn("slice", F.date_format("slice", "HH:mm")).collect()
        return {(row["slice"], row["compared_with"]): row for row in rows}

    return read


def test_save_agreement_repeated_keeps_single_row_per_slice_and_table(
    spark, lake, inputs, pipeline, run_pipeline, read_emissions, write_stream, run_compare, read_agreement
):
    settings = run_pipeline(pipeline(join=INNER, compare={"table": "stream"}), end=START + 4 * HOUR)
    good = read_emissions(settings).localCheckpoint()
    slice_of = F.date_format(F.date_trunc("hour", F.greatest("left_arrived", "right_arrived")), "HH:mm")
    lost = good.where(slice_of == "01:00").limit(2)
    foreign = good.where(slice_of == "03:00").limit(1).withColumns({"left_id": F.lit(-1), "right_id": F.lit(-1)})
    half_foreign = good.where(slice_of == "02:00").limit(1).withColumn("left_id", F.lit(-1))
    rest = good.exceptAll(lost)
    write_stream(rest.unionByName(foreign).unionByName(half_foreign))

    code, message, result = run_compare("--save")
    assert code == 1
    first = read_agreement()
    slices = [f"0{hour}:00" for hour in range(4)]
    assert {start for start, _ in first} == {*slices, None}
    ledger = Ledger.from_pipeline(settings, str(lake))
    assert [first[start, "stream"]["run"] for start in slices] == [entry.run for entry in ledger.entries.values()]
    assert first[None, "stream"]["causes"] == {"missing in an input": 1}, "rows of no slice have a row of their own"
    assert first["02:00", "stream"]["causes"]["missing in an input"] == 1
    assert (first["01:00", "stream"]["only_batch"], first["01:00", "stream"]["unexplained"]) == (2, 2)
    assert sum(row["same"] for row in first.values()) == result["same"] == rest.count()
    totals = dict.fromkeys((cause["cause"] for cause in result["causes"]), 0)
    for cause in result["causes"]:
        totals[cause["cause"]] += cause["rows"]
    summed = {name: sum(row["causes"].get(name, 0) for row in first.values()) for name in totals}
    assert summed == totals
    for row in first.values():
        assert sum(row["causes"].values()) == row["only_batch"] + row["only_stream"] + row["pending"]

    assert message.strip() == (
        f"error: over budget: 2 of {result['same'] + 4} rows unexplained, 2 more than the budget of 0. Fix their "
        "causes, or raise compare.budget."
    )
    write_stream(good)
    hour = [format_instant(START + n * HOUR) for n in range(3)]
    assert run_compare("--save", "--from", hour[1], "--to", hour[2])[0] == 0
    second = read_agreement()
    assert {start for start, _ in second} == {*slices}, "the last comparison replaced the row of no slice"
    assert second["01:00", "stream"]["unexplained"] == 0
    assert all(second[key] == first[key] for key in second if key[0] != "01:00")
    assert read_agreement(versionAsOf=0) == first

    write_stream(good, "o'brien")
    assert run_compare("--with", "o'brien")[0] == 0
    assert read_agreement() == second, "without --save nothing is written"
    assert run_compare("--save", "--with", "o'brien")[0] == 0
    third = read_agreement()
    assert {key: third[key] for key in second} == second
    assert {start for start, table in third if table == "o'brien"} == {*slices}


def test_save_agreement_stream_ahead_counts_pending_rows_in_their_slice(
    inputs, pipeline, run_pipeline, read_emissions, write_stream, run_compare, read_agreement
):
    stream = read_emissions(run_pipeline(pipeline(join=INNER, output="complete"), end=START + 4 * HOUR))
    write_stream(stream)
    run_pipeline(pipeline(join=INNER), end=START + 2 * HOUR)

    assert run_compare("--with", "stream", "--save")[0] == 0

    rows = read_agreement()
    assert [(rows[start, "stream"]["run"], rows[start, "stream"]["only_stream"]) for start in ("02:00", "03:00")] == [
        (None, 0)
    ] * 2

    pending = sum(row["pending"] for row in rows.values())
    assert pending == sum(row["causes"].get("pending", 0) for row in rows.values()) > 0
    assert sum(row["same"] for row in rows.values()) + pending == stream.count()


def test_only_due_lagging_stream_keeps_pending_slices_due(
    inputs, pipeline, run_pipeline, read_emissions, write_stream, run_compare, read_agreement
):
    """Rows of the third hour are pending while the stream may still be in the second."""
    lag = datetime.now(UTC) - (START + 2 * HOUR)
    settings = {"table": "stream", "stream_lag": f"{lag // timedelta(seconds=1)} seconds"}
    write_stream(read_emissions(run_pipeline(pipeline(join=INNER, output="two_hours"), end=START + 2 * HOUR)))
    run_pipeline(pipeline(join=INNER, compare=settings), end=START + 3 * HOUR)

    assert run_compare("--save", "--only-due")[0] == 0

    rows = read_agreement()
    assert rows["02:00", "stream"]["pending"] > 0
    assert {rows[start, "stream"]["pending"] for start in ("00:00", "01:00")} == {0}
    assert run_compare("--only-due", "--until", format_instant(START + 3 * HOUR))[0] == 1, "the third hour is still due"


def test_find_due_slices_returns_slices_without_current_agreement(
    spark, lake, inputs, write, pipeline, run_pipeline, read_emissions, write_stream, run_compare, monkeypatch
):
    monkeypatch.setattr(agreement, "COMPACT_EVERY", 2)
    reference = pipeline(join=INNER, output="reference")
    settings = run_pipeline(pipeline(join=INNER, compare={"table": "stream"}), end=START + 2 * HOUR)
    write_stream(read_emissions(settings))

    def find_due(reference=None, **options):
        due = find_due_slices(settings, str(lake), ComparisonRequest("stream", **options), reference)
        return due and tuple((instant - START) // HOUR for instant in due)

    assert find_due() == (0, 2)
    assert run_compare("--only-due", "--save")[0] == 0
    assert find_due() is None
    code, _, result = run_compare("--only-due", "--save")
    assert (code, result) == (0, None)

    assert find_due(start=START + HOUR, end=START + 2 * HOUR) == (1, 2)
    assert find_due(start=START + 5 * HOUR, end=START + 6 * HOUR) is None
    run_pipeline(settings, end=START + 4 * HOUR)
    assert find_due() == (2, 4)
    assert find_due(start=START + 3 * HOUR, end=START + 4 * HOUR) == (2, 4), "slice 2 is due since an earlier run"
    assert find_due(end=START + 3 * HOUR) == (2, 3)

    assert find_due(reference) is None, "the reference has no committed slice"
    run_pipeline(reference, end=START + 3 * HOUR)
    assert find_due(reference) == (2, 3)

    write_stream(read_emissions(settings))
    assert run_compare("--only-due", "--save")[0] == 0
    assert find_due() is None
    instant = START + HOUR + HOUR / 2
    write("left", [(950, "a", instant, instant, 0.0)], ROW)
    run_pipeline(settings, start=START + HOUR, end=START + 2 * HOUR, reprocess=True)
    assert find_due()[0] == 1, "slice 1 has a later run"

    history = DeltaTable.forPath(spark, str(lake / "orders" / "agreement")).history().select("operation").collect()
    assert [row["operation"] for row in history] == ["OPTIMIZE", "WRITE", "WRITE"], "small files are compacted"


def test_compare_options_override_the_pipeline_file(
    lake, inputs, pipeline, run_pipeline, read_emissions, write_stream, run_compare, tmp_path
):
    settings = run_pipeline(pipeline(join=INNER), end=START + 2 * HOUR)
    code, message, _ = run_compare()
    assert code == 2
    assert "Pass --with TABLE, or set compare.table in the pipeline file" in " ".join(message.split())
    code, message, _ = run_compare("--with", "stream", "--set", "budget.unexplained=few")
    assert code == 2
    assert "compare.budget.unexplained: 'few' is not a number of rows" in " ".join(message.split())

    good = read_emissions(settings).localCheckpoint()
    write_stream(good.withColumn("left_v", F.col("left_v") + 0.5))
    pipeline(join=INNER, compare={"table": "stream", "ignore_columns": ["left_v"], "budget": {"unexplained": "1 %"}})
    assert run_compare()[2]["causes"] == []
    _, _, result = run_compare("--set", "ignore_columns=")
    assert {cause["cause"] for cause in result["causes"]} == {"changed value"}
    assert run_compare("--set", "ignore_columns=", "--set", "float_tolerance=0.6")[2]["causes"] == []
    pipeline(join=INNER, compare={"table": "stream", "reference": "nowhere"})
    code, message, _ = run_compare()
    assert (code, "compare.reference: there is no pipeline nowhere" in " ".join(message.split())) == (2, True)


@pytest.mark.parametrize(
    ("budget", "lines"),
    [
        ({}, ["3 of 1,000 rows unexplained, 3 more than the budget of 0"]),
        ({"unexplained": 2}, ["3 of 1,000 rows unexplained, 1 more than the budget of 2"]),
        ({"unexplained": 3}, []),
        ({"unexplained": "0.3 %", "differing": "100 %"}, []),
        ({"unexplained": "0.29 %"}, ["3 of 1,000 rows unexplained, 1 more than the budget of 2 (0.29 %)"]),
        ({"unexplained": 5, "differing": 9}, ["10 of 1,000 rows differing, 1 more than the budget of 9"]),
    ],
)
def test_check_budget_counts_rows_without_pending_ones(budget, lines):
    slices = [
        Agreement("2024-01-01T00:00Z", "a run", 500, 3, 2, 1, 800, {"pending": 800}),
        Agreement(None, None, 490, 4, 1, 2, 0, {}),
    ]
    assert check_budget(Budget.model_validate(budget), slices) == tuple(lines)
