"""The columns of the tables that a pipeline writes: what readers see of a join's answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from tidemark.config import Pipeline
from tidemark.config.allowed_functions import ColumnsOf
from tidemark.config.sides import SIDES
from tidemark.errors import PipelineFileError
from tidemark.formatting import quoted
from tidemark.joins.keys import key_path, type_at
from tidemark.joins.window_output import HALVES, flat_columns
from tidemark.spark.dataframe_utils import has_order, with_columns
from tidemark.spark.engine import engine_of
from tidemark.spark.expression_sandbox import confined, in_one_line
from tidemark.timegrid.slices import Grid


def emissions(joined: DataFrame, pipeline: Pipeline, grid: Grid) -> DataFrame:
    """The output rows of a replay: the user's columns, then `_slice` and what else `pairs` has."""
    return of_pairs(pairs(joined, pipeline, grid), pipeline)


def pairs(joined: DataFrame, pipeline: Pipeline, grid: Grid) -> DataFrame:
    """What a replay has joined, a row each: the inputs' columns, then `_slice`, `_emission`, `_pane`, `_result_time`.

    Window joins have `_window_start` and `_window_end` too, and where the right row has a window of its own
    `_right_window_start` and `_right_window_end`; rows that tell their `lane` have `_lane`. Input columns are
    `left_NAME` and `right_NAME`; a coGroup has the arrays `left` and `right`, semi and anti joins the left columns
    alone. In flink-datastream the condition is a filter behind the join; elsewhere the join itself has seen to it.
    """
    join = pipeline.join
    sides = ("left",) if join.type in HALVES else SIDES
    if join.api == "cogroup":
        columns = [F.col(side) for side in sides]
    else:
        columns = [column for side in sides for column in flat_columns(joined, side)]
    provenance = {
        "_slice": grid.timestamp_column(F.col("slice")),
        "_emission": F.col("emission"),
        "_pane": F.col("pane").cast("int"),
        "_result_time": F.timestamp_millis("result_time"),
    }
    bounds = ["window_start", "window_end"] if join.window or join.window_inequality else []
    if join.window and join.window.session and pipeline.dialect == "flink-sql":
        bounds.append("right_window_start")
    elif join.window_inequality and join.type not in HALVES:
        bounds += ["right_window_start", "right_window_end"]
    provenance |= {f"_{name}": _bound(pipeline, name) for name in bounds}
    if "lane" in joined.columns:
        provenance["_lane"] = F.col("lane")
    wide = joined.select(*columns, *(column.alias(name) for name, column in provenance.items()))
    if join.condition and pipeline.dialect == "flink-datastream":
        wide = wide.where(confined(wide.sparkSession, join.condition).column)
    return wide


def _bound(pipeline: Pipeline, name: str) -> Column:
    """The bound of a window: an instant, or in a time zone the local time, which is Flink's type TIMESTAMP."""
    bound = F.timestamp_millis(name)
    return bound.cast("timestamp_ntz") if pipeline.zone_of_windows else bound


def of_pairs(wide: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The columns that the user asked for, or the rows, of `pairs`, and what these say of themselves.

    Raises:
        PipelineFileError: two columns are one name to Spark, in whatever case of letters; rows are made of no structs.
    """
    if pipeline.flatten is not None:
        return _flattened(wide, pipeline.flatten)
    provenance = _provenance(wide)
    _need_names_apart([*(pipeline.select or ()), *provenance])
    match pipeline.select:
        case None:
            return wide
        case list(names):
            return wide.select(*map(quoted, names), *provenance)
        case dict(expressions):
            chosen = (confined(wide.sparkSession, text).column.alias(name) for name, text in expressions.items())
            return wide.select(*chosen, *provenance)


def _flattened(wide: DataFrame, text: str) -> DataFrame:
    """A row for each struct of an array, as Spark's `inline` has it: of one that is null a row of nulls."""
    provenance, ordered = _provenance(wide), _with_lists_in_order(wide)
    structs = confined(wide.sparkSession, text).column
    kind = ordered.select(structs).schema[0].dataType
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType) or not kind.elementType.names:
        raise PipelineFileError(
            f"it gives {kind.simpleString()}, and rows are made of an array of structs; write "
            "array(named_struct('name', value, ...)), or transform(list, x -> named_struct('name', x, ...))"
        )
    _need_names_apart([*kind.elementType.names, *provenance])
    return ordered.select(F.inline(structs), *provenance)


def _with_lists_in_order(wide: DataFrame) -> DataFrame:
    """The arrays of a coGroup in the order of their rows' columns: how they were collected differs from run to run.

    Raises:
        PipelineFileError: rows of them have no order.
    """
    lists = {one.name: one.dataType for one in wide.schema if one.name in SIDES and isinstance(one.dataType, ArrayType)}
    for side, kind in lists.items():
        assert isinstance(kind.elementType, StructType), "an input's row"
        if mapped := [one.name for one in kind.elementType if not has_order(one.dataType)]:
            raise PipelineFileError(
                f"the list {side} has no order that is the same in each run, for {mapped[0]} is "
                f"{kind.elementType[mapped[0]].dataType.simpleString()}; write what is asked of it as columns of "
                "other types, and give the input without it"
            )
    return wide.transform(with_columns, {side: F.sort_array(side) for side in lists})


def _provenance(wide: DataFrame) -> list[str]:
    return [name for name in wide.columns if name.startswith("_")]


def _need_names_apart(names: Sequence[str]) -> None:
    named = Counter(name.lower() for name in names)
    if twice := sorted(name for name in names if named[name.lower()] > 1):
        raise PipelineFileError(f"{' and '.join(twice)} are one name to Spark; call one of them otherwise")


def check_expressions(spark: SparkSession, pipeline: Pipeline, grid: Grid, left: StructType, right: StructType) -> None:
    """See that what leaves rows out, keys, condition and output columns make sense over rows of these inputs.

    Raises:
        PipelineFileError: names the field and what is wrong with it.
    """
    rows: dict[str, DataType] = {"left": left, "right": right}
    both = engine_of(spark).empty(StructType([StructField(side, kind) for side, kind in rows.items()]))
    if pipeline.join.api == "cogroup":
        rows = {side: ArrayType(kind) for side, kind in rows.items()}
    labels = {"emission": StringType()}
    of_windows = ("window_start", "window_end", "right_window_start", "right_window_end")
    names = ("slice", "emission", "pane", "result_time", *of_windows)
    fields = [StructField(name, labels.get(name, LongType())) for name in names]
    joined = engine_of(spark).empty(StructType(fields + [StructField(side, kind) for side, kind in rows.items()]))
    bare = pipeline.model_copy(update={"join": pipeline.join.model_copy(update={"condition": None})})
    flat = both.select(*flat_columns(both, "left"), *flat_columns(both, "right"))
    for side, schema in (("left", left), ("right", right)):
        _check_own(spark, pipeline, side, schema)
    with _blamed_on("join.condition"):
        _need_the_same_again(flat.where(confined(spark, pipeline.join.condition or "true").column))
    with _blamed_on("select" if pipeline.flatten is None else "flatten"):
        _need_the_same_again(emissions(joined, bare, grid))


def _check_own(spark: SparkSession, pipeline: Pipeline, side: str, schema: StructType) -> None:
    """See to the expressions over one input's own columns."""
    columns, rows = ColumnsOf(tuple(schema.names)), engine_of(spark).empty(schema)
    if (where := getattr(pipeline, side).where) is not None:
        with _blamed_on(f"{side}.where"):
            _need_the_same_again(rows.where(confined(spark, where, columns).column))
    for pair in pipeline.join.keys:
        name = getattr(pair, side)
        if type_at(schema, key_path(schema, name)) is None:
            with _blamed_on(f"join.keys.{side}"):
                _need_the_same_again(rows.select(confined(spark, name, columns).column))


def _need_the_same_again(rows: DataFrame) -> None:
    if engine_of(rows.sparkSession).depends_on_the_run(rows):
        raise PipelineFileError(
            "a text such as 'now' is the time of the run where Spark takes it for a time, and a replay gives the same "
            "in each run; write the time itself, or take a column"
        )


@contextmanager
def _blamed_on(field: str) -> Iterator[None]:
    try:
        yield
    except PipelineFileError as error:
        raise PipelineFileError(f"{field}: {error}") from None
    except AnalysisException as error:
        raise PipelineFileError(f"{field}: {in_one_line(error)}") from None


def late_table(late: DataFrame, pipeline: Pipeline, grid: Grid) -> DataFrame:
    """Late and rejected rows as stored; `arrived_at` is the effective arrival."""
    return late.select(
        grid.timestamp_column(F.col("slice")).alias("_slice"),
        "side",
        "reason",
        F.timestamp_micros("clock").alias("arrived_at"),
        F.timestamp_micros(F.col("event_time") * pipeline.tick).alias("event_time"),
        F.timestamp_millis("watermark").alias("watermark"),
        "behind_ms",
        "held_by",
        "would_match",
        *(_bound(pipeline, name).alias(name) for name in ("window_start", "window_end")),
        "fate",
        "left",
        "right",
    )
