"""Call a user's function that makes a streaming query, and read the query's analysed plan."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidemark.errors import ImportRefusedError, UserError
from tidemark.formatting import to_single_line
from tidemark.importing.spark_expressions import EVAL_MODE, TRY, Tree, parse_tree
from tidemark.importing.spark_input import DELAY, FORMAT, OPTIONS
from tidemark.importing.spark_join import ALLOW_MULTIPLE, ANSI, NO_DATA_BATCHES, POLICY, TIME_ZONE
from tidemark.spark.engine import require_classic_session

_DEFAULTS = {POLICY: "min", ALLOW_MULTIPLE: "true", ANSI: "true", NO_DATA_BATCHES: "true", TIME_ZONE: "UTC"}
_ANALYSIS_SETTINGS = (TIME_ZONE, ANSI, "spark.sql.timestampType", "spark.sql.caseSensitive")
"""Settings that change the plan which Spark makes of a query."""
READ_SETTINGS = tuple(dict.fromkeys((*_DEFAULTS, *_ANALYSIS_SETTINGS)))
"""Settings of a query that its import reads."""
_MAX_FIELDS = 1_000_000
"""Number of columns up to which Spark describes all columns of an operator."""
_WATERMARK = "org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark"


@contextmanager
def with_job_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Analyse queries with the settings of a job that change its plan, such as its time zone.

    Raises:
        UserError: Spark refuses a setting.
    """
    analysis = {name: settings[name] for name in _ANALYSIS_SETTINGS if name in settings}
    earlier = {name: str(spark.conf.get(name)) for name in analysis}
    try:
        for name, value in analysis.items():
            _set(spark, name, value)
        yield
    finally:
        for name, text in earlier.items():
            spark.conf.set(name, text)


def _set(spark: SparkSession, name: str, value: str) -> None:
    try:
        spark.conf.set(name, value)
    except (PySparkException, Py4JError) as error:
        reason = to_single_line(str(error).partition("\n")[0])
        raise UserError(f"--conf {name}={value}: Spark refuses it. {reason}") from None


def build_query(spark: SparkSession, source: str) -> DataFrame:
    """Call a function for a streaming DataFrame.

    Args:
        spark: The session, which the function may take as its argument.
        source: MODULE:FUNCTION. The module is searched in the working directory first.

    Raises:
        UserError: There is no such function, or it failed.
        ImportRefusedError: It returns no streaming DataFrame.
    """
    require_classic_session(spark, "tidemark import")
    function = _find_function(source)
    try:
        query = function(spark) if inspect.signature(function).parameters else function()
    except Exception as error:
        if os.environ.get("TIDEMARK_DEBUG"):
            raise
        raise _describe_failure(source, error, "Call it") from None
    if not isinstance(query, DataFrame) or not query.isStreaming:
        raise ImportRefusedError(f"{source} does not return a streaming DataFrame. Return it before writeStream.")
    return query


def _describe_failure(name: str, error: Exception, action: str) -> UserError:
    """Return an error about a user's module or function."""
    text = to_single_line(f"{name} failed: {type(error).__name__}: {error}")
    return UserError(f"{text[:500]} {action} in a Python session first.")


def read_plan(query: DataFrame) -> Tree:
    """Read the analysed plan of a query, with what `toJSON` leaves out: watermark delays, sources, modes of casts."""
    plan = query._jdf.queryExecution().analyzed()  # noqa: SLF001 - Spark has no public interface to plans
    catalyst = query.sparkSession._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]  # noqa: SLF001
    plan = catalyst.optimizer.InlineCTE(True, False).apply(plan)  # replaces the parts of WITH by their definitions
    nodes = json.loads(plan.toJSON())
    watermarks = catalyst.plans.logical.EventTimeWatermark
    for node, java_node in zip(nodes, _list_java_nodes(plan), strict=True):
        text = java_node.simpleString(_MAX_FIELDS)
        if "try_cast(" in text:
            _mark(node, "Cast", EVAL_MODE, TRY)
        if " ESCAPE '" in text:
            _mark(node, "Like", "class", "LikeWithEscape")  # the JSON lacks the character
        if node["class"] == _WATERMARK:
            node[DELAY] = watermarks.getDelayMs(java_node.delay())
        elif not node["num-children"]:
            node[FORMAT], node[OPTIONS] = _read_source(java_node)
    return parse_tree(nodes)


def _mark(part: Any, name: str, field: str, value: str) -> None:
    """Set a field of all expressions of a class in the JSON of an operator.

    The JSON does not show which of them is a `try_cast`, or has an ESCAPE.
    """
    if isinstance(part, dict):
        if str(part.get("class", "")).endswith(f".{name}"):
            part[field] = value
        part = list(part.values())
    for child in part if isinstance(part, list) else ():
        _mark(child, name, field, value)


def read_settings(spark: SparkSession) -> Mapping[str, str]:
    """Read the session's settings that decide about late rows, unless they have Spark's defaults."""
    values = {name: str(spark.conf.get(name, default)) for name, default in _DEFAULTS.items()}
    return {name: value for name, value in values.items() if value.lower() != _DEFAULTS[name].lower()}


def _find_function(source: str) -> Any:
    module_name, _, name = source.partition(":")
    if not module_name:
        raise UserError(f"{source} names no module. Write MODULE:FUNCTION, such as jobs.enrich:build.")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a text is needed
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise UserError(f"{module_name} cannot be imported: {error}. Run in the folder of the module.") from None
    except Exception as error:
        if os.environ.get("TIDEMARK_DEBUG"):
            raise
        raise _describe_failure(module_name, error, "Import it") from None
    finally:
        sys.path.pop(0)
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{module_name} has no function {name}. Write MODULE:FUNCTION, such as jobs.enrich:build.")
    return function


def _list_java_nodes(plan: Any) -> list[Any]:
    """List the nodes of a plan, each before its children."""
    children = plan.children()
    return [plan, *(node for number in range(children.size()) for node in _list_java_nodes(children.apply(number)))]


def _read_source(java_node: Any) -> tuple[str, dict[str, str]]:
    """Return the format of a stream's source, and the options of its reader, in lower case."""
    kind = str(java_node.getClass().getSimpleName())
    if kind == "StreamingRelationV2":
        return str(java_node.sourceName()), _to_dict(java_node.extraOptions().asCaseSensitiveMap().entrySet().toArray())
    if kind == "StreamingRelation":
        source = java_node.dataSource()
        options = source.options().toSeq()
        pairs = [options.apply(number) for number in range(options.size())]
        return str(source.className()), {str(pair._1()).lower(): str(pair._2()) for pair in pairs}  # noqa: SLF001
    return kind, {}


def _to_dict(entries: Any) -> dict[str, str]:
    return {str(entry.getKey()).lower(): str(entry.getValue()) for entry in entries}
