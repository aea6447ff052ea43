"""The quality gate: Great Expectations on what a job has written, before the ledger row makes it count.

Two suites. `derived` follows from the join itself and is judged on one aggregate row per slice; `pipeline` holds the
expectations of the pipeline file and is judged on the output rows. docs/decisions/0016-groups-of-slices.md says what
becomes of a job that fails.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.clock.times import floor_div
from tidemark.delta.lake import PipelineTables
from tidemark.errors import PipelineFileError
from tidemark.settings import Expectation, Pipeline
from tidemark.settings.sides import SIDES
from tidemark.spark.faults import without_values
from tidemark.wording import quoted

if TYPE_CHECKING:
    from great_expectations.datasource.fluent.interfaces import DataAsset
    from great_expectations.expectations.expectation import Expectation as GxExpectation

DERIVED = {
    "pairs_out_of_bounds": "both event times of a pair are within the join's bounds",
    "null_keys": "no pair has a null join key, unless it is a full join of dialect spark",
    "results_before_watermark": "no result is older than the watermark at the slice's start",
    "results_after_newest_row": "no result is newer than the newest row that had arrived",
    "rows_unaccounted": "every row read or carried in is late, rejected, evicted or carried out",
    "rows_not_written": "as many pairs are written as were joined",
}
"""What must be 0 in every slice, and the sentence that Data Docs shows for it. The last two are known of a job as a
whole, and stand in each of its slices: none of them can be published."""


KEPT_RESULTS = 50
"""How many results Data Docs keep, the newest: their first page reads all of them, in every job."""

SHOWN = 20
"""How many of the values that fail an expectation are kept with its result, if any."""

_one_project = Lock()


@dataclass(frozen=True)
class Finding:
    """An expectation that did not hold."""

    expectation: str
    severity: str
    detail: str


@dataclass(frozen=True)
class Verdict:
    """What the gate found; only a critical finding keeps slices from being published."""

    findings: tuple[Finding, ...]
    seconds: float
    docs: str
    """Data Docs' first page."""
    results: tuple[Any, ...] = ()
    """What Great Expectations calls its results, for `write_docs`."""

    @property
    def critical(self) -> tuple[Finding, ...]:
        """Findings that refuse the output."""
        return tuple(f for f in self.findings if f.severity == "critical")

    @property
    def outcome(self) -> str:
        """`passed`, `warned` or `failed`."""
        if self.critical:
            return "failed"
        return "warned" if self.findings else "passed"


def import_early() -> None:
    """Import Great Expectations in the background: it takes seconds, and Spark is busy meanwhile."""
    Thread(target=_gx, daemon=True).start()


def check_arguments(pipeline: Pipeline) -> None:
    """See that every expectation of a pipeline file takes its arguments.

    Raises:
        PipelineFileError: names the expectation and the argument.
    """
    for expectation in pipeline.quality:
        _built(expectation)


def slice_facts(output: DataFrame, pipeline: Pipeline) -> pd.DataFrame:
    """One row per slice of a job's written output: counts and the extent of its results, in one aggregation.

    What the output's `select` leaves out, or makes of something else, cannot be checked and counts as 0.
    """
    kinds = _as_joined(output, pipeline)
    keys = [f"{s}_{getattr(pair, s)}" for pair in pipeline.join.keys for s in SIDES]
    matched = F.col("_emission") == "matched"
    nulls = [F.count_if(matched & F.col(quoted(key)).isNull()) for key in keys if key in kinds]
    if pipeline.dialect == "spark" and pipeline.join.type == "full":  # there null equals null
        nulls = []
    result = F.unix_millis("_result_time")
    return (
        output.groupBy(F.unix_micros("_slice").alias("slice_start"))
        .agg(
            F.count("*").alias("emissions"),
            F.min(result).alias("oldest_result"),
            F.max(result).alias("newest_result"),
            F.count_if(matched & _outside(kinds, pipeline)).alias("pairs_out_of_bounds"),
            sum(nulls, start=F.lit(0)).alias("null_keys"),
        )
        .toPandas()
    )


def _as_joined(output: DataFrame, pipeline: Pipeline) -> dict[str, str]:
    """The columns of an output, with their types, that are what the join gave under their names."""
    expressions = pipeline.select if isinstance(pipeline.select, dict) else {}
    return {name: kind for name, kind in output.dtypes if expressions.get(name, name) in {name, quoted(name)}}


def _outside(kinds: Mapping[str, str], pipeline: Pipeline) -> Column:
    """Whether a pair's event times, among columns of these types, are not where the join says."""
    times = [f"left_{pipeline.left.event_time.column}", f"right_{pipeline.right.event_time.column}"]
    if any(kinds.get(name) != "timestamp" for name in times) or pipeline.join.time == "processing":
        return F.lit(False)
    # In whole ticks: Flink reckons in milliseconds.
    tick = pipeline.tick
    left, right = (floor_div(F.unix_micros(quoted(name)), tick) for name in times)
    outside = F.lit(False)
    if interval := pipeline.join.interval:
        lower, upper = interval.closed(tick)
        if lower is not None:
            outside = outside | (right - left < lower)
        if upper is not None:
            outside = outside | (right - left > upper)
    if pipeline.join.window and {"_window_start", "_window_end"} <= kinds.keys():
        start, end = (floor_div(F.unix_micros(name), tick) for name in ("_window_start", "_window_end"))
        right_start = start
        if "_right_window_start" in kinds:
            right_start = floor_div(F.unix_micros("_right_window_start"), tick)
        outside = outside | (left < start) | (left >= end) | (right < right_start) | (right >= end)
    return outside


def judge(facts: pd.DataFrame, output: DataFrame, pipeline: Pipeline, tables: PipelineTables, run: str) -> Verdict:
    """Judge a job by its facts (one row per slice, with the columns of `DERIVED`) and its output rows.

    Rows are only read where the pipeline file has expectations. Results are stored; `write_docs` shows them.
    """
    began = time.monotonic()
    derived = [
        _gx().expectations.ExpectColumnValuesToBeInSet(column=name, value_set=[0], severity="critical", notes=says)
        for name, says in DERIVED.items()
    ]
    own = [_built(expectation) for expectation in pipeline.quality]
    with _context(tables) as context:
        _forget_old_results(context)
        slices = context.data_sources.add_pandas("slices").add_dataframe_asset("facts")
        found = _run(context, "derived", slices, facts, derived, run)
        if own:
            found |= _run(context, "pipeline", _rows(context), output, own, run, _told(pipeline))
    findings = tuple(finding for result in found.values() for finding in _findings(result.results))
    return Verdict(findings, time.monotonic() - began, docs_page(tables), tuple(found))


def write_docs(tables: PipelineTables, results: Iterable[Any]) -> None:
    """Bring Data Docs up to some results (`Verdict.results`): half a second, mostly that of the index."""
    if wanted := set(results):
        with _context(tables) as context:
            # Another process may have removed old ones.
            kept = wanted.intersection(context.validation_results_store.list_keys())
            context.build_data_docs(resource_identifiers=sorted(kept, key=str))


def first_refused(
    whole: Verdict,
    facts: pd.DataFrame,
    first_slices: Callable[[int], DataFrame],
    pipeline: Pipeline,
    tables: PipelineTables,
) -> tuple[int, Verdict, Verdict]:
    """How many slices come before the first one that a refused job fails by, and the verdicts on these and on one more.

    Facts (see `judge`) are of one slice each. The pipeline's expectations are judged on the output of the first so many
    slices together, by bisection: what passes has passed as one output.
    """
    broken = facts[list(DERIVED)].any(axis=1).to_numpy()
    sound = int(broken.argmax()) if broken.any() else len(facts)

    @cache
    def on(count: int) -> Verdict:
        return replace(whole, findings=_tried(first_slices(count), pipeline, tables))

    count = bisect_left(range(1, sound + 1), True, key=lambda count: bool(on(count).critical))
    return count, on(count) if count else whole, on(count + 1) if count < sound else whole


def docs_page(tables: PipelineTables) -> str:
    """Data Docs' first page."""
    return f"{tables.quality}/gx/uncommitted/data_docs/local_site/index.html"


@cache
def _gx() -> Any:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx  # noqa: PLC0415 - seconds long, see import_early
    import great_expectations.expectations as _  # noqa: F401, PLC0415

    # It warns of results that another process has removed since they were listed.
    logging.getLogger("great_expectations.render.renderer.site_builder").setLevel(logging.ERROR)
    return gx


@contextmanager
def _context(tables: PipelineTables) -> Iterator[Any]:
    """A project of Great Expectations of which only results and Data Docs are files: processes may share these.

    It is for one thread at a time: a process has one project, and one parser.
    """
    root = Path(tables.quality) / "gx/uncommitted"

    def files(folder: str) -> dict[str, str]:
        return {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(root / folder)}

    kinds = _gx().data_context.types.base
    config = kinds.DataContextConfig(
        store_backend_defaults=kinds.InMemoryStoreBackendDefaults(), progress_bars={"globally": False}
    )
    config.stores[config.validation_results_store_name]["store_backend"] = files("validations")
    config.data_docs_sites = {
        "local_site": {
            "class_name": "SiteBuilder",
            "store_backend": files("data_docs/local_site"),
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        }
    }
    with _one_project:
        yield _gx().get_context(mode="ephemeral", project_config=config)


def _forget_old_results(context: Any) -> None:
    store = context.validation_results_store
    for key in sorted(store.list_keys(), key=lambda key: key.run_id.run_time)[:-KEPT_RESULTS]:
        store.remove_key(key)


def _rows(context: Any) -> Any:
    return context.data_sources.add_spark("output").add_dataframe_asset("emissions")


def _built(expectation: Expectation) -> GxExpectation:
    gx = _gx()
    implementation = gx.expectations.registry.get_expectation_impl(expectation.type)
    try:
        built: GxExpectation = implementation(**expectation.kwargs, severity=expectation.severity)
    except (ValueError, TypeError) as error:
        raise PipelineFileError(f"quality: {expectation.type}: {' '.join(str(error).split())}") from None
    return built


def _run(
    context: Any,
    name: str,
    asset: DataAsset[Any, Any],
    data: pd.DataFrame | DataFrame,
    expectations: Iterable[GxExpectation],
    run: str,
    told: dict[str, Any] | None = None,
) -> dict[Any, Any]:
    """The results by their identifiers."""
    gx = _gx()
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=list(expectations)))
    batch = asset.add_batch_definition_whole_dataframe("job")  # type: ignore[attr-defined]
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name=name,
            validation_definitions=[definition],
            result_format=told or "SUMMARY",
        )
    )
    outcome = checkpoint.run(batch_parameters={"dataframe": data}, run_id=gx.RunIdentifier(run_name=run))
    for key, result in outcome.run_results.items():
        if told and _withhold_values(result.results, told):
            context.validation_results_store.set(key, result)
    return dict(outcome.run_results)


def _withhold_values(results: Iterable[Any], told: Mapping[str, Any]) -> bool:
    """Cut what exceptions quote of rows, unless results may show some; whether there was any."""
    raised = [one for result in results for one in _raised(result.exception_info)]
    if told["partial_unexpected_count"]:
        return False
    for one in raised:
        one["exception_message"], one["exception_traceback"] = without_values(str(one["exception_message"])), ""
    return bool(raised)


def _tried(output: DataFrame, pipeline: Pipeline, tables: PipelineTables) -> tuple[Finding, ...]:
    """What the pipeline's expectations find in output rows, without Data Docs."""
    if not pipeline.quality:
        return ()
    with _context(tables) as context:
        suite = _gx().ExpectationSuite(name="pipeline", expectations=[_built(one) for one in pipeline.quality])
        batch = _rows(context).add_batch_definition_whole_dataframe("slices").get_batch({"dataframe": output})
        results = batch.validate(suite, result_format=_told(pipeline)).results
        _withhold_values(results, _told(pipeline))
        return tuple(_findings(results))


def _told(pipeline: Pipeline) -> dict[str, Any]:
    """What results say: counts, and some of the values that failed where the pipeline file lets them be shown."""
    return {"result_format": "SUMMARY", "partial_unexpected_count": SHOWN if pipeline.show_rows else 0}


def _findings(results: Iterable[Any]) -> list[Finding]:
    return [_finding(result.to_json_dict()) for result in results if not result.success]


def _finding(result: dict[str, Any]) -> Finding:
    config = result["expectation_config"]
    arguments = {k: v for k, v in config["kwargs"].items() if k != "batch_id"}
    named = ", ".join(f"{k} {v}" for k, v in arguments.items())
    raised = result["exception_info"]
    message = _exception(raised)
    seen = message or f"found {_seen(result['result'])}"
    return Finding(f"{config['type']}({named})", config["severity"], seen)


def _seen(result: dict[str, Any]) -> str:
    if "unexpected_count" in result:
        some = result.get("partial_unexpected_list", [])[:3]
        return f"{result['unexpected_count']} of {result['element_count']} values" + (
            f", such as {some}" if some else ""
        )
    return str(result.get("observed_value", result))


def _exception(info: dict[str, Any]) -> str | None:
    messages = [str(one["exception_message"]) for one in _raised(info)]
    return " ".join(messages[0].split()) if messages else None


def _raised(info: dict[str, Any]) -> list[dict[str, Any]]:
    """The exceptions of an expectation, or of the metrics that it needs."""
    known = [info] if "exception_message" in info else info.values()
    return [one for one in known if one.get("raised_exception")]
