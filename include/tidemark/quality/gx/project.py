"""Great Expectations as the gate uses it: a project of which only results and Data Docs are files."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from html import escape
from pathlib import PurePosixPath
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame

from tidemark.config import Expectation, Pipeline
from tidemark.config.notify import Receiver
from tidemark.config.quality import DOCS_PAGE
from tidemark.delta.filesystem import file_system, files_under, is_address, remove
from tidemark.delta.log_files import Removed
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import PipelineFileError
from tidemark.quality.baseline_checks import called_beside_history
from tidemark.quality.gx.fast_path import kept_results, older_results, results_of
from tidemark.quality.notification import Notice
from tidemark.quality.results import LOOKS_AT, ON_FAILURE, Verdict, called, raised_in
from tidemark.quality.waivers import Waiver
from tidemark.spark.error_redaction import without_values

if TYPE_CHECKING:
    from great_expectations.datasource.fluent.interfaces import DataAsset
    from great_expectations.expectations.expectation import Expectation as GxExpectation

SHOWN = 20
"""How many of the values that fail an expectation are kept with its result, if any."""

_one_project = Lock()


def import_early() -> None:
    """Import Great Expectations in the background: it takes seconds, and Spark is busy meanwhile."""
    Thread(target=gx_library, daemon=True).start()


def check_arguments(pipeline: Pipeline) -> None:
    """See that every expectation of a pipeline file takes its arguments.

    Raises:
        PipelineFileError: names the expectation and the argument.
    """
    for expectation in pipeline.quality:
        built(expectation)


def write_docs(tables: PipelineTables, results: Iterable[Any]) -> None:
    """Bring Data Docs up where there are new results (`Verdict.results`): half a second, mostly that of the index."""
    if any(True for _ in results):
        catch_up(tables)


def catch_up(tables: PipelineTables) -> None:
    """Bring Data Docs up to all results that are kept, those that were judged without them among them."""
    pages = set(files_under(file_system(f"{docs_page(tables).rpartition('/')[0]}/validations")))
    without_page = {
        str(one.with_suffix("")) for one in kept_results(tables) if str(one.with_suffix(".html")) not in pages
    }
    if without_page:
        with project(tables) as context:
            # Another process may have removed old ones.
            known = context.validation_results_store.list_keys()
            wanted = [key for key in known if "/".join(key.to_tuple()) in without_page]
            context.build_data_docs(resource_identifiers=sorted(wanted, key=str))


def forget(tables: PipelineTables, before: datetime, *, dry_run: bool) -> Removed:
    """Remove results of before an instant and their pages, and let the first page of Data Docs be without them."""
    validations = results_of(tables)
    pages = f"{docs_page(tables).rpartition('/')[0]}/validations"
    found = {folder: older_results(folder, before) for folder in (validations, pages)}
    if not dry_run:
        _remove(validations, found[validations])
        if found[pages]:
            _write_index(tables, found[pages])  # while they are there: the next one writes it if this is killed
        _remove(pages, found[pages])
    under = {folder: folder.removeprefix(f"{tables.root}/") for folder in found}
    return Removed.of({f"{under[one]}/{path}": size for one, files in found.items() for path, size in files.items()})


def _remove(folder: str, paths: Iterable[str]) -> None:
    for path in paths:
        remove(folder, path)


def _write_index(tables: PipelineTables, gone: Iterable[str]) -> None:
    """Write the first page anew; it is of all results, and the pages of those that are gone are not."""
    identifier = gx_library().data_context.types.resource_identifiers.ValidationResultIdentifier
    with project(tables) as context:
        keys = [identifier.from_tuple(PurePosixPath(path).with_suffix("").parts) for path in gone]
        context.build_data_docs(resource_identifiers=keys)


def tell(notice: Notice, receivers: Iterable[Receiver], tables: PipelineTables, verdict: Verdict) -> None:
    """Send a verdict to those who are to know of it; a receiver that fails is told in a warning, and nothing else."""
    if wanted := [one for one in receivers if one.wants(notice.outcome)]:
        from tidemark.quality import notifiers as ways

        with project(tables) as context:
            ways.send(notice, wanted, context, next(iter(verdict.results), None))


def docs_page(tables: PipelineTables) -> str:
    """Data Docs' first page."""
    return f"{tables.root}/{DOCS_PAGE}"


@cache
def gx_library() -> Any:
    """Great Expectations, imported on first use."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    with _without_collecting():
        import great_expectations as gx  # noqa: PLC0415 - seconds long, see import_early
        import great_expectations.expectations as _  # noqa: F401, PLC0415

    _storable(gx.expectations.registry.get_expectation_impl("expect_column_quantile_values_to_be_between"))
    # It warns of results that another process has removed since they were listed.
    logging.getLogger("great_expectations.render.renderer.site_builder").setLevel(logging.ERROR)
    return gx


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Look for no garbage while modules are loaded, which stay: it takes a quarter of that time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _storable(kind: Any) -> None:
    """Let an expectation's verdict be a bool: its results hold NumPy's, which cannot be written as JSON."""
    validate = kind.metrics_validate

    def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = validate(self, *args, **kwargs)
        result.success = bool(result.success)
        return result

    kind.metrics_validate = plain


@contextmanager
def project(tables: PipelineTables) -> Iterator[Any]:
    """A project of Great Expectations of which only results and Data Docs are files: processes may share these.

    It is for one thread at a time: a process has one project, and one parser.
    """
    root = f"{tables.papers}/uncommitted"

    def files(folder: str) -> dict[str, str]:
        if is_address(root):
            return {
                "module_name": "tidemark.quality.gx.object_store",
                "class_name": "ObjectStoreBackend",
                "base": f"{root}/{folder}",
            }
        return {"class_name": "TupleFilesystemStoreBackend", "base_directory": f"{root}/{folder}"}

    kinds = gx_library().data_context.types.base
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
        yield gx_library().get_context(mode="ephemeral", project_config=config)


def built(expectation: Expectation) -> GxExpectation:
    """An expectation as Great Expectations has it.

    Raises:
        PipelineFileError: it does not take these arguments.
    """
    gx = gx_library()
    implementation = gx.expectations.registry.get_expectation_impl(expectation.type)
    try:
        built: GxExpectation = implementation(
            **expectation.kwargs,
            severity=expectation.severity,
            notes=_plain(expectation.notes),
            meta={name: _plain(value) for name, value in expectation.meta.items()}
            | {ON_FAILURE: expectation.on_failure, LOOKS_AT: expectation.looks_at},
        )
    except (ValueError, TypeError) as error:
        raise PipelineFileError(f"quality: {expectation.type}: {' '.join(str(error).split())}") from None
    return built


def noted(expectation: GxExpectation, waivers: Mapping[str, Waiver]) -> GxExpectation:
    """An expectation; one that is waived says so in its notes, and in Data Docs, which show its description alone."""
    name = called(expectation.configuration.to_json_dict())
    if (waiver := waivers.get(name)) is None:
        return expectation
    notes, text = _plain(waiver.told()), _plain(f"{name}: {waiver.told()}")
    copy: GxExpectation = expectation.copy(update={"notes": notes, "description": text})
    return copy


def _plain(told: Any) -> Any:
    """Texts as Data Docs have to have them: they show them as they stand, and take a dollar for a parameter."""
    if isinstance(told, list):
        return [_plain(one) for one in told]
    return escape(told).replace("$", "&#36;") if isinstance(told, str) else told


def name_of(expectation: Expectation) -> str:
    """What findings call it."""
    if expectation.on == "history":
        return called_beside_history(expectation)
    return called(built(expectation).configuration.to_json_dict())


def run_suite(
    context: Any,
    name: str,
    asset: DataAsset[Any, Any],
    data: pd.DataFrame | DataFrame,
    expectations: Iterable[GxExpectation],
    run: str,
    told: dict[str, Any] | None = None,
) -> dict[Any, Any]:
    """The results by their identifiers."""
    gx = gx_library()
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
        if told and withhold_values(result.results, told):
            context.validation_results_store.set(key, result)
    return dict(outcome.run_results)


def store_results(context: Any, name: str, results: Sequence[Any], run: str) -> dict[Any, Any]:
    """Keep results that are known, as if a suite of this name had been run; by their identifier."""
    gx = gx_library()
    identifiers, now = gx.data_context.types.resource_identifiers, datetime.now(UTC)
    run_id = gx.RunIdentifier(run_name=run, run_time=now)
    held = sum(bool(result.success) for result in results)
    key = identifiers.ValidationResultIdentifier(identifiers.ExpectationSuiteIdentifier(name), run_id, f"{name}-rows")
    result = gx.core.expectation_validation_result.ExpectationSuiteValidationResult(
        success=held == len(results),
        results=list(results),
        suite_name=name,
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": held,
            "unsuccessful_expectations": len(results) - held,
            "success_percent": 100 * held / len(results),
        },
        meta={"great_expectations_version": gx.__version__, "run_id": run_id, "validation_time": now},
        batch_id=key.batch_identifier,
    )
    context.validation_results_store.set(key, result)
    return {key: result}


def withhold_values(results: Iterable[Any], told: Mapping[str, Any]) -> bool:
    """Cut what exceptions quote of rows, unless results may show some; whether there was any."""
    raised = [one for result in results for one in raised_in(result.exception_info)]
    if told["partial_unexpected_count"]:
        return False
    for one in raised:
        one["exception_message"], one["exception_traceback"] = without_values(str(one["exception_message"])), ""
    return bool(raised)


def told_of(pipeline: Pipeline) -> dict[str, Any]:
    """What results say: counts, and some of the values that failed where the pipeline file lets them be shown."""
    return {"result_format": "SUMMARY", "partial_unexpected_count": SHOWN if pipeline.show_rows else 0}
