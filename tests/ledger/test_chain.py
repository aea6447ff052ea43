"""Chains of pipelines over Delta tables: slices, reprocessing, causes of differences, and histories of rows."""

import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from delta import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tidemark.cli import main
from tidemark.cli.status_summary import summarize_status
from tidemark.comparison import ComparisonRequest, compare
from tidemark.comparison.chain_history import explain_rows
from tidemark.comparison.minimal_output import check_output, write_minimal_example
from tidemark.config import load_pipeline, maintenance
from tidemark.config.loader import with_overrides
from tidemark.config.output_stream import ORDER_STEPS
from tidemark.erasure.workflow import erase
from tidemark.errors import FaultError, IncompleteInputError, InputError, SliceOrderError, UserError
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.maintenance.vacuum import vacuum
from tidemark.pipeline_tests.case_file import read_case_file
from tidemark.pipeline_tests.runner import run_case_files
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.timegrid.time_columns import to_plain_row
from tidemark.watermarks.exact import scale_tiebreak

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
PROMISE = "A reprocess of a pipeline reruns only the slices of the next join whose input has changed."
SCHEDULES = int(os.environ.get("TIDEMARK_CHAIN_SCHEDULES", "1"))
SLICES = 4
LATE_IN_ORDERS = "37 minutes behind the watermark 2024-01-01T01:07Z, which the right input held"
PADDED = "it was padded with nulls"
LATE_IN_SHIPMENTS = (
    "35 minutes behind the watermark 2024-01-01T01:05Z, which the left input held as the output of orders"
)


def at(minute, second=0):
    return START + timedelta(minutes=minute, seconds=second)


def create_rows(first, minutes, late=()):
    """Create a row per minute and key; rows of `late` minutes happened 40 minutes before their arrival."""
    return [
        (key, at(minute - 40 if minute in late else minute), at(minute, second), first + 2 * minute + second)
        for minute in minutes
        for second, key in enumerate("ab")
    ]


class Chain:
    """The pipelines `orders`, `shipments`, which reads the output of `orders`, and perhaps a third in the same way."""

    def __init__(self, spark, lake, folder, output="", delay="1 minute", join_type="left", length=2, **settings):
        self.spark, self.lake = spark, lake
        times = {"event_time": "happened", "arrival": "arrived", "tiebreak": "v", "watermark_delay": delay}
        content = {
            "name": f"orders{output}",
            "dialect": "flink-sql",
            "left": {"table": "a", **times},
            "right": {"table": "b", **times},
            "join": {"keys": ["k"], "type": join_type, "interval": {"lower": "-2 minutes", "upper": "2 minutes"}},
            "slices": {"every": "30 minutes", "start": "2024-01-01T00:00:00Z"},
            "output_stream": True,
            "quality_defaults": False,
            "compact": {"settled_after": "0 seconds", "period": "1 hour"},
            **settings,
        }
        self.first = self._write(folder, content)

        def add_join(name, upstream, table, key, **changes):
            left = {"pipeline": f"{upstream}{output}", "event_time": "left"}
            join = {**content["join"], "keys": [{"left": key, "right": "k"}]}
            right = {"table": table, **times}
            return self._write(
                folder, {**content, "name": f"{name}{output}", "left": left, "right": right, "join": join, **changes}
            )

        self.second = add_join("shipments", "orders", "c", "left_k")
        if length == 3:
            self.third = add_join("deliveries", "shipments", "d", "left_left_k", output_stream=False)

    @staticmethod
    def _write(folder, content):
        path = folder / f"{content['name']}.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return load_pipeline(path)

    def plan(self, settings, **request):
        return create_plan(self.spark, settings, str(self.lake), Request(**request))

    def run(self, settings, **request):
        return list(execute(self.spark, self.plan(settings, **request), lambda *_: None))

    def compact(self, settings):
        plan = plan_compaction(settings, str(self.lake))
        return {merge.table: merge_files(self.spark, plan, merge) for merge in plan.merges}

    def run_slices(self):
        """Run both pipelines by turns, slice by slice."""
        for end in (30, 60, 90, 120):
            self.run(self.first, end=at(end), slices_per_job=1)
            assert not self.plan(self.second, end=at(end)).notes
            self.run(self.second, end=at(end), slices_per_job=1)

    def run_at_once(self):
        """Run each pipeline in one job, by one command."""
        options = ["--upstream", "--lake", str(self.lake), "--to", at(120).isoformat()]
        assert main(["run", self.second.name, *options]) == 0

    def explain(self, settings, side, **values):
        """Return the name of the pipeline and the steps of each history."""
        texts = {name: str(value) for name, value in values.items()}
        histories = explain_rows(self.spark, settings, str(self.lake), side, texts)
        return [(history.pipeline, list(history.steps)) for history in histories]

    def read(self, settings):
        """Count the emissions by slice, kind and values of both inputs."""
        rows = self.spark.read.format("delta").load(f"{self.lake}/{settings.output}/emissions")
        values = [name for name in rows.columns if name.endswith("_v")]
        return Counter(tuple(row) for row in rows.select("_slice", "_emission", *values).collect())


@pytest.fixture(scope="module")
def template(spark, tmp_path_factory):
    """Write a lake in which both pipelines have run."""
    lake = tmp_path_factory.mktemp("chain")

    def write(table, rows):
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").save(str(lake / table))

    write("a", create_rows(1000, range(120), late={35, 36, 70}))
    write("b", [*create_rows(2000, range(0, 120, 2), late={50}), ("a", at(20), at(20, 30), None)])
    write("c", create_rows(3000, range(0, 120, 3), late={65, 66}))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TIDEMARK_PIPELINES", str(lake))
        Chain(spark, lake, lake).run_slices()
    return lake


@pytest.fixture
def chain(spark, lake, tmp_path, monkeypatch, template):
    """Return a function that opens a chain in a copy of the lake."""
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path))
    shutil.copytree(template, lake)
    return lambda output="", **options: Chain(spark, lake, tmp_path, output, **options)


@pytest.mark.promise(PROMISE)
def test_run_chain_in_slices_and_in_one_job_emits_same_rows_and_reprocess_ripples(chain, write):
    by_slice, at_once = chain(), chain("_at_once")

    with pytest.raises(IncompleteInputError, match="orders_at_once has no committed slice. Run tidemark run orders_at"):
        at_once.plan(at_once.second, end=at(30))
    at_once.run_at_once()

    rows = by_slice.read(by_slice.second)
    assert rows == at_once.read(at_once.second)
    upstream = {"pipeline": "orders", "end": "2024-01-01T02:00Z", "stale": None}
    assert summarize_status(by_slice.second, str(by_slice.lake)).upstreams == {"left": upstream}
    assert {kind for _, kind, *_ in rows} == {"matched", "padded_left"}

    assert by_slice.compact(by_slice.first)["output_stream"]
    assert not by_slice.plan(by_slice.second).slice_ranges, "the same rows in other files"
    write("b", [("a", at(61), at(61, 30), 9999)], ROW)  # lands late in slice 2
    settings = with_overrides(by_slice.first, {"on_late_arriving_rows": "reprocess"})
    by_slice.run(settings, reprocess=True, start=at(60), end=at(90))
    plan = by_slice.plan(by_slice.second)

    assert [part.slices for part in plan.slice_ranges] == [range(2, 3)]
    assert by_slice.plan(by_slice.second, reprocess=True, outdated=True).slice_ranges == plan.slice_ranges
    list(execute(by_slice.spark, plan, lambda *_: None))
    gained = by_slice.read(by_slice.second) - rows
    assert {9999} == {row[3] for row in gained}, "pairs of the row that arrived late"
    assert not by_slice.plan(by_slice.second).slice_ranges
    with pytest.raises(IncompleteInputError, match="orders is committed up to 2024-01-01T02:00Z"):
        by_slice.plan(by_slice.second, end=at(150))


def test_next_join_accepts_windows_that_end_days_after_the_inputs(chain):
    """A drained window of a week is emitted before its end, its event time in the next join."""
    joins = chain("_weeks", join={"keys": ["k"], "window": {"tumbling": "7 days"}})
    for settings in (joins.first, joins.second):
        joins.run(settings, end=at(30), drain=True)

    pairs = joins.read(joins.first).total()
    assert joins.read(joins.second).total() == pairs * 10, "each key has ten rows in the third table"


def test_run_chain_after_rows_of_output_stream_were_deleted_raises(chain):
    joins = chain("_deleted")
    joins.run(joins.first, end=at(120))
    path = f"{joins.lake}/{joins.first.output}/output_stream"
    DeltaTable.forPath(joins.spark, path).delete("_emitted_at >= '2024-01-01 01:00' AND _emission = 'padded_left'")

    with pytest.raises(FaultError, match="slice 2024-01-01T01:00Z has .* rows, but orders_deleted has emitted"):
        joins.run(joins.second, end=at(120))


@pytest.mark.slow
def test_erasure_in_a_chain_stops_next_join_only_once_files_are_deleted(spark, chain):
    joins = chain()
    rows, lake = joins.read(joins.second), str(joins.lake)

    erase(spark, joins.first, lake, {"left": "coalesce(v, 1010) = 1010"}, "ada", keep_files=True)
    erase(spark, joins.second, lake, {"left": "coalesce(left_v, 1010) = 1010"}, "ada")
    joins.run(joins.first, end=at(150))
    plan = joins.plan(joins.second, end=at(150))
    assert [(part.slices, part.reason) for part in plan.slice_ranges] == [(range(4, 5), "new")]
    list(execute(spark, plan, lambda *_: None))

    erase(spark, joins.first, lake, {"left": "coalesce(v, 1010) = 1010"}, "ada")
    with pytest.raises(InputError, match="or rows of it were erased. Reprocess from the first slice."):
        joins.plan(joins.second, end=at(150))
    joins.run(joins.second, reprocess=True, start=at(0))
    assert not joins.plan(joins.second, end=at(150)).slice_ranges
    lost = rows - joins.read(joins.second)
    assert lost
    assert {row[2] for row in lost} == {1010}
    assert not joins.read(joins.second) - rows
    for settings in (joins.first, joins.second):
        assert check_integrity(settings, lake).damages == ()


@pytest.mark.slow
def test_next_join_reads_on_after_vacuum_unless_slices_that_it_has_read_changed(chain, write, monkeypatch):
    monkeypatch.setattr(maintenance, "MIN_RETENTION", timedelta(0))
    joins = chain("_vacuumed", retention={"replaced_files": "0 s"})
    lake = str(joins.lake)
    for settings in (joins.first, joins.second):
        joins.run(settings, end=at(60))
    joins.run(joins.first, end=at(120), slices_per_job=1)
    assert joins.compact(joins.first)["output_stream"]

    assert vacuum(joins.first, lake).replaced_files.files
    plan = joins.plan(joins.second, end=at(120))
    assert [(part.slices, part.reason) for part in plan.slice_ranges] == [(range(2, 4), "new")]
    list(execute(joins.spark, plan, lambda *_: None))

    write("b", [("a", at(31), at(31, 30), 9999)], ROW)
    joins.run(joins.first, reprocess=True, start=at(30), end=at(60))
    vacuum(joins.first, lake)
    with pytest.raises(InputError, match="no longer has all files of version .* Reprocess from the first slice"):
        joins.plan(joins.second, end=at(120))
    joins.run(joins.second, reprocess=True, start=at(0))
    assert not joins.plan(joins.second, end=at(120)).slice_ranges


def test_scale_tiebreak_checks_that_the_result_is_a_long(spark):
    tiebreaks = spark.createDataFrame([(2**53 - 1,), (-(2**63),)], "tiebreak long")
    scaled = scale_tiebreak(F.col("tiebreak"), ORDER_STEPS) + (ORDER_STEPS - 1)
    assert [row[0] for row in tiebreaks.select(scaled).collect()] == [2**63 - 1, -(2**63) + ORDER_STEPS - 1]

    with pytest.raises(PySparkException, match="tiebreak 9007199254740992 is too large for a chain of joins"):
        spark.createDataFrame([(2**53,)], "tiebreak long").select(scaled).collect()


def append_random_rows(rng, write, numbers):
    """Append rows of random slices to one table of the chain; some of the slices may be committed by then."""
    table, minutes = rng.choice("abcd"), range(30 * rng.randrange(SLICES), 30 * SLICES)
    arrivals = sorted(rng.choices(minutes, k=rng.randint(1, 12)))
    rows = [
        (rng.choice("ab"), at(arrived - rng.choice([0, 0, 1, 2, 3, 40])), at(arrived, second), next(numbers))
        for second, arrived in enumerate(arrivals)
    ]
    write(table, rows, ROW)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_chain_after_random_commands_equals_run_from_scratch(chain, write, seed):
    rng, numbers = random.Random(seed), iter(range(10_000, 20_000))
    settings = {"length": 3, "on_late_arriving_rows": "reprocess", "join_type": rng.choice(["inner", "left", "full"])}
    joins = chain("_random", **settings)
    pipelines = joins.first, joins.second, joins.third
    write("d", create_rows(4000, range(0, 30 * SLICES, 3)), ROW)

    for _ in range(24):
        pipeline, last = rng.choice(pipelines), rng.randint(1, SLICES)
        match rng.randrange(4):
            case 0:
                append_random_rows(rng, write, numbers)
            case 1 if rng.random() < 0.3:
                with suppress(UserError):  # without tables
                    joins.compact(pipeline)
            case 1:
                with suppress(IncompleteInputError, SliceOrderError):  # some slices may not be committed
                    joins.run(pipeline, reprocess=True, start=at(30 * (last - 1)), end=at(30 * last))
            case _:
                with suppress(IncompleteInputError):
                    joins.run(pipeline, end=at(30 * last), slices_per_job=rng.randint(1, SLICES))
    for pipeline in pipelines:
        joins.run(pipeline, reprocess=True, outdated=True)
        plan = joins.plan(pipeline, end=at(30 * SLICES))
        assert {part.reason for part in plan.slice_ranges} <= {"new", "gap"}, "no slice is outdated"
        list(execute(joins.spark, plan, lambda *_: None))
        assert not joins.plan(pipeline, reprocess=True, outdated=True).slice_ranges

    fresh = chain("_fresh", **settings)
    for pipeline, again in zip(pipelines, (fresh.first, fresh.second, fresh.third), strict=True):
        joins.run(again, end=at(30 * SLICES))
        assert joins.read(pipeline) == joins.read(again), pipeline.name


def test_explain_rows_of_chain_follow_row_through_both_joins(chain):
    pipelines = chain()

    late, *emissions = pipelines.explain(pipelines.first, "left", v=1140)

    assert late == (
        "orders",
        [
            "happened 2024-01-01T00:30Z, arrived 2024-01-01T01:10Z: slice 2024-01-01T01:00Z",
            f"late, but processed by the join in orders: {LATE_IN_ORDERS}; {PADDED}; a partner had arrived",
            "padded in slice 2024-01-01T01:00Z, rows emitted: 1",
            "left the buffers before the end of that slice",
        ],
    )
    assert emissions == [
        (
            "shipments",
            [
                "emitted by orders: padded in slice 2024-01-01T01:00Z, at 2024-01-01T01:10Z, order 1167360",
                "its rows there: tidemark explain orders --left k=a,happened=2024-01-01T00:30Z",
                "happened 2024-01-01T00:30Z, arrived 2024-01-01T01:10Z: slice 2024-01-01T01:00Z",
                f"late, but processed by the join in shipments: {LATE_IN_SHIPMENTS}; {PADDED}; a partner had arrived",
                "padded in slice 2024-01-01T01:00Z, rows emitted: 1",
                "left the buffers before the end of that slice",
            ],
        )
    ]
    [(name, steps)] = pipelines.explain(pipelines.second, "left", left_v=1000, right_v=2000)
    place, command = steps[:2]
    assert (name, place) == (
        "shipments",
        f"emitted by orders: matched in slice 2024-01-01T00:00Z, at 2024-01-01T00:00Z, order {2000 * 1024}",
    )
    row = "k=a,happened=2024-01-01T00:00Z"
    assert command == f"its rows there: tidemark explain orders --left {row} --right {row}"


def test_run_case_file_of_chain_emits_committed_rows(spark, template, monkeypatch):
    """A test case with all rows of the lake has the output that the runs have committed, under all cuts."""
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(template))
    tables = {"orders.left": "a", "orders.right": "b", "right": "c"}
    given = {
        name: [row.asDict() for row in spark.read.format("delta").load(f"{template}/{table}").collect()]
        for name, table in tables.items()
    }
    rows = {
        name: [
            {**row, **{time: f"{row[time].astimezone(UTC):%FT%TZ}" for time in ("happened", "arrived")}} for row in rows
        ]
        for name, rows in given.items()
    }
    case = {"given": rows, "columns": {name: {"v": "int"} for name in tables}, "expect": {"orders.emissions": []}}
    (template / "tests").mkdir(exist_ok=True)
    (template / "tests" / "shipments.yaml").write_text(yaml.safe_dump({"cases": {"all": case}}))

    [run] = run_case_files(spark, [read_case_file(template / "shipments.yaml")])

    assert not [part for part in run.result.differences if part.note], "the cuts give the same rows"
    for output, folder in ((run.output, "shipments"), (run.output.upstreams["orders"], "orders")):
        committed = spark.read.format("delta").load(f"{template}/{folder}/emissions")
        expected = Counter(str(to_plain_row(row, committed.schema)) for row in committed.collect())
        plain = (str({name: row[name] for name in committed.columns}) for row in output.rows["emissions"])
        assert Counter(plain) == expected
        late = spark.read.format("delta").load(f"{template}/{folder}/late")
        assert len(output.rows["late"]) == late.count()


def test_compare_chain_finds_causes_in_both_joins(spark, chain, tmp_path):
    """The stream had a longer delay, and its table is altered: a value, a row of no input, and a row too few."""
    pipelines, slow = chain(), chain("_slow", delay="45 minutes")
    slow.run_at_once()
    ours, theirs = (
        spark.read.format("delta").load(f"{pipelines.lake}/{settings.output}/emissions").drop("_slice", "_pane")
        for settings in (pipelines.second, slow.second)
    )
    common = ours.intersectAll(theirs).where("_emission = 'matched' AND left_right_v IS NOT NULL")
    changed, copied, removed = common.orderBy("left_left_v", "left_right_v").take(3)
    added = [changed.asDict() | {"left_right_v": -1}, copied.asDict() | {"left_left_v": -1}]
    stream = theirs.exceptAll(spark.createDataFrame([changed, removed], theirs.schema))
    stream = stream.unionByName(spark.createDataFrame(added, theirs.schema))
    stream.write.format("delta").save(f"{pipelines.lake}/stream")
    request = ComparisonRequest("stream", examples=100)
    result = compare(spark, pipelines.second, str(pipelines.lake), request, slow.second)

    examples = [(cause.cause, row) for cause in result.causes for row in cause.examples]
    late = [row for cause, row in examples if cause == "late in the batch"]
    assert {row["_pipeline"] for row in late} == {"orders", "shipments"}
    for row in late:
        is_late_in_orders = {row["left_left_v"], row["left_right_v"]} & {1140, 1141, 2100, 2101}
        assert row["_pipeline"] == ("orders" if is_late_in_orders else "shipments")
        assert row["_input"] == ("left" if row["left_left_v"] in {1140, 1141} else "right")
        assert timedelta(minutes=36) <= timedelta(milliseconds=row["_lateness_ms"]) <= timedelta(minutes=38)
    others = [(cause, row["left_left_v"], row.get("_pipeline")) for cause, row in examples if row not in late]
    assert others == [
        ("changed value", changed["left_left_v"], None),
        ("changed value", changed["left_left_v"], None),
        ("missing in an input", -1, "orders"),
        ("other settings", 1140, "orders"),
        ("other settings", 1141, "orders"),
        ("unexplained", removed["left_left_v"], None),
    ]
    assert result.unexplained == 1
    assert result.differences == len(examples) - 1, "a changed row counts once"

    number, folder = next(row["_number"] for row in late if row["_pipeline"] == "orders"), tmp_path / "tests"
    arguments = (str(pipelines.lake), result, number, tmp_path / "shipments.yaml", folder / "shipments.yaml")
    assert 3 <= write_minimal_example(spark, pipelines.second, *arguments) <= 8
    [run] = run_case_files(spark, [read_case_file(tmp_path / "shipments.yaml")])
    assert run.result.status == "passed"
    assert {row.values["reason"] for row in run.case.expected["orders.late"]} == {"late_but_processed"}
    assert {row.input_name for row in run.case.given} >= {"orders.left", "right"}
    with pytest.raises(
        UserError, match="shipments reads the output of another one. Pass --output .*tests/shipments.yaml"
    ):
        check_output(pipelines.second, tmp_path / "shipments.yaml", tmp_path / "one.jsonl", 1)
