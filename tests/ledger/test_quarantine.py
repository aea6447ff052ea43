"""What becomes of a slice with bad rows: stopped, published without them, or let through; and how they come back."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable

from tests.ledger.reader_assertions import every_version_is_whole, readers_agree
from tidemark.cli.app import main
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaLog
from tidemark.ledger.ledger import Ledger
from tidemark.timegrid.slices import Grid

START = datetime(2024, 1, 1, tzinfo=UTC)
BOUND = {"type": "expect_column_values_to_be_between", "column": "right_v", "max_value": 500}
NAME = "expect_column_values_to_be_between(column right_v, max_value 500.0)"
TWICE = {"type": "expect_column_values_to_be_unique", "column": "left_v", "on_failure": "quarantine"}
BAD = {1: (900, 901), 3: (900,)}
"""By hour, values that break the bound, but for those of three good rows an hour."""


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


@pytest.fixture
def landed(land, lake, monkeypatch):
    """Four hours of pairs, of which two have bad ones; and one that is there twice."""
    rows = [(f"{hour}.{n}", at(hour, n), at(hour, n), 10 * hour + n) for hour in range(4) for n in range(3)]
    rows += [(f"{h}.{v}", at(h, 30), at(h, 30), v) for h, values in BAD.items() for v in values]
    land(*rows, ("twice", at(2, 40), at(2, 40), 7), ("again", at(2, 41), at(2, 41), 7))
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))


@pytest.fixture
def tidemark(pipeline, tmp_path, capsys):
    """The command on the pipeline file, with these expectations: its exit code, and what it prints or says is wrong."""

    def command(name, *options, quality=None, **settings):
        if quality is not None:
            pipeline(quality=quality, **settings)
        code = main([*name.split(), str(tmp_path / "pipeline.yaml"), *options])
        told = capsys.readouterr()
        return code, told.out if code == 0 else told.err

    return command


def stored(lake, table, *columns, output="orders"):
    log = DeltaLog.open(f"{lake}/{output}/{table}")
    rows = [] if log is None else log.read(["_slice", *columns]).to_pylist()
    return Counter((row["_slice"].hour, *(str(row[name]) for name in columns)) for row in rows)


def ledger(lake, *columns, output="orders"):
    rows = DeltaTable(f"{lake}/{output}/ledger").to_pyarrow_table().to_pylist()
    newest = {row["slice"].hour: row for row in sorted(rows, key=lambda row: row["commit"])}
    return {hour: tuple(newest[hour][name] for name in columns) for hour in sorted(newest)}


def causes(answer):
    """Of a comparison."""
    return {one["cause"]: one["rows"] for one in json.loads(answer[1])["causes"]}


def test_rows_that_break_an_expectation_are_apart_whatever_the_cut(spark, lake, landed, tidemark, pipeline):
    quality = [{**BOUND, "on_failure": "quarantine"}, TWICE]
    answers = {}
    for size in ("3", "1"):
        output = f"by_{size}"
        assert tidemark("run", "--slices-per-job", size, quality=quality, output=output)[0] == 0
        told = ledger(lake, "emissions", "quarantined", "quality", "findings", "digest", output=output)
        published = stored(lake, "emissions", "left_v", output=output)
        aside = stored(lake, "quarantined", "left_v", "_expectations", output=output)
        answers[size] = told, published, aside
        tables = PipelineTables(f"{lake}/{output}")
        assert every_version_is_whole(tables, Grid.of(pipeline().slices))
        assert readers_agree(spark, tables, Grid.of(pipeline().slices))
    told, published, aside = answers["1"]
    assert answers["3"] == answers["1"]
    unique = "expect_column_values_to_be_unique(column left_v)"
    assert aside == Counter(
        {
            **{(h, str(v), f"['{NAME}']"): 1 for h, values in BAD.items() for v in values},
            (2, "7", f"['{unique}']"): 2,
        }
    )
    assert {hour: row[:3] for hour, row in told.items()} == {
        0: (3, None, "passed"),
        1: (3, 2, "quarantined"),
        2: (3, 2, "quarantined"),
        3: (3, 1, "quarantined"),
    }
    assert tidemark("run", quality=[], output="plain")[0] == 0
    assert {hour: row[-1:] for hour, row in told.items()} == ledger(lake, "digest", output="plain"), (
        "state is untouched"
    )
    everything = stored(lake, "emissions", "left_v", output="plain")
    given = {hour: sum(n for (at_hour, _), n in everything.items() if at_hour == hour) for hour in range(4)}
    for output in ("by_1", "by_3"):
        entries = Ledger.of(pipeline(output=output), str(lake)).entries
        assert {hour: entries[hour].emissions for hour in entries} == given, "figures are of what the join gave"
    assert published + Counter((hour, v) for hour, v, _ in aside.elements()) == everything


def test_released_rows_are_inserts_and_a_reprocess_judges_them_again(spark, lake, landed, tidemark):
    quality = [{**BOUND, "on_failure": "quarantine"}]
    assert tidemark("run", quality=quality, show_rows=True)[0] == 0
    code, told = tidemark("quarantine list", "--json")
    listed = json.loads(told)
    assert [(one["slice"], one["expectation"], one["rows"]) for one in listed] == [
        ("2024-01-01T01:00Z", NAME, 2),
        ("2024-01-01T03:00Z", NAME, 1),
    ]
    assert {"left_k": "3.900", "right_k": "3.900"} in listed[1]["examples"]
    everything = spark.read.format("delta").load(f"{lake}/orders/emissions").drop("_slice", "_pane", "_result_time")
    apart = spark.read.format("delta").load(f"{lake}/orders/quarantined").select(*everything.columns)
    everything.unionByName(apart).coalesce(1).write.format("delta").save(f"{lake}/streamed")
    assert causes(tidemark("compare", "--with", "streamed", "--record", "--json")) == {"quarantined": 3}
    assert "in quarantine in slice 2024-01-01T01:00Z, rows: 1, which break expect_column_values_to_be_between(" in (
        " ".join(tidemark("explain", "--left", "k=1.900")[1].split())
    )
    before = DeltaTable(f"{lake}/orders/emissions").version()
    assert tidemark("release", "--slice", "2024-01-01T01:00Z", "--by", "ada") == (
        0,
        "released 2 rows of slice 2024-01-01T01:00Z\n",
    )
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", before + 1)
    changes = feed.load(f"{lake}/orders/emissions").select("left_v", "_change_type").collect()
    assert Counter(map(tuple, changes)) == Counter({(900, "insert"): 1, (901, "insert"): 1})
    assert stored(lake, "quarantined", "left_v") == Counter({(3, "900"): 1})
    code, told = tidemark("status", "--json")
    [status] = json.loads(told)
    assert (status["emissions"], status["quarantined"]) == (16, 1)
    assert status["quality"] == {"passed": 2, "released": 1, "quarantined": 1}
    [released] = json.loads(ledger(lake, "released")[1][0])
    assert (released["by"], released["rows"]) == ("ada", 2)
    assert causes(tidemark("compare", "--with", "streamed", "--record", "--due", "--json")) == {"quarantined": 1}
    assert "matched in slice 2024-01-01T01:00Z, rows emitted: 1" in tidemark("explain", "--left", "k=1.900")[1]
    code, told = tidemark("release", "--slice", "2024-01-01T01:00Z")
    assert (code, "no row of that slice is in quarantine; tidemark quarantine list orders" in told) == (2, True)
    grid = Grid(int(START.timestamp()) * 1_000_000, 3_600_000_000)
    tables = PipelineTables(f"{lake}/orders")
    assert every_version_is_whole(tables, grid)
    assert tidemark("verify", "--content", "--json")[0] == 0, "what was released is no damage"
    assert tidemark("run")[0] == 0, "the slice is as it was for those behind it"
    assert set(ledger(lake, "attempt").values()) == {(1,)}

    assert tidemark("reprocess", "--from", "2024-01-01T01:00Z", "--to", "2024-01-01T02:00Z")[0] == 0
    assert stored(lake, "quarantined", "left_v") == Counter({(1, "900"): 1, (1, "901"): 1, (3, "900"): 1})
    assert ledger(lake, "emissions", "quarantined", "attempt", "released", "ran_in")[1] == (3, 2, 2, None, None)
    assert every_version_is_whole(tables, grid)
    assert readers_agree(spark, tables, grid)


@pytest.mark.slow
def test_rows_that_break_two_expectations_are_released_when_both_are(lake, landed, tidemark):
    low = {"type": "expect_column_values_to_be_in_set", "column": "left_v", "value_set": [*range(40), 900]}
    quality = [{**one, "on_failure": "quarantine"} for one in (BOUND, low)]
    assert tidemark("run", quality=quality)[0] == 0
    both = Counter({(1, f"['{NAME}']"): 1, (3, f"['{NAME}']"): 1})
    names = stored(lake, "quarantined", "_expectations") - both
    assert [(hour, name.count("expect_")) for hour, name in names] == [(1, 2)]
    code, told = tidemark("release", "--slice", "2024-01-01T01:00Z", "--expectation", "expect")
    assert code == 2
    assert "--expectation expect is several of: expect_column_values_to_be_between(" in told
    assert tidemark("release", "--slice", "2024-01-01T01:00Z", "--expectation", "between")[1] == (
        "released 1 row of slice 2024-01-01T01:00Z; 1 row in quarantine still\n"
    )
    assert ledger(lake, "emissions", "quarantined", "quality")[1] == (4, 1, "quarantined")
    assert tidemark("release", "--slice", "2024-01-01T01:00Z")[0] == 0
    assert ledger(lake, "emissions", "quarantined", "quality")[1] == (5, 0, "released")
    assert stored(lake, "quarantined", "_expectations") == Counter({(3, f"['{NAME}']"): 1})


def test_a_stopped_slice_says_the_ways_on_and_a_waiver_is_one(lake, landed, tidemark):
    code, told = tidemark("run", quality=[BOUND], show_rows=True)
    assert code == 1
    assert told.count("\n") == 1
    assert "found 2 of 5 values, such as [1000, 1001], at left_k 1.90" in told
    assert "Ways on: mend the rows, or the expectation, and run the same command again; on_failure: quarantine" in told
    way = f"tidemark waive orders --slice 2024-01-01T01:00Z --expectation '{NAME}' --because TEXT"
    assert way in told
    told = json.loads(tidemark("quality", "--json")[1])
    [seen] = [one for one in told if NAME in one["expectation"]]
    assert (seen["outcomes"], seen["worst"], seen["worst_in"]) == ({"passed": 1, "failed": 1}, 0.4, "2024-01-01T01:00Z")
    waive = ["--slice", "2024-01-01T01:00Z", "--expectation", NAME, "--because", "<b> $1 storm", "--by", "ada"]
    assert tidemark("waive", *waive)[0] == 0
    code, told = tidemark("status", "--json")
    assert [(one["slice"], one["by"]) for one in json.loads(told)[0]["waivers"]] == [("2024-01-01T01:00Z", "ada")]
    code, told = tidemark("run", "--slices-per-job", "2")
    assert code == 1
    assert "nothing of slices 2024-01-01T03:00Z to 2024-01-01T04:00Z was published" in told
    quality, waived, findings = ledger(lake, "quality", "waived", "findings")[1]
    assert (quality, json.loads(waived)[0]["because"]) == ("waived", "<b> $1 storm")
    assert "waived by ada at " in findings
    docs = [page.read_text() for page in (lake / "orders/gx").rglob("*.html")]
    assert any("waived by ada at " in page and "&lt;b&gt; &#36;1 storm" in page for page in docs)
    code, told = tidemark("status", "--json")
    [status] = json.loads(told)
    assert (status["quality"], status["waivers"]) == ({"passed": 2, "waived": 1}, [])
    assert any("waived by ada" in finding for finding in status["findings"])

    again = ["--from", "2024-01-01T01:00Z", "--to", "2024-01-01T02:00Z"]
    code, told = tidemark("reprocess", *again)
    assert (code, way in told) == (1, True), "it was for that run"
    assert tidemark("waive", *waive)[0] == 0
    assert tidemark("reprocess", *again)[0] == 0
    assert ledger(lake, "attempt", "quality")[1] == (2, "waived")


def test_what_cannot_be_waived(tidemark, lake, landed):
    rows = {"type": "expect_table_row_count_to_be_between", "min_value": 1}
    quality = [BOUND, {**rows, "per": "job"}, {**rows, "severity": "warning", "max_value": 9}]
    for slice_, name, why in (
        ("2024-01-01T01:30Z", "values", "--slice"),
        ("2024-01-01T01:00Z", "nulls", "--expectation nulls is none of: "),
        ("2024-01-01T01:00Z", "min_value 1)", "judges more than a slice (per: job)"),
        ("2024-01-01T01:00Z", "max_value 9", "keeps no slice back"),
    ):
        options = ["--slice", slice_, "--expectation", name, "--because", "so"]
        code, told = tidemark("waive", *options, quality=quality)
        assert (code, why in told, told.count("\n")) == (2, True, 1), told
    assert tidemark("waive", "--slice", "2024-01-01T01:00Z", "--expectation", "values", "--because", " ")[0] == 2
