"""Every join over Delta tables gives the same rows in the same slices, with one job per slice or one job in total."""

import json
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from pyspark.sql import functions as F

from tests.semantics.flink_datastream_trigger import compute_expected
from tests.tiers import cases
from tidemark.adoption.adopt import commit_adoption
from tidemark.adoption.plan import create_adoption_plan
from tidemark.config.local_days import get_day_start
from tidemark.errors import SliceOrderError
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.joins.output_schema import list_emission_columns
from tidemark.ledger.ledger import Ledger
from tidemark.planning.planner import create_plan
from tidemark.planning.replay_strategy import DEFAULT_LIMITS
from tidemark.planning.request import Request
from tidemark.sources.stored_input import get_schemas

ROW = "k string, happened timestamp, arrived timestamp, v int, p int"
START = datetime(2024, 10, 26, 23, tzinfo=UTC)
"""Two hours before Berlin's clocks are put back, so that windows of the second hour end only at the end of input."""
SLICES = {"slices__start": "2024-10-26T23:00:00Z"}
WINDOWS = {
    "tumbling": {"tumbling": "20 minutes", "offset": "5 minutes"},
    "sliding": {"sliding": {"size": "30 minutes", "slide": "10 minutes"}},
    "session": {"session": {"gap": "6 minutes"}},
    "cumulate": {"cumulate": {"size": "1 hour", "step": "20 minutes"}},
}


def windowed(shape, **more):
    return {"keys": ["k"], "window": WINDOWS[shape], **more}


def ranged(**more):
    return {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "10 minutes"}, **more}


SOURCES = {"left__partition": "p", "left__idle_timeout": "10 minutes", "right__idle_timeout": "90 seconds"}
RECORDED = {"left__recorded_watermark": "happened", "left__watermark_delay": None}
"""A plausible recorded watermark: the event time of the row, which is seldom above those of earlier rows."""
RESTARTED = {"restarts": ["2024-10-27T00:00:00Z", "2024-10-27T00:25:00Z"]}
"""Restarts at the start of the second slice, and within it."""
ARRIVAL_AS_EVENT_TIME = {f"{side}__event_time": "arrived" for side in ("left", "right")}
ARRIVAL_AS_EVENT_TIME |= {f"{side}__watermark_delay": None for side in ("left", "right")}


@dataclass(frozen=True)
class JoinCase:
    """A kind of join, and what its test needs to know of it."""

    dialect: str
    join: dict
    """The setting `join`."""
    settings: dict = field(default_factory=dict)
    """Other settings that this kind consists of."""
    has_more_panes: bool = False
    """True if a window fires more than once in these inputs."""
    unbounded_note: str | None = None
    """Note in the plan if rows of an input are never evicted."""

    @property
    def changes(self):
        """Settings that differ from those of the fixture `pipeline`."""
        return {
            "dialect": self.dialect,
            "join": self.join,
            "left__watermark_delay": "2 minutes",
            **SLICES,
            **self.settings,
        }


JOINS = {
    "datastream interval, sources": JoinCase("flink-datastream", ranged(), SOURCES),
    "datastream interval, recorded": JoinCase("flink-datastream", ranged(), RECORDED),
    "datastream tumbling": JoinCase("flink-datastream", windowed("tumbling")),
    "datastream tumbling, restarted": JoinCase("flink-datastream", windowed("tumbling"), RESTARTED),
    "datastream sliding, lateness": JoinCase(
        "flink-datastream", windowed("sliding", allowed_lateness="20 minutes"), has_more_panes=True
    ),
    "datastream session, lateness": JoinCase(
        "flink-datastream", windowed("session", allowed_lateness="20 minutes"), has_more_panes=True
    ),
    "datastream coGroup": JoinCase(
        "flink-datastream", windowed("tumbling", api="cogroup", allowed_lateness="10 minutes"), has_more_panes=True
    ),
    "datastream latest": JoinCase(
        "flink-datastream", windowed("tumbling", emit="latest", allowed_lateness="20 minutes")
    ),
    "datastream sliding, count trigger": JoinCase(
        "flink-datastream",
        windowed("sliding", trigger={"count": 2, "purging": True}, evictor={"count": 3}),
        has_more_panes=True,
    ),
    "datastream session, continuous trigger": JoinCase(
        "flink-datastream",
        windowed(
            "session",
            api="cogroup",
            allowed_lateness="20 minutes",
            trigger={"continuous_event_time": "2 minutes"},
            evictor={"time": "4 minutes", "evict_after": True},
        ),
        has_more_panes=True,
    ),
    "datastream sliding, continuous trigger": JoinCase(
        "flink-datastream",
        windowed(
            "sliding",
            api="cogroup",
            allowed_lateness="20 minutes",
            trigger={"continuous_event_time": "4 minutes"},
            evictor={"time": "0 seconds"},
        ),
        has_more_panes=True,
    ),
    "datastream tumbling, trigger by the clock": JoinCase(
        "flink-datastream",
        windowed("tumbling", trigger={"continuous_processing_time": "3 minutes"}, allowed_lateness="10 minutes"),
        has_more_panes=True,
    ),
    "datastream processing time": JoinCase("flink-datastream", windowed("tumbling", time="processing")),
    "datastream processing time, session": JoinCase(
        "flink-datastream",
        windowed("session", time="processing", trigger={"continuous_processing_time": "1 minute"}),
        has_more_panes=True,
    ),
    "sql interval inner": JoinCase("flink-sql", ranged(type="inner")),
    "sql interval full": JoinCase("flink-sql", ranged(type="full", condition="left_v % 3 <> right_v % 3")),
    "sql interval left, processing time": JoinCase(
        "flink-sql",
        ranged(type="left", time="processing", min_cleanup_interval="half", condition="left_v % 3 <> right_v % 3"),
        ARRIVAL_AS_EVENT_TIME,
    ),
    "sql tumbling full": JoinCase(
        "flink-sql", windowed("tumbling", type="full", condition="left_v % 3 <> right_v % 3")
    ),
    "sql cumulate semi, local time": JoinCase(
        "flink-sql", windowed("cumulate", type="semi"), {"time_zone": "Europe/Berlin"}
    ),
    "sql session full, partitions": JoinCase("flink-sql", windowed("session", type="full"), {"left__partition": "p"}),
    "sql session left": JoinCase("flink-sql", windowed("session", type="left")),
    "spark full, range": JoinCase("spark", ranged(type="full", condition="left_v % 3 <> right_v % 3 AND left_v <> 40")),
    "spark left, sliding": JoinCase("spark", windowed("sliding", type="left")),
    "spark semi, sliding": JoinCase("spark", windowed("sliding", type="semi")),
    "spark left, windows compared": JoinCase(
        "spark",
        {
            "keys": ["k"],
            "type": "left",
            "window_inequality": {
                "left": WINDOWS["sliding"],
                "right": WINDOWS["tumbling"],
                "comparison": "left > right",
            },
        },
        unbounded_note="no row of right is ever evicted, because left > right holds for any later window of left: "
        "0 are carried, and each slice adds about 50",
    ),
    "spark right, equal times": JoinCase("spark", {"keys": ["k"], "event_time_equality": True, "type": "right"}),
}
VARIANTS = {
    "datastream tumbling",
    "datastream sliding, lateness",
    "datastream latest",
    "datastream session, continuous trigger",
    "datastream sliding, continuous trigger",
    "datastream processing time, session",
    "sql interval inner",
    "sql session left",
    "spark left, sliding",
    "spark semi, sliding",
}
"""Kinds of `JOINS` that resemble another kind: the same operator with another trigger, shape or type. Only `make
test-slow` runs them."""
WITNESSES = {
    "datastream interval, sources",
    "datastream sliding, count trigger",
    "datastream session, lateness",
    "datastream coGroup",
    "sql interval full",
    "sql tumbling full",
    "sql cumulate semi, local time",
    "sql session full, partitions",
    "spark full, range",
}
"""Kinds that witness `PROMISE` in `make test`: at least one for each operator with state of its own."""
PROMISE = "A join has the same rows in one job and in a job per slice."


FILTERS = {"left": "v % 4 <> 1", "right": "v % 5 <> 2"}
IS_FILTERED = {"left": lambda v: v % 4 == 1, "right": lambda v: v % 5 == 2}
JOINS_WITH_FILTER = ("datastream interval, sources", "datastream tumbling, trigger by the clock", "sql interval full")
"""Joins that differ in the effect of a watermark's increments."""


EVEN = "filter(array({}), v -> v % 2 = 0)"
EXPLODE = {
    "datastream interval, sources": EVEN.format("left_v, right_v"),
    "datastream coGroup": "transform(filter(right, r -> exists(left, l -> l.v % 3 = r.v % 3)), r -> r.v + size(left))",
    "sql interval full": EVEN.format("left_v, right_v"),
    "sql cumulate semi, local time": EVEN.format("left_v, left_p"),
    "sql session left": EVEN.format("left_v, right_v, left_p"),
    "spark full, range": EVEN.format("left_v, right_v"),
}
"""For each kind of emission an array with none, one or many numbers of a pair, a group, or a left row."""


CLOCK_SKEW = timedelta(seconds=90)
"""Allowed clock skew in the test of all joins."""


def create_two_hours():
    """Yield the rows of each input: a tenth up to an hour late, a few as far ahead as `CLOCK_SKEW` or farther."""
    rng = random.Random(7)
    for side in ("left", "right"):
        rows = []
        for number in range(100):
            arrived = START + timedelta(seconds=72 * number + rng.randrange(60))
            late = timedelta(minutes=rng.randrange(60) if rng.random() < 0.1 else rng.randrange(8))
            happened = max(START, arrived - late)
            key = rng.choice(["a", "b", None])
            if number % 20 in {3, 4}:  # at the bound, which counts as on time, and a millisecond beyond it
                key, happened = key or "a", arrived + CLOCK_SKEW + timedelta(milliseconds=number % 20 - 3)
            rows.append((key, happened, arrived, number, number % 3))
        yield side, rows


@pytest.fixture(scope="module")
def inputs_lake(spark, tmp_path_factory):
    """Create a lake with two hours of both inputs."""
    lake = tmp_path_factory.mktemp("inputs")
    for side, rows in create_two_hours():
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").save(str(lake / side))
    return lake


def count_rows_ahead(settings):
    """Count by slice how many left and right rows are ahead of their arrival; None on processing time."""
    if settings.join.time == "processing":
        return [(None, None)] * 2
    counts = Counter(
        (side, (arrived - START) // timedelta(hours=1))
        for side, rows in create_two_hours()
        for _, happened, arrived, *_ in rows
        if happened - arrived > CLOCK_SKEW
    )
    return [(counts["left", number], counts["right", number]) for number in range(2)]


def count_output(spark, output):
    """Count emissions and late rows, as JSON."""
    emitted = spark.read.format("delta").load(f"{output}/emissions")
    late = spark.read.format("delta").load(f"{output}/late")
    names = [name for name in emitted.columns if name not in {"left", "right"}]
    lists = [f"sort_array({name}) AS {name}" for name in ("left", "right") if name in emitted.columns]
    return Counter(emitted.selectExpr(*names, *lists).toJSON().collect()), Counter(late.toJSON().collect())


@pytest.mark.filterwarnings("error:createDataFrame attempted Arrow")
@pytest.mark.parametrize("name", cases(JOINS, fast=JOINS.keys() - VARIANTS, witnesses=WITNESSES, promise=PROMISE))
def test_join_rows_are_independent_of_slices_per_job(spark, lake, pipeline, inputs_lake, name):
    shutil.copytree(inputs_lake, lake)
    case, outputs = JOINS[name], []
    # The single job uses the strategy for millions of rows.
    limits = replace(DEFAULT_LIMITS, max_carried_share=1.0)
    for output, slices, cached_rows in (("whole", "auto", 0), ("sliced", 1, limits.max_cached_rows)):
        changes = {**case.changes, "output": output}
        if case.join.get("time") != "processing":
            changes |= {f"{side}__allowed_clock_skew": "90 seconds" for side in ("left", "right")}
        settings = pipeline(**changes)
        rows_ahead = count_rows_ahead(settings)
        plan = create_plan(spark, settings, str(lake), Request(slices_per_job=slices, drain=True))
        plan = replace(plan, replay_limits=replace(limits, max_cached_rows=cached_rows))
        assert [note for note in plan.notes if "evicted" in note] == [*filter(None, [case.unbounded_note])]
        results = list(execute(spark, plan, lambda *_: None))
        assert len(results) == (1 if slices == "auto" else plan.slice_count) > 0
        ledger_rows = [row for result in results for row in result.rows]
        stored = [(row["left_rows_ahead"], row["right_rows_ahead"]) for row in ledger_rows]
        assert stored[:2] == rows_ahead
        assert {count for counts in stored[2:] for count in counts} <= {0, None}
        assert [row["quality"] for row in ledger_rows] == ["warned" if any(counts) else "passed" for counts in stored]
        outputs.append(count_output(spark, lake / output))
        columns = spark.read.format("delta").load(f"{lake / output}/emissions").columns
        assert columns == list_emission_columns(settings, **get_schemas(plan.inputs))
    assert outputs[0] == outputs[1]

    emitted, late = outputs[0]
    assert emitted
    assert any(
        f'"reason":"{reason}"' in row
        for row in late
        for reason in ("late", "late_but_processed", "lost_at_end_of_input")
    )

    panes = {json.loads(row)["_pane"] for row in emitted}
    assert (len(panes) > 1) == case.has_more_panes


ADOPTING = {"sql interval full", "datastream session, lateness", "spark full, range"}
"""Joins with state of different kinds: cleanup timers and unmatched rows, open windows, and micro-batches."""


@pytest.mark.parametrize("name", cases(JOINS, fast=ADOPTING))
def test_join_continues_adopted_state_as_in_run_from_start(spark, lake, pipeline, inputs_lake, name):
    shutil.copytree(inputs_lake, lake)
    changes = {**JOINS[name].changes, "slices__every": "30 minutes"}
    whole, adopting = (pipeline(**changes, output=output) for output in ("whole", "adopting"))
    list(execute(spark, create_plan(spark, whole, str(lake), Request(drain=True)), lambda *_: None))

    plan = create_adoption_plan(spark, adopting, str(lake), "whole/emissions", START + timedelta(hours=1))
    list(execute(spark, plan.warm_up, lambda *_: None))
    commit_adoption(spark, plan)
    plan.drop_warm_up()
    assert count_output(spark, lake / "adopting") == (Counter(), Counter())
    ledgers = [Ledger.from_pipeline(settings, str(lake)) for settings in (whole, adopting)]
    assert len({ledger.entries[1].fingerprint for ledger in ledgers}) == 1

    list(execute(spark, create_plan(spark, adopting, str(lake), Request(drain=True)), lambda *_: None))
    expected = [
        Counter({row: count for row, count in rows.items() if json.loads(row)["_slice"] >= "2024-10-27T00:00"})
        for rows in count_output(spark, lake / "whole")
    ]
    assert all(expected)
    assert list(count_output(spark, lake / "adopting")) == expected
    assert not check_integrity(adopting, str(lake)).issues


DAYS = datetime(2026, 10, 23, 22, tzinfo=UTC)
"""A midnight in Berlin, two days before its clocks are put back."""
LOCAL_DAYS = {"slices__every": "1 day", "slices__start": DAYS, "slices__time_zone": "Europe/Berlin"}


def create_three_days():
    """Yield the rows of `create_two_hours` with all time distances multiplied by 36."""
    for side, rows in create_two_hours():
        yield side, [(k, *(DAYS + 36 * (time - START) for time in times), v, p) for k, *times, v, p in rows]


def count_without_slice(rows):
    """Count rows regardless of their slices."""
    counts = Counter()
    for row, count in rows.items():
        counts[json.dumps({name: value for name, value in json.loads(row).items() if name != "_slice"})] += count
    return counts


def test_last_cleanup_before_a_job_is_known_with_idle_input(spark, lake, pipeline, write):
    """The last row is so late that it skips its lookup, and misses a partner that is still cached."""
    arrivals = {"left": [(1, "a", 100), (2, "a", 80)], "right": [(3, "b", 100), (4, "b", 100), (65, "a", 75)]}
    for side, rows in arrivals.items():
        times = [
            (key, START + timedelta(minutes=time), START + timedelta(days=1, minutes=clock))
            for clock, key, time in rows
        ]
        write(side, times, "k string, happened timestamp, arrived timestamp")
    for output, per_job in (("whole", "auto"), ("sliced", 1)):
        join = {"keys": ["k"], "interval": {"lower": "-10 minutes", "upper": "10 minutes"}}
        changes = {"dialect": "flink-sql", "join": join, "output": output, "left__watermark_delay": "0 s"}
        settings = pipeline(**changes, slices__start="2024-10-27T23:00:00Z", right__idle_timeout="5 hours")
        list(execute(spark, create_plan(spark, settings, str(lake), Request(slices_per_job=per_job)), lambda *_: None))
    whole, sliced = (count_output(spark, lake / output)[0] for output in ("whole", "sliced"))
    assert not whole
    assert not sliced


def test_local_day_slices_give_same_rows_as_hourly_slices(spark, lake, pipeline, write, monkeypatch):
    for side, rows in create_three_days():
        write(side, rows, ROW)
    join = {"keys": ["k"], "interval": {"lower": "-3 hours", "upper": "6 hours"}}
    idle = {"left__partition": "p", "left__idle_timeout": "6 hours", "right__idle_timeout": "54 minutes"}
    outputs, ledgers = {}, {}
    for output, per_job, slice_changes in (
        ("hours", "auto", {"slices__start": DAYS}),
        ("whole", "auto", LOCAL_DAYS),
        ("sliced", 1, LOCAL_DAYS),
    ):
        changes = {"join": join, "output": output, "left__watermark_delay": "72 minutes", **idle, **slice_changes}
        plan = create_plan(spark, pipeline(**changes), str(lake), Request(slices_per_job=per_job, drain=True))
        results = list(execute(spark, plan, lambda *_: None))
        assert all(result.validation_result.outcome == "passed" for result in results)
        outputs[output] = count_output(spark, lake / output)
        ledgers[output] = [
            (len(result.slices), row["slice"], row["slice_end"]) for result in results for row in result.rows
        ]
    assert outputs["whole"] == outputs["sliced"]
    assert all(map(len, outputs["whole"]))

    days = [timedelta(hours=hours) for hours in (0, 24, 49, 73)]
    assert [row[1:] for row in ledgers["sliced"]] == [(DAYS + start, DAYS + end) for start, end in pairwise(days)]
    assert [row[0] for rows in (ledgers["whole"], ledgers["sliced"]) for row in rows] == [3, 3, 3, 1, 1, 1]
    assert list(map(count_without_slice, outputs["whole"])) == list(map(count_without_slice, outputs["hours"]))
    with pytest.raises(SliceOrderError, match=r"has other slices than the pipeline file: every 1 day in Europe/Berlin"):
        create_plan(spark, pipeline(**changes | {"slices__time_zone": "UTC"}), str(lake), Request())

    monkeypatch.setattr("tidemark.timegrid.slices.get_day_start", lambda day, zone: get_day_start(day, zone) + day % 2)
    message = (
        "a slice was committed as the day 2026-10-23T22:00Z to 2026-10-24T22:00Z of Europe/Berlin, which is 2026-10-2"
    )
    with pytest.raises(SliceOrderError, match=message):
        create_plan(spark, pipeline(**changes), str(lake), Request())


@pytest.mark.parametrize("name", cases(EXPLODE, fast=["sql interval full"]))
def test_explode_gives_same_rows_as_inline_after_join(spark, lake, pipeline, inputs_lake, name):
    shutil.copytree(inputs_lake, lake)
    expression = f"transform({EXPLODE[name]}, (v, at) -> named_struct('v', v, 'at', at))"
    read, ledgers = spark.read.format("delta").load, {}
    changes = JOINS[name].changes
    for output, slices, explode_changes in (("pairs", "auto", {}), ("whole", "auto", {"explode": expression}),
                                 ("sliced", 1, {"explode": expression})):  # fmt: skip
        settings = pipeline(**changes, **explode_changes, output=output)
        plan = create_plan(spark, settings, str(lake), Request(slices_per_job=slices, drain=True))
        results = list(execute(spark, plan, lambda *_: None))
        assert all(result.validation_result.outcome == "passed" for result in results)
        ledgers[output] = {row["slice"]: (row["emissions"], row["pairs"]) for result in results for row in result.rows}
    pairs = read(str(lake / "pairs/emissions"))
    metadata_columns = [column for column in pairs.columns if column.startswith("_")]
    lists = {side: F.sort_array(side) for side in ("left", "right") if side in pairs.columns}
    unnested = pairs.withColumns(lists).selectExpr(f"inline({expression})", *metadata_columns)

    assert 0 < unnested.count() != pairs.count()

    for output in ("whole", "sliced"):
        emissions = read(str(lake / output / "emissions"))
        assert emissions.columns == ["v", "at", *metadata_columns]
        assert emissions.exceptAll(unnested).isEmpty()
        assert unnested.exceptAll(emissions).isEmpty()
        rows = {row["_slice"].astimezone(UTC): row["count"] for row in emissions.groupBy("_slice").count().collect()}
        expected_counts = {start: (rows.get(start, 0), count) for start, (count, _) in ledgers["pairs"].items()}
        assert ledgers[output] == expected_counts


@pytest.mark.parametrize("name", cases(JOINS_WITH_FILTER, fast=JOINS_WITH_FILTER[:1]))
def test_filtered_rows_equal_rows_without_match(spark, lake, pipeline, inputs_lake, write, name):
    """Compare a filter with a table in which the filtered rows have unique keys; both move the watermark.

    Unmatched rows themselves are excluded from the comparison.
    """
    shutil.copytree(inputs_lake, lake)
    for side, rows in create_two_hours():
        unmatched = [(f"alone {side} {row[3]}", *row[1:]) if IS_FILTERED[side](row[3]) else row for row in rows]
        write(f"{side}_alone", unmatched, ROW)
    common = JOINS[name].changes
    variants = {
        "alone": ("auto", {f"{side}__table": f"{side}_alone" for side in FILTERS}),
        "where": (1, {f"{side}__where": predicate for side, predicate in FILTERS.items()}),
    }
    outputs, ledger = {}, []
    for output, (slices, changes) in variants.items():
        settings = pipeline(**common, **changes, output=output)
        plan = create_plan(spark, settings, str(lake), Request(slices_per_job=slices, drain=True))
        results = list(execute(spark, plan, lambda *_: None))
        assert all(result.validation_result.outcome == "passed" for result in results)
        ledger = [row for result in results for row in result.rows]
        counters = count_output(spark, lake / output)
        outputs[output] = [{row: n for row, n in rows.items() if '"alone ' not in row} for rows in counters]

    assert outputs["where"] == outputs["alone"]
    assert all(outputs["where"])
    assert [sum(row[f"{side}_filtered"] for row in ledger) for side in FILTERS] == [25, 20]


PROCESSING_TIME_WINDOWS = {
    "session": {"window": "session", "gap": 360_000, "allowed_lateness": 0},
    "sliding": {"window": "sliding", "size": 1_800_000, "slide": 600_000, "allowed_lateness": 0},
}
"""The windows of `WINDOWS`, as in vectors."""


def test_end_of_slice_runs_timers_of_clock_without_later_row(spark, lake, pipeline, write):
    """The end of a slice moves the clock to its last millisecond, as `end_pt` of a vector does without a drain."""
    rows = [("left", "a", 51), ("left", "b", 53), ("right", "a", 53), ("right", "b", 54)]
    rows = [(side, key, START + timedelta(minutes=minutes), v) for v, (side, key, minutes) in enumerate(rows)]
    for side in ("left", "right"):
        write(side, [(key, at, at, v, 0) for row_side, key, at, v in rows if row_side == side], ROW)
    start = int(START.timestamp() * 1000)
    events = [
        {"side": side[0].upper(), "key": key, "ts": None, "pt": int(at.timestamp() * 1000), "id": v}
        for side, key, at, v in sorted(rows, key=lambda row: row[2])
    ]
    for (shape, params), slices_per_job in zip(PROCESSING_TIME_WINDOWS.items(), (1, "auto"), strict=True):
        join = windowed(shape, time="processing", trigger={"continuous_processing_time": "4 minutes"})
        plan = create_plan(
            spark,
            pipeline(join=join, output=shape, **SLICES),
            str(lake),
            Request(end=START + timedelta(hours=2), slices_per_job=slices_per_job),
        )
        list(execute(spark, plan, lambda *_: None))

        trigger = {"type": "continuous_processing_time", "interval": 240_000, "purge": False}
        vector = {
            "params": {**params, "mode": "join", "time": "processing", "trigger": trigger, "evictor": None},
            "watermark": {"kind": "sql", "delay_ms_left": 0, "delay_ms_right": 0},
            "events": events,
            "drain": False,
        }
        after_first, after_second = (
            Counter(
                (row["left_id"], row["right_id"], row["window_start"], row["window_end"])
                for row in compute_expected({**vector, "end_pt": start + hours * 3_600_000 - 1})["rows"]
            )
            for hours in (1, 2)
        )
        emitted = spark.read.format("delta").load(plan.tables.emissions)
        ms = [F.unix_millis(f"_window_{bound}") for bound in ("start", "end")]
        by_slice = {n: Counter() for n in (0, 1)}
        for row in emitted.select(F.hour("_slice"), "left_v", "right_v", *ms).collect():
            by_slice[(row[0] + 1) % 24][tuple(row[1:])] += 1
        assert by_slice == {0: after_first, 1: after_second - after_first}
        assert all(by_slice.values())


@pytest.mark.parametrize(("dialect", "bound"), [("flink-datastream", "20 days"), ("spark", "30 minutes")])
def test_bounds_beyond_32_bit_integers_join_rows(spark, lake, pipeline, write, dialect, bound):
    """Use bounds whose sum exceeds a 32-bit integer: 24 days in milliseconds, or 35 minutes in microseconds."""
    write("left", [("a", START, START, 1, 0)], ROW)
    write("right", [("a", START, START, 2, 0), ("b", START, START, 3, 0)], ROW)
    join = {"keys": ["k"], "interval": {"lower": f"-{bound}", "upper": bound}}
    plan = create_plan(spark, pipeline(dialect=dialect, join=join, **SLICES), str(lake), Request(drain=True))
    (result,) = execute(spark, plan, lambda *_: None)
    assert result.rows[0]["emissions"] == 1
