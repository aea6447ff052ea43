"""Chains of pipelines over Delta tables: slices, reprocessing, and what a pipeline waits for."""

import os
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from tidemark.config import load_pipeline
from tidemark.config.loader import with_overrides
from tidemark.errors import IncompleteInputError, SliceOrderError, UserError
from tidemark.execution.run import execute
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
PROMISE = "A reprocess of a pipeline reruns only the slices of the next join whose input has changed."
SCHEDULES = int(os.environ.get("TIDEMARK_CHAIN_SCHEDULES", "1"))
SLICES = 4


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
    """The pipelines `orders`, `shipments`, which reads the output of `orders`, and `deliveries`, which reads that."""

    def __init__(self, spark, lake, folder, join_type, output, **settings):
        self.spark, self.lake = spark, lake
        times = {"event_time": "happened", "arrival": "arrived", "tiebreak": "v", "watermark_delay": "1 minute"}
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

    def read(self, settings):
        """Count the emissions by slice, kind and values of both inputs."""
        rows = self.spark.read.format("delta").load(f"{self.lake}/{settings.output}/emissions")
        values = [name for name in rows.columns if name.endswith("_v")]
        return Counter(tuple(row) for row in rows.select("_slice", "_emission", *values).collect())


@pytest.fixture
def chain(spark, lake, tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path))
    return lambda output="", join_type="left", **settings: Chain(spark, lake, tmp_path, join_type, output, **settings)


@pytest.mark.promise(PROMISE)
def test_run_chain_in_slices_and_in_one_job_emits_same_rows_and_reprocess_ripples(chain, write):
    write("a", create_rows(1000, range(120), late={35, 36, 70}), ROW)
    write("b", [*create_rows(2000, range(0, 120, 2), late={50}), ("a", at(20), at(20, 30), None)], ROW)
    write("c", create_rows(3000, range(0, 120, 3), late={65, 66}), ROW)
    by_slice, at_once = chain(), chain("_at_once")

    with pytest.raises(IncompleteInputError, match="orders has no committed slice. Run tidemark run orders first."):
        by_slice.plan(by_slice.second, end=at(30))
    for end in (30, 60, 90, 120):
        by_slice.run(by_slice.first, end=at(end), slices_per_job=1)
        assert not by_slice.plan(by_slice.second, end=at(end)).notes
        by_slice.run(by_slice.second, end=at(end), slices_per_job=1)
    for settings in (at_once.first, at_once.second):
        at_once.run(settings, end=at(120), drain=False)

    rows = by_slice.read(by_slice.second)
    assert rows == at_once.read(at_once.second)
    assert {kind for _, kind, *_ in rows} == {"matched", "padded_left"}

    assert by_slice.compact(by_slice.first)["output_stream"]
    assert not by_slice.plan(by_slice.second).slice_ranges, "the same rows in other files"
    write("b", [("a", at(61), at(61, 30), 9999)], ROW)  # lands late in slice 2
    settings = with_overrides(by_slice.first, {"on_late_arriving_rows": "reprocess"})
    by_slice.run(settings, reprocess=True, start=at(60), end=at(90))
    plan = by_slice.plan(by_slice.second)

    assert [part.slices for part in plan.slice_ranges] == [range(2, 3)]
    list(execute(by_slice.spark, plan, lambda *_: None))
    gained = by_slice.read(by_slice.second) - rows
    assert {9999} == {row[3] for row in gained}, "pairs of the row that arrived late"
    assert not by_slice.plan(by_slice.second).slice_ranges
    with pytest.raises(IncompleteInputError, match="orders is committed up to 2024-01-01T02:00Z"):
        by_slice.plan(by_slice.second, end=at(150))


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
    rng, numbers = random.Random(seed), iter(range(10_000))
    settings = {"on_late_arriving_rows": "reprocess", "join_type": rng.choice(["inner", "left", "full"])}
    joins = chain(**settings)
    pipelines = joins.first, joins.second, joins.third
    for table in "abcd":
        write(table, create_rows(1000 * "abcd".index(table), range(0, 30 * SLICES, 3)), ROW)

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
        joins.run(pipeline, end=at(30 * SLICES))
        with suppress(SliceOrderError):
            joins.run(pipeline, reprocess=True)
        assert not joins.plan(pipeline).slice_ranges

    fresh = chain("_fresh", **settings)
    for pipeline, again in zip(pipelines, (fresh.first, fresh.second, fresh.third), strict=True):
        joins.run(again, end=at(30 * SLICES))
        assert joins.read(pipeline) == joins.read(again), pipeline.name
