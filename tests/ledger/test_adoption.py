"""Take over a streamed table: the state goes on, rows before are not published, and all readers know it."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.ledger.reader_assertions import check_every_version
from tidemark.adoption.plan import WARM_UP, _can_continue, create_adoption_plan
from tidemark.cli import adopt as adopt_command
from tidemark.cli.app import main
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import SliceOrderError, UserError
from tidemark.ledger import transaction
from tidemark.ledger.adoption import AdoptedTable, find_adoption, list_adopted_slices
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.values import Watermarks

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
UNTIL = "2024-01-01T03:00Z"


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


@pytest.fixture
def streamed_lake(append_inputs, create_rows, pipeline, run_hours, lake):
    """Write six hours of rows, of which every fourth is late, and the table `run/emissions` of a run over all."""
    append_inputs(*create_rows(minutes=11, count=32))
    run_hours(pipeline(output="run"), 6)
    return lake


@pytest.fixture
def run_tidemark(pipeline, tmp_path, lake, capsys, monkeypatch):
    """Run a command on the pipeline file with some settings; return exit code and output or error."""
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))

    def execute(name, *options, **settings):
        pipeline(**settings)
        command, *more = name.split(" -- ")
        code = main([*command.split(), str(tmp_path / "pipeline.yaml"), *more, *options])
        output = capsys.readouterr()
        return code, output.out if code == 0 else output.err

    return execute


class KilledError(BaseException):
    """End of the process, which no handler of the command catches."""


def list_rows_since(output, hour):
    """List the emissions and the late rows in slices from an hour on (`read_output`)."""
    start = at(hour).replace(tzinfo=None)
    return [sorted((row for row in rows.elements() if row[0] >= start), key=str) for rows in output]


def test_adopted_pipeline_continues_stream_and_publishes_nothing_before(
    spark, streamed_lake, run_tidemark, pipeline, read_output, read_ledger, append_inputs
):
    code, output = run_tidemark("adopt -- run/emissions", "--until", UNTIL, "--json")
    assert code == 0
    result = json.loads(output)
    whole, tables = read_ledger(pipeline(output="run")), PipelineTables(f"{streamed_lake}/orders")
    state = whole.entries[2]
    version = DeltaTableHandle.open(f"{streamed_lake}/run/emissions").version
    assert (result["table"], result["version"]) == ("run/emissions", version)
    assert (result["slices"], result["until"]) == (3, UNTIL)
    assert tuple(result["carried"].values()) == state.carried
    assert any(state.carried)
    assert result["comparison"]["same"] > 0
    assert result["comparison"]["differences"] == 0
    assert not list((streamed_lake / "orders" / "candidates").rglob("*.parquet"))

    ledger = read_ledger(pipeline())
    assert ledger.entries[2].fingerprint == state.fingerprint
    assert ledger.last_commit == 1
    assert read_output() == (Counter(), Counter())
    [status] = json.loads(run_tidemark("status", "--json")[1])
    assert (status["emissions"], status["adopted"]["until"], status["adopted"]["table"]) == (0, UNTIL, "run/emissions")
    assert "2024-01-01T03:00Z, from run/emissions, version" in run_tidemark("status")[1]
    assert json.loads(run_tidemark("plan", "--json")[1])["from"] == UNTIL
    assert run_tidemark("tables verify", "--deep")[0] == 0
    assert "has committed 3 slices" in run_tidemark("adopt -- run/emissions", "--until", UNTIL)[1]
    code, output = run_tidemark("compare run", "--with", "run/emissions")
    assert code == 2
    assert "no committed slice from 2024-01-01T03:00Z" in output

    assert run_tidemark("run", "--to", "2024-01-01T06:00Z")[0] == 0
    expected = list_rows_since(read_output("run"), 3)
    assert all(expected)
    assert [sorted(rows.elements(), key=str) for rows in read_output()] == expected
    code, output = run_tidemark("compare run", "--with", "run/emissions", "--json")
    assert code == 0
    comparison = json.loads(output)
    assert (comparison["start"], comparison["differences"]) == (UNTIL, 0)
    streamed = spark.read.format("delta").load(f"{streamed_lake}/run/emissions")
    lost = streamed.where("_slice >= '2024-01-01 03:00'").orderBy("left_v", "right_v").limit(1)
    streamed.exceptAll(lost).write.format("delta").save(f"{streamed_lake}/streamed")
    options = ("--with", "streamed", "--json", "--set", "budget.unexplained=1")
    comparison = json.loads(run_tidemark("compare run", *options)[1])
    assert [(cause["cause"], cause["rows"]) for cause in comparison["causes"]] == [("unexplained", 1)]
    assert comparison["setting_trials"]
    assert all(trial["explains"] <= 1 for trial in comparison["setting_trials"]), "adopted rows do not count"
    assert run_tidemark("checkpoint verify", "--at", UNTIL)[0] == 0
    assert check_every_version(tables, Grid.from_config(pipeline().slices))


def test_adopted_slices_change_their_state_only(
    streamed_lake, run_tidemark, pipeline, read_output, read_ledger, append_inputs
):
    assert run_tidemark("adopt -- run/emissions", "--until", UNTIL, "--compare", "0")[0] == 0
    assert run_tidemark("run", "--to", "2024-01-01T05:00Z")[0] == 0
    append_inputs(("a", at(2, 50), at(2, 55), 900), both=False)
    code, output = run_tidemark("reprocess", "--json")
    assert code == 0
    reprocessed = json.loads(output)
    assert any("adopted from run/emissions: they run for their state" in note for note in reprocessed["plan"]["notes"])
    assert [change["slice"] for change in reprocessed["changes"]][:2] == ["2024-01-01T02:00Z", UNTIL]
    assert reprocessed["changes"][0]["added"] == 0
    assert min(row[0] for rows in read_output() for row in rows) >= at(3).replace(tzinfo=None)
    assert read_ledger(pipeline()).entries[2].adopted_from
    assert run_tidemark("tables verify", "--deep")[0] == 0
    assert check_every_version(PipelineTables(f"{streamed_lake}/orders"), Grid.from_config(pipeline().slices))
    code, output = run_tidemark("explain", "--left", "v=900")
    assert code == 0
    assert "late rows and emissions before 2024-01-01T03:00Z are those of run/emissions" in output

    for name, *options in (("tables erase", "--left", "v = 900", "--yes"), ("tables vacuum", "--yes")):
        code, output = run_tidemark(name, *options)
        assert code == 0, output
        assert all(read_ledger(pipeline()).entries[number].adopted_from for number in range(3))
        assert run_tidemark("tables verify", "--deep")[0] == 0
    assert min(row[0] for rows in read_output() for row in rows) >= at(3).replace(tzinfo=None)

    code, output = run_tidemark("reprocess", output_stream=True)
    assert code == 2
    assert "output stream would lack the rows and watermarks of adopted slices" in output


def test_difference_stops_adoption_until_it_is_accepted(
    spark, streamed_lake, run_tidemark, pipeline, read_ledger, monkeypatch
):
    stream = spark.read.format("delta").load(f"{streamed_lake}/run/emissions").drop("_slice")
    stream.where("left_v <> 9").write.format("delta").save(f"{streamed_lake}/a stream")
    options = ("--until", UNTIL, "--compare", "2 hours")
    code, output = run_tidemark("adopt -- nowhere", *options)
    assert code == 2
    assert "TABLE: there is no Delta table nowhere" in output
    code, output = run_tidemark("adopt -- a stream", *options)
    assert code == 1
    assert "the last slices before 2024-01-01T03:00Z differ from a stream, so nothing is adopted" in output
    assert f"--candidate {WARM_UP} --with 'a stream'" in output
    assert read_ledger(pipeline()).last is None

    warm_up = PipelineTables(f"{streamed_lake}/orders/candidates/{WARM_UP}")
    runs = Ledger.read(warm_up, Grid.from_config(pipeline().slices)).runs
    half_hours = pipeline(slices__every="30 minutes")
    assert not _can_continue(spark, half_hours, str(streamed_lake), range(6)), "the warm-up has other slices"
    plan_adoption = adopt_command.create_adoption_plan

    def plan_while_stream_writes(*arguments):
        plan = plan_adoption(*arguments)
        rest = spark.read.format("delta").load(f"{streamed_lake}/run/emissions").drop("_slice").where("left_v = 9")
        rest.write.format("delta").mode("append").save(f"{streamed_lake}/a stream")
        return plan

    monkeypatch.setattr(adopt_command, "create_adoption_plan", plan_while_stream_writes)
    code, output = run_tidemark("adopt -- a stream", *options, "--accept-differences", "--json")
    assert code == 0
    # The ledger has the version that was compared, without the row that the stream wrote meanwhile.
    assert json.loads(read_ledger(pipeline()).last.adopted_from) == {"table": "a stream", "version": 0}
    assert json.loads(output)["comparison"]["differences"] > 0
    assert read_ledger(pipeline()).runs == runs  # the slices did not run again
    assert read_ledger(pipeline()).last.number == 2


def test_adoption_that_is_killed_leaves_nothing_or_everything(
    streamed_lake, run_tidemark, pipeline, read_ledger, monkeypatch
):
    def kill(*_):
        raise KilledError

    options = ("--until", UNTIL, "--compare", "0")
    for module, name, is_committed in (
        (adopt_command, "commit_adoption", False),
        (transaction, "apply_to_tables", True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, kill)
            with pytest.raises(KilledError):
                run_tidemark("adopt -- run/emissions", *options)
        ledger = Ledger.read_without_sync(
            PipelineTables(f"{streamed_lake}/orders"), Grid.from_config(pipeline().slices)
        )
        assert (ledger.last is not None) == is_committed
    assert run_tidemark("status")[0] == 0  # applies the commit to the tables
    assert run_tidemark("tables verify")[0] == 0
    assert "has committed 3 slices" in run_tidemark("adopt -- run/emissions", *options)[1]


def test_later_start_is_refused_if_its_second_half_has_another_state(
    spark, streamed_lake, run_tidemark, pipeline, read_ledger
):
    quarter = {"slices__every": "15 minutes"}
    run = lambda start: run_tidemark(  # noqa: E731
        "adopt -- run/emissions", "--until", UNTIL, "--from", start, "--compare", "0", "--json", **quarter
    )
    code, output = run("2024-01-01T02:30Z")
    assert code == 1
    assert "is another one if the slices before 2024-01-01T02:45Z do not run" in output
    assert read_ledger(pipeline(**quarter)).last is None
    code, output = run("2024-01-01T00:30Z")
    assert code == 0
    result = json.loads(output)
    assert (result["start"], result["shorter_start"]) == ("2024-01-01T00:30Z", "2024-01-01T01:45Z")
    plan = create_plan(spark, pipeline(**quarter), str(streamed_lake), Request(reprocess=True, start=START, end=at(1)))
    assert [part.reason for part in plan.slice_ranges] == ["gap", "reprocess"]
    assert any("publish no rows" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"until": at(2, 20)},
            "--until 2024-01-01T02:20Z is not on a slice boundary; .* use 2024-01-01T02:00Z or 2024",
        ),
        ({"until": at(0)}, "--until 2024-01-01T00:00Z is the start of the pipeline's first slice"),
        ({"until": at(-1)}, "--until 2023-12-31T23:00Z is before the pipeline's first slice"),
        ({"until": at(3), "start": at(2)}, "--from 2024-01-01T02:00Z is too late .* Pass 2024-01-01T01:00Z or earlier"),
        ({"until": at(3), "start": at(1, 1)}, "--from 2024-01-01T01:01Z is not on a slice boundary"),
    ],
)
def test_adoption_is_refused_off_slice_boundaries(pipeline, lake, options, message):
    with pytest.raises(SliceOrderError, match=message):
        create_adoption_plan(None, pipeline(), str(lake), "stream", **options)


def test_adoption_with_output_stream_is_refused(pipeline, lake):
    with pytest.raises(UserError, match="output stream would lack the rows and watermarks of adopted slices"):
        create_adoption_plan(None, pipeline(output_stream=True), str(lake), "stream", at(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--until", "soon"), "--until: "),
        (("--until", UNTIL, "--from", "soon"), "--from: "),
        (("--until", UNTIL, "--compare", "a while"), "--compare: "),
        (("--until", UNTIL, "--compare", "-1 hour"), "--compare -1 hour: the duration is negative. Pass 0 to skip"),
        (("--until", UNTIL, "--reference", "nowhere"), "--reference: "),
    ],
)
def test_invalid_option_is_refused(run_tidemark, options, message):
    code, output = run_tidemark("adopt -- stream", *options)
    assert code == 2
    assert message in output


def test_slices_before_adopted_ones_count_as_adopted():
    mark = AdoptedTable("stream", 3).to_json()
    marks = {2: mark, 3: mark, 4: None}
    entries = {
        number: Entry(
            number, "run", 1, 1, "{}", (0, 0), Watermarks(), (0, 0), (0, 0), drained=False, adopted_from=adopted_from
        )
        for number, adopted_from in marks.items()
    }
    adoption = find_adoption(entries)
    assert (adoption.start, adoption.end, adoption.source) == (2, 4, AdoptedTable("stream", 3))
    assert list_adopted_slices(entries, range(1, 6)) == dict.fromkeys((1, 2, 3), mark)
    assert list_adopted_slices({4: entries[4]}, range(6)) == {}
