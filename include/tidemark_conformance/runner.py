"""Replay vectors as lanes of one job, and compare the output with the engine's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tidemark.config.sides import SIDES
from tidemark.errors import UserError
from tidemark.execution.replay import ReplayResult
from tidemark.planning.replay_strategy import DEFAULT_LIMITS, ReplayLimits
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark_conformance import flink, flink_triggers
from tidemark_conformance import spark as spark_vectors
from tidemark_conformance.adapter import REFUSED, VectorAdapter
from tidemark_conformance.chain import ChainAdapter, is_chain, replay_chains
from tidemark_conformance.lanes import create_lanes, create_table, replay_tables, to_arrow
from tidemark_conformance.vectors import Case, ConformanceResult, Cut, Vector, parse_cuts, read_vectors

_ADAPTERS: dict[str, type[VectorAdapter]] = {**flink.ADAPTERS, **spark_vectors.ADAPTERS}
_MAX_LANES = 400


def check_files(
    spark: SparkSession,
    files: list[Path],
    cuts: str,
    progress: Callable[[Sequence[Sequence[Case]]], Iterable[Sequence[Case]]] = iter,
) -> Iterator[ConformanceResult]:
    """Check every vector of the files under every cut, batch by batch.

    Args:
        progress: Iterates over the batches, and may report each.

    Raises:
        UserError: A file is unreadable, or a cut or a dialect is unknown.
    """
    vectors = [validate_vector(vector, path) for path in files for vector in read_vectors(path)]
    cases = [Case(vector, cut) for vector in vectors for cut in parse_cuts(cuts, vector)]
    with tuned_for_tiny_queries(spark):
        for batch in progress(list(_batch_cases(cases))):
            yield from check_cases(spark, batch)


def validate_vector(vector: Vector, path: Path) -> Vector:
    """Return a vector if it has all fields that its dialect needs.

    Raises:
        UserError: A field is missing or malformed, or the dialect is unknown.
    """
    try:
        if is_chain(vector):
            ChainAdapter(vector).validate()
            return {**vector, "name": str(vector["name"])}
        adapter = create_adapter(vector)
        if not adapter.is_refused:
            adapter.create_pipeline()
        hash(adapter.job_key)
        columns = [("key", str), ("id", str), ("ts", int), *adapter.columns]
        to_arrow([row for step in adapter.read_steps() for row in step], columns)
        Counter(adapter.format_expected(Cut("1", ())))
        return {**vector, "name": str(vector["name"])}
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
        name = str(vector.get("name"))[:80]
        raise UserError(f"{path}: vector {name!r} is malformed: {reason}. Record it again.") from None


def check_cases(
    spark: SparkSession, cases: Sequence[Case], limits: ReplayLimits = DEFAULT_LIMITS
) -> list[ConformanceResult]:
    """Replay cases side by side, and compare each with the engine's output."""
    chains = [case for case in cases if is_chain(case.vector)]
    outputs_of_chains = zip(chains, replay_chains(spark, chains, limits), strict=True)
    results = {id(case): _compare(ChainAdapter(case.vector), case, output) for case, output in outputs_of_chains}
    cases_of_joins = [case for case in cases if not is_chain(case.vector)]
    refused = [case for case in cases_of_joins if create_adapter(case.vector).is_refused]
    results |= {id(case): _compare(create_adapter(case.vector), case, Counter([REFUSED])) for case in refused}
    for batch in _batch_cases([case for case in cases_of_joins if id(case) not in results]):
        outputs: list[Counter[str]] = [Counter() for _ in batch]
        adapter = create_adapter(batch[0].vector)
        for answer in replay_cases(spark, batch, limits):
            for lane, text in adapter.format_replay(answer):
                outputs[lane][text] += 1
        for case, output in zip(batch, outputs, strict=True):
            results[id(case)] = _compare(create_adapter(case.vector), case, output)
    return [results[id(case)] for case in cases]


def replay_cases(
    spark: SparkSession, cases: Sequence[Case], limits: ReplayLimits = DEFAULT_LIMITS
) -> Iterator[ReplayResult]:
    """Replay cases that can share a job, as lanes: slice by slice, or all slices in one job."""
    adapters = [create_adapter(case.vector) for case in cases]
    pipelines = [adapter.create_pipeline() for adapter in adapters]
    tables = [create_table(spark, cases, adapters, side) for side in SIDES]
    join, lanes = adapters[0].create_join(spark, adapters), create_lanes(cases, adapters, pipelines)
    yield from replay_tables(cases, tables, pipelines[0], lanes, join, adapters[0].steps_per_bucket, limits)


def create_adapter(vector: Vector) -> VectorAdapter:
    """Return the adapter of a vector's dialect.

    Raises:
        UserError: This version does not replay the dialect.
    """
    dialect = vector.get("dialect") or vector.get("engine", "").partition("-")[0]
    if dialect not in _ADAPTERS:
        raise UserError(f"vector {vector.get('name')} has dialect {dialect}. Pass one of {', '.join(_ADAPTERS)}.")
    if dialect == "datastream_window" and flink_triggers.has_trigger_settings(vector):
        return flink_triggers.DatastreamTrigger(vector)
    return _ADAPTERS[dialect](vector)


def _batch_cases(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Group cases that can share a job."""
    groups: dict[object, list[Case]] = defaultdict(list)
    for case in cases:
        adapter = ChainAdapter(case.vector) if is_chain(case.vector) else create_adapter(case.vector)
        groups[type(adapter), adapter.job_key, case.cut.single_job].append(case)
    for group in groups.values():
        yield from (group[start : start + _MAX_LANES] for start in range(0, len(group), _MAX_LANES))


def _compare(adapter: VectorAdapter | ChainAdapter, case: Case, output: Counter[str]) -> ConformanceResult:
    expected = Counter(adapter.format_expected(case.cut))
    surplus = sorted((output - expected).items())
    return ConformanceResult(
        case.vector["name"],
        case.cut.name,
        tuple(f"{count} x {row}" for row, count in sorted((expected - output).items())),
        tuple(f"{count} x {row}" for row, count in surplus if not adapter.is_undecidable(case.cut, row)),
    )
