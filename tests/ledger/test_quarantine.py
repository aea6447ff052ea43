"""Stop, quarantine or waive slices with bad rows, and release quarantined rows."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable

from tests.ledger.reader_assertions import check_every_version, check_readers_agree
from tidemark.cli.app import main
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.integrity.check import check_integrity
from tidemark.integrity.repair import plan_repair
from tidemark.ledger.ledger import Ledger
from tidemark.timegrid.slices import Grid

START = datetime(2024, 1, 1, tzinfo=UTC)
BOUND = {"type": "expect_column_values_to_be_between", "column": "right_v", "max_value": 500}
NAME = "expect_column_values_to_be_between(column right_v, max_value 500.0)"
RULE = {"type": "rows", "that": "right_v <= 500 OR left_k IS NULL", "on_failure": "quarantine"}
RULE_NAME = "rows(that right_v <= 500 OR left_k IS NULL)"
UNIQUE = {
    "type": "expect_column_values_to_be_unique",
    "column": "left_v",
    "row_condition": "left_k NOT LIKE '%.900'",
    "on_failure": "quarantine",
}
BAD_VALUES = {1: (900, 901), 3: (900,)}
"""Values that exceed the bound, by hour, in addition to three good rows per hour."""


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


@pytest.fixture
def four_hours(append_inputs, lake, monkeypatch):
    """Write four hours of pairs, two with bad values and one with a duplicate."""
    rows = [(f"{hour}.{n}", at(hour, n), at(hour, n), 10 * hour + n) for hour in range(4) for n in range(3)]
    rows += [(f"{h}.{v}", at(h, 30), at(h, 30), v) for h, values in BAD_VALUES.items() for v in values]
    append_inputs(*rows, ("twice", at(2, 40), at(2, 40), 7), ("again", at(2, 41), at(2, 41), 7))
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))


@pytest.fixture
def run_tidemark(pipeline, tmp_path, capsys):
    """Run a command on the pipeline file with expectations; return exit code and output or error."""

    def execute(name, *options, quality=None, **settings):
        if quality is not None:
            pipeline(quality=quality, **settings)
        code = main([*name.split(), str(tmp_path / "pipeline.yaml"), *options])
        output = capsys.readouterr()
        return code, output.out if code == 0 else output.err

    return execute


def count_rows(lake, table, *columns, output="orders"):
    log = DeltaTableHandle.open(f"{lake}/{output}/{table}")
    rows = [] if log is None else log.read(["_slice", *columns]).to_pylist()
    return Counter((row["_slice"].hour, *(str(row[name]) for name in columns)) for row in rows)


def read_ledger(lake, *columns, output="orders"):
    rows = DeltaTable(f"{lake}/{output}/ledger").to_pyarrow_table().to_pylist()
    newest = {row["slice"].hour: row for row in sorted(rows, key=lambda row: row["commit"])}
    return {hour: tuple(newest[hour][name] for name in columns) for hour in sorted(newest)}


def read_causes(output):
    """Return the causes in the output of a comparison."""
    return {group["cause"]: group["rows"] for group in json.loads(output[1])["causes"]}


def test_quarantine_is_independent_of_slices_per_job(spark, lake, four_hours, run_tidemark, pipeline):
    quality = [RULE, UNIQUE]
    results_by_job_size = {}
    for size in ("3", "1"):
        output = f"by_{size}"
        assert run_tidemark("run", "--slices-per-job", size, quality=quality, output=output)[0] == 0
        ledger_rows = read_ledger(
            lake, "emissions", "quarantined", "quality", "quality_results", "fingerprint", output=output
        )
        published = count_rows(lake, "emissions", "left_v", output=output)
        quarantined = count_rows(lake, "quarantined", "left_v", "_failed_expectations", output=output)
        results_by_job_size[size] = ledger_rows, published, quarantined
        tables = PipelineTables(f"{lake}/{output}")
        assert check_every_version(tables, Grid.from_config(pipeline().slices))
        assert check_readers_agree(spark, tables, Grid.from_config(pipeline().slices))
    ledger_rows, published, quarantined = results_by_job_size["1"]
    assert results_by_job_size["3"] == results_by_job_size["1"]

    unique = "expect_column_values_to_be_unique(column left_v, row_condition left_k NOT LIKE '%.900')"
    assert quarantined == Counter(
        {
            **{(h, str(v), str([RULE_NAME])): 1 for h, values in BAD_VALUES.items() for v in values},
            (2, "7", str([unique])): 2,
        }
    )
    assert {hour: row[:3] for hour, row in ledger_rows.items()} == {
        0: (3, None, "passed"),
        1: (3, 2, "quarantined"),
        2: (3, 2, "quarantined"),
        3: (3, 1, "quarantined"),
    }
    assert run_tidemark("run", quality=[], output="plain")[0] == 0
    assert {hour: row[-1:] for hour, row in ledger_rows.items()} == read_ledger(lake, "fingerprint", output="plain"), (
        "state is unchanged"
    )

    all_rows = count_rows(lake, "emissions", "left_v", output="plain")
    joined_rows = {hour: sum(n for (at_hour, _), n in all_rows.items() if at_hour == hour) for hour in range(4)}
    for output in ("by_1", "by_3"):
        entries = Ledger.from_pipeline(pipeline(output=output), str(lake)).entries
        assert {hour: entries[hour].emissions for hour in entries} == joined_rows, "counts are those of the join"
    assert published + Counter((hour, v) for hour, v, _ in quarantined.elements()) == all_rows


@pytest.mark.promise("Rows in quarantine are published by their release only, each once.")
def test_release_inserts_rows_and_reprocess_quarantines_them(spark, lake, four_hours, run_tidemark, pipeline):
    quality = [{**BOUND, "on_failure": "quarantine"}]
    assert run_tidemark("run", quality=quality, expose_row_values=True)[0] == 0

    code, output = run_tidemark("quarantine list", "--json")
    groups = json.loads(output)
    assert [(group["slice"], group["expectation"], group["rows"]) for group in groups] == [
        ("2024-01-01T01:00Z", NAME, 2),
        ("2024-01-01T03:00Z", NAME, 1),
    ]
    assert {"left_k": "3.900", "right_k": "3.900"} in groups[1]["examples"]

    all_rows = spark.read.format("delta").load(f"{lake}/orders/emissions").drop("_slice", "_pane", "_result_time")
    quarantined_rows = spark.read.format("delta").load(f"{lake}/orders/quarantined").select(*all_rows.columns)
    all_rows.unionByName(quarantined_rows).coalesce(1).write.format("delta").save(f"{lake}/streamed")
    assert read_causes(run_tidemark("compare run", "--with", "streamed", "--save", "--json")) == {"quarantined": 3}
    assert "in quarantine in slice 2024-01-01T01:00Z, rows: 1, which fail expect_column_values_to_be_between(" in (
        " ".join(run_tidemark("explain", "--left", "k=1.900")[1].split())
    )

    code, output = run_tidemark("quarantine release", "--slice", "2024-01-01T01:00Z", "--run", "another")
    assert (code, f"has run again since, as {groups[0]['run']}" in output) == (2, True)

    before = DeltaTable(f"{lake}/orders/emissions").version()
    options = ("--slice", "2024-01-01T01:00Z", "--run", groups[0]["run"], "--user", "ada")
    assert run_tidemark("quarantine release", *options) == (
        0,
        "released 2 rows of slice 2024-01-01T01:00Z\n",
    )

    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", before + 1)
    changes = feed.load(f"{lake}/orders/emissions").select("left_v", "_change_type").collect()
    assert Counter(map(tuple, changes)) == Counter({(900, "insert"): 1, (901, "insert"): 1})
    assert count_rows(lake, "quarantined", "left_v") == Counter({(3, "900"): 1})

    code, output = run_tidemark("status", "--json")
    [status] = json.loads(output)
    assert (status["emissions"], status["quarantined"]) == (16, 1)
    assert status["quality"] == {"passed": 2, "released": 1, "quarantined": 1}

    [released] = json.loads(read_ledger(lake, "releases")[1][0])
    assert (released["user"], released["rows"]) == ("ada", 2)
    assert read_causes(run_tidemark("compare run", "--with", "streamed", "--save", "--only-due", "--json")) == {
        "quarantined": 1
    }
    assert "matched in slice 2024-01-01T01:00Z, rows emitted: 1" in run_tidemark("explain", "--left", "k=1.900")[1]

    code, output = run_tidemark("quarantine release", "--slice", "2024-01-01T01:00Z")
    assert (code, "no row of this slice is in quarantine. Run tidemark quarantine list " in output) == (2, True)

    grid = Grid(int(START.timestamp()) * 1_000_000, 3_600_000_000)
    tables = PipelineTables(f"{lake}/orders")
    assert check_every_version(tables, grid)
    assert run_tidemark("tables verify", "--deep", "--json")[0] == 0, "released rows are no damage"
    assert run_tidemark("run")[0] == 0, "the slice is unchanged for later ones"
    assert set(read_ledger(lake, "attempt").values()) == {(1,)}

    assert run_tidemark("reprocess", "--from", "2024-01-01T01:00Z", "--to", "2024-01-01T02:00Z")[0] == 0
    assert count_rows(lake, "quarantined", "left_v") == Counter({(1, "900"): 1, (1, "901"): 1, (3, "900"): 1})
    assert read_ledger(lake, "emissions", "quarantined", "attempt", "releases", "original_commit")[1] == (
        3,
        2,
        2,
        None,
        None,
    )
    assert check_every_version(tables, grid)
    assert check_readers_agree(spark, tables, grid)

    assert run_tidemark("quarantine release", *options[:2])[0] == 0
    log = DeltaTableHandle.open(tables.quarantined)
    log.commit([], log.files["path"])
    settings = pipeline(quality=quality, expose_row_values=True)
    repair = plan_repair(settings, str(lake), check_integrity(settings, str(lake)), deep=False)
    restored = [file.path for table_repair in repair.table_repairs for file in table_repair.restored]
    assert (restored, repair.slices_to_rerun) == ([], (3,)), "released rows stay released"


@pytest.mark.slow
def test_release_row_failing_two_expectations_needs_both(lake, four_hours, run_tidemark):
    low = {"type": "expect_column_values_to_be_in_set", "column": "left_v", "value_set": [*range(40), 900]}
    quality = [{**group, "on_failure": "quarantine"} for group in (BOUND, low)]
    assert run_tidemark("run", quality=quality)[0] == 0

    single_failures = Counter({(1, f"['{NAME}']"): 1, (3, f"['{NAME}']"): 1})
    names = count_rows(lake, "quarantined", "_failed_expectations") - single_failures
    assert [(hour, name.count("expect_")) for hour, name in names] == [(1, 2)]

    code, output = run_tidemark("quarantine release", "--slice", "2024-01-01T01:00Z", "--expectation", "expect")
    assert code == 2
    assert "matches several expectations. Pass one of: expect_column_values_to_be_between(" in output
    assert run_tidemark("quarantine release", "--slice", "2024-01-01T01:00Z", "--expectation", "between")[1] == (
        "released 1 row of slice 2024-01-01T01:00Z; 1 row in quarantine still\n"
    )
    assert read_ledger(lake, "emissions", "quarantined", "quality")[1] == (4, 1, "quarantined")
    assert run_tidemark("quarantine release", "--slice", "2024-01-01T01:00Z")[0] == 0
    assert read_ledger(lake, "emissions", "quarantined", "quality")[1] == (5, 0, "released")
    assert count_rows(lake, "quarantined", "_failed_expectations") == Counter({(3, f"['{NAME}']"): 1})


def test_critical_failure_suggests_waiver_for_single_attempt(lake, four_hours, run_tidemark, tmp_path):
    code, output = run_tidemark("run", quality=[BOUND], expose_row_values=True)
    assert code == 1
    assert output.count("\n") == 1
    assert "found 2 of 5 values, such as [1000, 1001], at left_k 1.90" in output
    assert "run the same command again. To publish the slice without such rows, set on_failure: quarantine" in output

    options = "--slice 2024-01-01T01:00Z --expectation right_v --reason TEXT"
    waive_command = f"tidemark quality waive {tmp_path}/pipeline.yaml {options}"
    assert waive_command in output

    output = json.loads(run_tidemark("quality show", "--json")[1])
    [history] = [group for group in output if NAME in group["expectation"]]
    assert (history["outcomes"], history["worst_value"], history["worst_slice"]) == (
        {"passed": 1, "failed": 1},
        0.4,
        "2024-01-01T01:00Z",
    )

    waive = ["--slice", "2024-01-01T01:00Z", "--expectation", NAME, "--reason", "<b> $1 storm", "--user", "ada"]
    assert run_tidemark("quality waive", *waive)[0] == 0

    code, output = run_tidemark("status", "--json")
    assert [(group["slice"], group["user"]) for group in json.loads(output)[0]["waivers"]] == [
        ("2024-01-01T01:00Z", "ada")
    ]

    code, output = run_tidemark("run", "--slices-per-job", "2")
    assert code == 1
    assert "no slice from 2024-01-01T03:00Z to 2024-01-01T04:00Z was published" in output

    quality, applied_waivers, results = read_ledger(lake, "quality", "applied_waivers", "quality_results")[1]
    assert (quality, json.loads(applied_waivers)[0]["reason"]) == ("waived", "<b> $1 storm")
    assert "waived by ada at " in results

    docs = [page.read_text() for page in (lake / "orders/gx").rglob("*.html")]
    assert any("waived by ada at " in page and "&lt;b&gt; &#36;1 storm" in page for page in docs)

    code, output = run_tidemark("status", "--json")
    [status] = json.loads(output)
    assert (status["quality"], status["waivers"]) == ({"passed": 2, "waived": 1}, [])
    assert any("waived by ada" in failure for failure in status["failed_expectations"])

    slice_range = ["--from", "2024-01-01T01:00Z", "--to", "2024-01-01T02:00Z"]
    code, output = run_tidemark("reprocess", *slice_range)
    assert (code, waive_command in output) == (1, True), "the waiver was for that attempt"
    assert run_tidemark("quality waive", *waive)[0] == 0
    assert run_tidemark("reprocess", *slice_range)[0] == 0
    assert read_ledger(lake, "attempt", "quality")[1] == (2, "waived")


def test_waive_invalid_request_is_rejected(run_tidemark, lake, four_hours):
    rows = {"type": "expect_table_row_count_to_be_between", "min_value": 1}
    quality = [BOUND, {**rows, "per": "job"}, {**rows, "severity": "warning", "max_value": 9}]
    for slice_, name, message in (
        ("2024-01-01T01:30Z", "values", "--slice"),
        ("2024-01-01T01:00Z", "nulls", "--expectation nulls matches no expectation"),
        ("2024-01-01T01:00Z", "min_value 1)", "is evaluated on more than a slice (per: job)"),
        ("2024-01-01T01:00Z", "max_value 9", "only warns (on_failure: warn)"),
    ):
        options = ["--slice", slice_, "--expectation", name, "--reason", "so"]
        code, output = run_tidemark("quality waive", *options, quality=quality)
        assert (code, message in output, output.count("\n")) == (2, True, 1), output
    assert (
        run_tidemark("quality waive", "--slice", "2024-01-01T01:00Z", "--expectation", "values", "--reason", " ")[0]
        == 2
    )
