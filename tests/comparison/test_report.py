"""A report agrees with the committed tables."""

import json
import shlex
import shutil
from dataclasses import replace

from pyspark.sql import functions as F

from tests.comparison.conftest import LEFT_JOIN
from tidemark import cli
from tidemark.comparison import ComparisonRequest
from tidemark.comparison.chain_history import explain_rows
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.row_lookup import find_minimal_key
from tidemark.ledger.ledger import Ledger
from tidemark.report import Invocation, collect_report_data
from tidemark.spark.temporary_settings import tuned_for_tiny_queries


def count_late_rows(rows):
    """Count the rows of the side output as a report does."""
    late = rows.where("watermark IS NOT NULL")
    reasons = rows.where("watermark IS NULL").groupBy("reason").count().collect()
    return {"late_rows": late.count(), "rejected_rows": {row["reason"]: row["count"] for row in reasons}}


def count_carried_rows(spark, lake, settings):
    """Count the rows carried over the end of each slice."""
    ledger = Ledger.from_pipeline(settings, str(lake))
    return [sum(entry.carried) for entry in ledger.entries.values()]


def test_report_agrees_with_committed_tables(
    spark, lake, inputs, pipeline, run_pipeline, compare_with, read_emissions, tmp_path, monkeypatch, capsys
):
    by_arrival = run_pipeline(pipeline(name="by_arrival", dialect="flink-sql", join=LEFT_JOIN))
    shutil.copy(tmp_path / "pipeline.yaml", tmp_path / "by_arrival.yaml")
    by_time = run_pipeline(pipeline(dialect="flink-sql", join=LEFT_JOIN, left__arrival=None, right__arrival=None))
    stream = read_emissions(by_arrival).cache()
    lost = (
        stream.intersectAll(read_emissions(by_time)).where("right_id IS NOT NULL").orderBy("left_id").limit(1).collect()
    )
    stream.exceptAll(spark.createDataFrame(lost, stream.schema)).write.format("delta").save(str(lake / "stream"))
    files = {kind: tmp_path / f"report.{kind}" for kind in ("html", "md", "json")}
    command = ["compare", "report", "pipeline.yaml", *map(str, files.values()), "--with", "stream"]
    command += ["--reference", "by_arrival.yaml", "--lake", str(lake)]
    monkeypatch.chdir(tmp_path)
    with tuned_for_tiny_queries(spark):
        assert cli.main([*command, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    report = json.loads(files["json"].read_text())

    comparison = report["comparison"]
    assert comparison | {"causes": printed["causes"]} == printed
    assert comparison["unexplained"] == sum(period["unexplained_rows"] for period in report["periods"]) == 1
    assert comparison["same"] == sum(period["equal_rows"] for period in report["periods"])
    assert comparison["differences"] == sum(
        period["explained_rows"] + period["unexplained_rows"] for period in report["periods"]
    )

    side_output = spark.read.format("delta").load(f"{lake}/by_arrival/late")
    for source in report["lateness"]["inputs"]:
        assert source == source | count_late_rows(side_output.where(F.col("side") == source["side"]))
        assert source["late_rows"] == sum(source["histogram"]) == sum(source["rows_by_watermark_input"].values())
    for state, settings in zip(report["states"], (by_time, by_arrival), strict=True):
        counts = count_carried_rows(spark, lake, settings)
        assert ([period["rows"] for period in state["periods"]], state["peak_rows"]) == (counts, max(counts))

    # The present delay gives the stream's output; under the longest one no row is late by its input's watermark.
    outcomes = {outcome["value"]: outcome for outcome in report["what_if"]["outcomes"]}
    assert report["what_if"]["setting"] == "left.watermark_delay"
    assert outcomes[report["current_value"]]["matched"] == stream.where("_emission = 'matched'").count()
    matched = [outcome["matched"] for outcome in outcomes.values()]
    assert matched == sorted(matched)
    assert 5 <= len(matched) <= 10
    assert sum(list(outcomes.values())[-1]["late"].values()) == 0

    names = {example["name"] for example in report["row_histories"]}
    mentioned = [example["history_names"] for cause in report["causes"] for example in cause["examples"]]
    assert all(mentioned), "each is made of rows that the inputs have"
    assert set().union(*mentioned) == names
    first = report["row_histories"][0]
    (history,) = explain_rows(spark, by_arrival, str(lake), first["history"]["side"], first["key"])
    assert json.loads(json.dumps(history.to_dict())) == first["history"]
    capsys.readouterr()
    assert cli.main(shlex.split(report["explain_commands"][first["name"]])[1:]) == 0
    assert history.steps[0] in capsys.readouterr().out.replace("\n", " ")
    assert shlex.split(report["commands"][-1])[1:] == [*command, "--json"]
    differing = {setting["name"] for setting in report["settings"] if len(set(setting["values"])) > 1}
    assert differing == {"clock", "left.arrival.column", "right.arrival.column"}
    assert report["versions"]["stream"] == comparison["table_version"] == 0
    view = CommittedView.read(spark, by_arrival, str(lake))
    # Without erased rows.
    sources = tuple(replace(each, side=replace(each.side, excluded_predicates=("true",))) for each in view.inputs)
    assert find_minimal_key(replace(view, inputs=sources), first["history"]["side"], first["key"]) is None
    assert all("1 unexplained" in files[kind].read_text() for kind in ("html", "md"))


def test_gather_without_reference_or_difference_has_no_examples(
    spark, lake, inputs, pipeline, run_pipeline, compare_with, read_emissions
):
    by_time = run_pipeline(pipeline(dialect="flink-sql", join=LEFT_JOIN, left__arrival=None, right__arrival=None))
    comparison = compare_with(by_time, read_emissions(by_time))
    invocation = Invocation((), "orders", None, None)
    data = collect_report_data(spark, comparison, ComparisonRequest("stream"), (by_time, None), str(lake), invocation)

    assert (data.causes, data.row_histories, data.what_if) == ((), (), None)
    assert data.no_what_if_reason.startswith("orders runs in order of event time, so that delays have no effect")
    assert [source.late_rows for source in data.lateness.inputs] == [0, 0]
