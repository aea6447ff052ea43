"""What a report says is what the tables hold."""

import json
import shlex
import shutil

from pyspark.sql import functions as F

from tests.comparison.conftest import LEFT_JOIN
from tidemark import cli
from tidemark.comparison import Asked
from tidemark.comparison.row_history import explain
from tidemark.ledger.ledger import Ledger
from tidemark.report import Called, gather
from tidemark.spark.temporary_settings import tuned_for_tiny_queries


def lateness(rows):
    """What a report says of an input's rows in the side output."""
    late = rows.where("watermark IS NOT NULL")
    reasons = rows.where("watermark IS NULL").groupBy("reason").count().collect()
    return {"late": late.count(), "rejected": {row["reason"]: row["count"] for row in reasons}}


def carried(spark, lake, settings):
    """Rows carried over the end of each slice."""
    ledger = Ledger.of(settings, str(lake))
    return [sum(entry.carried) for entry in ledger.entries.values()]


def test_a_report_tells_what_the_tables_hold(
    spark, lake, inputs, pipeline, ran, compared, emitted, tmp_path, monkeypatch, capsys
):
    by_arrival = ran(pipeline(name="by_arrival", dialect="flink-sql", join=LEFT_JOIN))
    shutil.copy(tmp_path / "pipeline.yaml", tmp_path / "by_arrival.yaml")
    by_time = ran(pipeline(dialect="flink-sql", join=LEFT_JOIN, left__arrival=None, right__arrival=None))
    stream = emitted(by_arrival).cache()
    lost = stream.intersectAll(emitted(by_time)).where("right_id IS NOT NULL").orderBy("left_id").limit(1).collect()
    stream.exceptAll(spark.createDataFrame(lost, stream.schema)).write.format("delta").save(str(lake / "stream"))
    files = {kind: tmp_path / f"report.{kind}" for kind in ("html", "md", "json")}
    command = ["compare", "pipeline.yaml", "--with", "stream", "--told-by", "by_arrival.yaml", "--lake", str(lake)]
    command += [word for file in files.values() for word in ("--report", str(file))]
    monkeypatch.chdir(tmp_path)
    with tuned_for_tiny_queries(spark):
        assert cli.main([*command, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    told = json.loads(files["json"].read_text())

    comparison = told["comparison"]
    assert comparison | {"causes": printed["causes"]} == printed
    assert comparison["unexplained"] == sum(one["unexplained"] for one in told["periods"]) == 1
    assert comparison["same"] == sum(one["same"] for one in told["periods"])
    assert comparison["differences"] == sum(one["explained"] + one["unexplained"] for one in told["periods"])

    aside = spark.read.format("delta").load(f"{lake}/by_arrival/late")
    for one in told["late"]["inputs"]:
        assert one == one | lateness(aside.where(F.col("side") == one["side"]))
        assert one["late"] == sum(one["bins"]) == sum(one["held_by"].values())
    for state, settings in zip(told["state"], (by_time, by_arrival), strict=True):
        held = carried(spark, lake, settings)
        assert ([one["rows"] for one in state["held"]], state["peak"]) == (held, max(held))

    # The present delay gives what the stream gave; the longest that is tried leaves none late that its input held.
    outcomes = {one["value"]: one for one in told["what_if"]["outcomes"]}
    assert told["what_if"]["setting"] == "left.watermark_delay"
    assert outcomes[told["present"]]["matched"] == stream.where("_emission = 'matched'").count()
    kept = [one["matched"] for one in outcomes.values()]
    assert kept == sorted(kept)
    assert 5 <= len(kept) <= 10
    assert sum(list(outcomes.values())[-1]["late"].values()) == 0

    known = {one["name"] for one in told["stories"]}
    mentioned = [example["stories"] for cause in told["causes"] for example in cause["examples"]]
    assert all(mentioned), "each is made of rows that the inputs have"
    assert set().union(*mentioned) == known
    first = told["stories"][0]
    (life,) = explain(spark, by_arrival, str(lake), first["life"]["side"], first["told"])
    assert json.loads(json.dumps(life.describe())) == first["life"]
    capsys.readouterr()
    assert cli.main(shlex.split(told["explains"][first["name"]])[1:]) == 0
    assert life.steps[0] in capsys.readouterr().out.replace("\n", " ")
    assert shlex.split(told["commands"][-1])[1:] == [*command, "--json"]
    apart = {one["name"] for one in told["settings"] if len(set(one["values"])) > 1}
    assert apart == {"clock", "left.arrival.column", "right.arrival.column"}
    assert all("1 unexplained" in files[kind].read_text() for kind in ("html", "md"))


def test_a_report_without_a_story_or_a_difference(spark, lake, inputs, pipeline, ran, compared, emitted):
    by_time = ran(pipeline(dialect="flink-sql", join=LEFT_JOIN, left__arrival=None, right__arrival=None))
    alike = compared(by_time, emitted(by_time))
    called = Called((), "orders", None, None)
    facts = gather(spark, alike, Asked("stream"), (by_time, None), str(lake), called)
    assert (facts.causes, facts.stories, facts.what_if) == ((), (), None)
    assert facts.no_what_if.startswith("orders runs in order of event time, where no delay decides")
    assert [one.late for one in facts.late.inputs] == [0, 0]
