"""What a comparison leaves behind: the agreement of each slice, what is due for the next one, and its exit code."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F

from tests.comparison.conftest import HOUR, LEFT_JOIN, ROW, START
from tidemark import cli
from tidemark.comparison import Asked, due
from tidemark.comparison import agreement
from tidemark.comparison.compare import Agreement, over
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
def command(spark, lake, tmp_path, capsys):
    """`tidemark compare` of the pipeline file: its exit code, what it says on standard error, and its JSON."""

    def run(*options):
        arguments = ["compare", str(tmp_path / "pipeline.yaml"), "--lake", str(lake), "--no-try-settings", "--json"]
        with tuned_for_tiny_queries(spark):
            code = cli.main([*arguments, *options])
        told = capsys.readouterr()
        return code, told.err, json.loads(told.out) if told.out else None

    return run


@pytest.fixture
def recorded(spark, lake):
    """The rows of the agreement, by the start of the slice, as it is or was at a version."""

    def read(**options):
        table = spark.read.format("delta").options(**options).load(str(lake / "orders" / "agreement"))
        rows = table.withColumn("slice", F.date_format("slice", "HH:mm")).collect()
        return {(row["slice"], row["compared_with"]): row for row in rows}

    return read


def test_each_slice_has_one_current_row_for_a_table(
    spark, lake, inputs, pipeline, ran, emitted, write_stream, command, recorded
):
    settings = ran(pipeline(join=INNER, compare={"with": "stream"}), end=START + 4 * HOUR)
    good = emitted(settings).localCheckpoint()
    slice_of = F.date_format(F.date_trunc("hour", F.greatest("left_arrived", "right_arrived")), "HH:mm")
    lost = good.where(slice_of == "01:00").limit(2)
    nobody = good.where(slice_of == "03:00").limit(1).withColumns({"left_id": F.lit(-1), "right_id": F.lit(-1)})
    half_known = good.where(slice_of == "02:00").limit(1).withColumn("left_id", F.lit(-1))
    rest = good.exceptAll(lost)
    write_stream(rest.unionByName(nobody).unionByName(half_known))

    code, said, told = command("--record")
    assert code == 1
    first = recorded()
    slices = [f"0{hour}:00" for hour in range(4)]
    assert {at for at, _ in first} == {*slices, None}
    ledger = Ledger.of(settings, str(lake))
    assert [first[at, "stream"]["run"] for at in slices] == [entry.run for entry in ledger.entries.values()]
    assert first[None, "stream"]["causes"] == {"missing in an input": 1}, "rows of no slice are not lost"
    assert first["02:00", "stream"]["causes"]["missing in an input"] == 1
    assert (first["01:00", "stream"]["only_batch"], first["01:00", "stream"]["unexplained"]) == (2, 2)
    assert sum(row["same"] for row in first.values()) == told["same"] == rest.count()
    whole = dict.fromkeys((cause["cause"] for cause in told["causes"]), 0)
    for cause in told["causes"]:
        whole[cause["cause"]] += cause["rows"]
    summed = {name: sum(row["causes"].get(name, 0) for row in first.values()) for name in whole}
    assert summed == whole
    for row in first.values():
        assert sum(row["causes"].values()) == row["only_batch"] + row["only_stream"] + row["pending"]

    assert said.strip().splitlines() == [
        f"error: over budget: 2 of {told['same'] + 4} rows unexplained, 2 more than the budget of 0"
    ]
    write_stream(good)
    hour = [format_instant(START + n * HOUR) for n in range(3)]
    assert command("--record", "--from", hour[1], "--to", hour[2])[0] == 0
    second = recorded()
    assert {at for at, _ in second} == {*slices}, "the row of no slice is as the last comparison found it"
    assert second["01:00", "stream"]["unexplained"] == 0
    assert all(second[key] == first[key] for key in second if key[0] != "01:00")
    assert recorded(versionAsOf=0) == first

    write_stream(good, "o'brien")
    assert command("--with", "o'brien")[0] == 0
    assert recorded() == second, "without --record nothing is written"
    assert command("--record", "--with", "o'brien")[0] == 0
    third = recorded()
    assert {key: third[key] for key in second} == second
    assert {at for at, table in third if table == "o'brien"} == {*slices}


def test_rows_that_are_not_due_are_pending_in_their_slice(
    inputs, pipeline, ran, emitted, write_stream, command, recorded
):
    stream = emitted(ran(pipeline(join=INNER, output="whole"), end=START + 4 * HOUR))
    write_stream(stream)
    ran(pipeline(join=INNER), end=START + 2 * HOUR)
    assert command("--with", "stream", "--record")[0] == 0
    rows = recorded()
    assert [(rows[at, "stream"]["run"], rows[at, "stream"]["only_stream"]) for at in ("02:00", "03:00")] == [
        (None, 0)
    ] * 2
    pending = sum(row["pending"] for row in rows.values())
    assert pending == sum(row["causes"].get("pending", 0) for row in rows.values()) > 0
    assert sum(row["same"] for row in rows.values()) + pending == stream.count()


def test_what_a_stream_that_lags_has_not_written_yet_is_pending_and_stays_due(
    inputs, pipeline, ran, emitted, write_stream, command, recorded
):
    """Rows of the third hour are not lost as long as the stream may still be in the second."""
    behind = datetime.now(UTC) - (START + 2 * HOUR)
    lag = {"with": "stream", "lag": f"{behind // timedelta(seconds=1)} seconds"}
    write_stream(emitted(ran(pipeline(join=INNER, output="two_hours"), end=START + 2 * HOUR)))
    ran(pipeline(join=INNER, compare=lag), end=START + 3 * HOUR)
    assert command("--record", "--due")[0] == 0
    rows = recorded()
    assert rows["02:00", "stream"]["pending"] > 0
    assert {rows[at, "stream"]["pending"] for at in ("00:00", "01:00")} == {0}
    assert command("--due", "--until", format_instant(START + 3 * HOUR))[0] == 1, "the third hour is still due"


def test_due_is_what_has_no_agreement_or_an_old_one(
    spark, lake, inputs, write, pipeline, ran, emitted, write_stream, command, monkeypatch
):
    monkeypatch.setattr(agreement, "COMPACT_EVERY", 2)
    story = pipeline(join=INNER, output="story")
    settings = ran(pipeline(join=INNER, compare={"with": "stream"}), end=START + 2 * HOUR)
    write_stream(emitted(settings))

    def asked(story=None, **options):
        told = due(settings, str(lake), Asked("stream", **options), story)
        return told and tuple((at - START) // HOUR for at in told)

    assert asked() == (0, 2)
    assert command("--due", "--record")[0] == 0
    assert asked() is None
    code, _, told = command("--due", "--record")
    assert (code, told) == (0, None)

    assert asked(start=START + HOUR, end=START + 2 * HOUR) == (1, 2)
    assert asked(start=START + 5 * HOUR, end=START + 6 * HOUR) is None
    ran(settings, end=START + 4 * HOUR)
    assert asked() == (2, 4)
    assert asked(start=START + 3 * HOUR, end=START + 4 * HOUR) == (2, 4), "an earlier run left slice 2"
    assert asked(end=START + 3 * HOUR) == (2, 3)

    assert asked(story) is None, "the story has not told anything yet"
    ran(story, end=START + 3 * HOUR)
    assert asked(story) == (2, 3)

    write_stream(emitted(settings))
    assert command("--due", "--record")[0] == 0
    assert asked() is None
    at = START + HOUR + HOUR / 2
    write("left", [(950, "a", at, at, 0.0)], ROW)
    ran(settings, start=START + HOUR, end=START + 2 * HOUR, reprocess=True)
    assert asked()[0] == 1, "a later attempt of slice 1 counts"

    history = DeltaTable.forPath(spark, str(lake / "orders" / "agreement")).history().select("operation").collect()
    assert [row["operation"] for row in history] == ["OPTIMIZE", "WRITE", "WRITE"], "many small files become one"


def test_options_come_before_the_file_and_one_of_them_names_the_table(
    lake, inputs, pipeline, ran, emitted, write_stream, command, tmp_path
):
    settings = ran(pipeline(join=INNER), end=START + 2 * HOUR)
    code, said, _ = command()
    assert code == 2
    assert "pass --with TABLE, or name it in the file's compare.with" in " ".join(said.split())
    code, said, _ = command("--with", "stream", "--max-unexplained", "few")
    assert (code, said.startswith("error: --max-unexplained: 'few' is not a number of rows")) == (2, True)

    good = emitted(settings).localCheckpoint()
    write_stream(good.withColumn("left_v", F.col("left_v") + 0.5))
    pipeline(join=INNER, compare={"with": "stream", "ignore": ["left_v"], "budget": {"unexplained": "1 %"}})
    assert command()[2]["causes"] == []
    code, _, told = command("--ignore", "")
    assert {cause["cause"] for cause in told["causes"]} == {"changed value"}
    assert command("--ignore", "", "--within", "0.6")[2]["causes"] == []
    pipeline(join=INNER, compare={"with": "stream", "told_by": "nowhere"})
    code, said, _ = command()
    assert (code, "compare.told_by: there is no pipeline nowhere" in " ".join(said.split())) == (2, True)


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        ({}, ["3 of 1,000 rows unexplained, 3 more than the budget of 0"]),
        ({"unexplained": 2}, ["3 of 1,000 rows unexplained, 1 more than the budget of 2"]),
        ({"unexplained": 3}, []),
        ({"unexplained": "0.3 %", "differing": "100 %"}, []),
        ({"unexplained": "0.29 %"}, ["3 of 1,000 rows unexplained, 1 more than the budget of 2 (0.29 %)"]),
        ({"unexplained": 5, "differing": 9}, ["10 of 1,000 rows differing, 1 more than the budget of 9"]),
    ],
)
def test_a_budget_is_of_the_rows_compared_without_those_that_are_pending(budget, told):
    slices = [
        Agreement("2024-01-01T00:00Z", "a run", 500, 3, 2, 1, 800, {"pending": 800}),
        Agreement(None, None, 490, 4, 1, 2, 0, {}),
    ]
    assert over(Budget.model_validate(budget), slices) == tuple(told)
