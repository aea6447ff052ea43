"""All that Tidemark asks of Spark's private JVM objects, which no public API of PySpark 4.1 tells.

Another version of Spark or Delta may answer otherwise, and a session of Spark Connect has none of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.classic.column import Column as ClassicColumn

from tidemark.spark.engine_protocol import AnalyzedFilter, Comparison

_COMPARISONS = {"GreaterThanOrEqual": ">=", "GreaterThan": ">", "LessThanOrEqual": "<=", "LessThan": "<"}

_CACHED_CLASSES = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")
"""The classes by which PySpark makes columns, as it asks for them."""


class _CachedJavaClass(JavaClass):  # type: ignore[misc]  # py4j has no types
    """A class whose methods are asked for once."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            setattr(self, name, found)
        return found


def cache_jvm_lookups(spark: SparkSession) -> None:
    """Let PySpark know what it would ask the JVM twice for each column: which class a name is, which method of it.

    The JVM looks for a class in each jar; it is a tenth of the time in which a small query is planned.
    """
    jvm = _get_jvm(spark)
    for name in _CACHED_CLASSES:
        if name not in vars(jvm):
            found = getattr(jvm, name)
            setattr(jvm, name, _CachedJavaClass(found._fqn, found._gateway_client))  # noqa: SLF001


def can_load(spark: SparkSession, class_name: str) -> bool:
    """Tell whether a class is on the session's class path."""
    return bool(_get_jvm(spark).org.apache.spark.util.Utils.classIsLoadable(class_name))


def enable_warnings(spark: SparkSession, class_name: str) -> None:
    """Let the driver's log have the warnings of one class."""
    log4j = _get_jvm(spark).org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(class_name, log4j.Level.WARN)


def get_execution_memory(spark: SparkSession) -> int:
    """Add up the bytes that Spark's executors share between execution and storage."""
    driver = _get_jvm(spark).org.apache.spark.SparkEnv.get().blockManager().blockManagerId()
    known = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001
    remote = [one for one in known if (one.host(), one.port()) != (driver.host(), driver.port())]
    return sum(one.totalOnHeapStorageMemory() for one in remote or known)


def list_builtin_functions(spark: SparkSession) -> dict[str, str]:
    """List Spark's own functions and operators, each with Spark's name of its group, in order."""
    analysis = _get_jvm(spark).org.apache.spark.sql.catalyst.analysis
    registry = getattr(getattr(analysis, "FunctionRegistry$"), "MODULE$").builtin()
    found = registry.listFunction()
    known = (found.apply(number) for number in range(found.size()))
    return dict(sorted((one.funcName(), registry.lookupFunction(one).get().getGroup()) for one in known))


@dataclass(frozen=True)
class DeltaSnapshot:
    """A Delta table as it stood when it was looked at; what is committed later does not change it.

    Spark's own `load` takes the version of the moment at which rows are asked for, and lists the log twice.
    """

    spark: SparkSession
    log: Any
    snapshot: Any

    @classmethod
    def load_latest(cls, spark: SparkSession, path: str) -> DeltaSnapshot:
        """Look at a table now; one that is not there is an AnalysisException once its rows are asked for."""
        none = _get_jvm(spark).scala.Option.empty()
        log = _get_jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)  # noqa: SLF001
        return cls(spark, log, log.update(False, none, none))

    def read(self) -> DataFrame:
        """Give the table's rows."""
        jvm = _get_jvm(self.spark)
        no_filters = jvm.org.apache.spark.api.python.PythonUtils.toSeq([])
        option = jvm.scala.Option
        relation = self.log.createRelation(no_filters, option.apply(self.snapshot), option.empty(), True)
        read = self.spark._jsparkSession.baseRelationToDataFrame(relation)  # noqa: SLF001
        return DataFrame(read, self.spark)

    @property
    def version(self) -> int:
        """Give the version that this is."""
        return int(self.snapshot.version())

    @property
    def metadata(self) -> dict[str, Any]:
        """Give columns, partitions and properties, as the log has them."""
        told: dict[str, Any] = json.loads(self.snapshot.metadata().json())["metaData"]
        return told

    def replace(self, actions: list[str]) -> None:
        """Commit actions, JSON as the log has it, on top of this version: what the table is, too.

        Raises:
            DeltaConcurrentModificationException: another process has committed files meanwhile.
        """
        jvm = _get_jvm(self.spark)
        parsed = [jvm.org.apache.spark.sql.delta.actions.Action.fromJson(action) for action in actions]
        empty = jvm.scala.Option.empty()
        transaction = self.log.startTransaction(empty, jvm.scala.Option.apply(self.snapshot))
        transaction.readWholeTable()  # or files that come meanwhile would go with it
        operation = getattr(getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        transaction.commit(jvm.org.apache.spark.api.python.PythonUtils.toSeq(parsed), operation)


@dataclass(frozen=True)
class ExpressionNode:
    """A part of an expression as Spark has parsed it: what it is, the path of names it has, and its parts."""

    class_name: str
    name_parts: tuple[str, ...]
    time_literal: str | None
    """Of a literal that is a date or a timestamp: which, in the session's time zone."""
    children: tuple[ExpressionNode, ...]


@dataclass(frozen=True)
class Expression:
    """An expression as Spark has parsed or optimized it."""

    spark: SparkSession
    node: Any

    @classmethod
    def parse(cls, spark: SparkSession, text: str) -> Expression:
        """Parse SQL.

        Raises:
            ParseException: it is none.
        """
        return cls(spark, spark._jsparkSession.sessionState().sqlParser().parseExpression(text))  # noqa: SLF001

    @property
    def class_name(self) -> str:
        """The class of the outermost operator, such as `And`."""
        return str(self.node.getClass().getSimpleName())

    @property
    def column(self) -> Column:
        """The expression as a column."""
        return ClassicColumn(_get_jvm(self.spark).org.apache.spark.sql.classic.ExpressionUtils.column(self.node))

    @property
    def references(self) -> list[str]:
        """The names of the columns that it reads."""
        found = self.node.references().toSeq()
        return [found.apply(number).name() for number in range(found.size())]

    def to_tree(self) -> ExpressionNode:
        """Give all of it, asking the JVM once."""
        return _build_tree(iter(json.loads(self.node.toJSON())))

    def split_conjuncts(self) -> list[Expression]:
        """Take it apart at each AND."""
        if self.class_name != "And":
            return [self]
        sides = (Expression(self.spark, side) for side in (self.node.left(), self.node.right()))
        return [part for side in sides for part in side.split_conjuncts()]

    def to_comparison(self) -> Comparison | None:
        """Read it as a column compared with a literal number, the column first; None for anything else."""
        if self.class_name not in _COMPARISONS:
            return None
        sides = [Expression(self.spark, side) for side in (self.node.left(), self.node.right())]
        operator = _COMPARISONS[self.class_name]
        if sides[0].class_name == "Literal":
            sides.reverse()
            operator = operator.translate(str.maketrans("<>", "><"))
        column, number = sides
        if column.class_name != "AttributeReference" or number.class_name != "Literal" or not number._is_numeric:  # noqa: SLF001
            return None
        return Comparison(operator, float(str(number.node.value())))

    @property
    def _is_numeric(self) -> bool:
        class_name = T._parse_datatype_json_string(self.node.dataType().json())  # noqa: SLF001
        return isinstance(class_name, T.NumericType)


def _build_tree(nodes: Iterator[dict[str, Any]]) -> ExpressionNode:
    """The next node, and those below it: Spark writes each before its parts."""
    node = next(nodes)
    names = node.get("nameParts", "").removeprefix("[").removesuffix("]")
    children = tuple(_build_tree(nodes) for _ in range(node["num-children"]))
    time = node.get("value") if str(node.get("dataType")).startswith(("date", "timestamp")) else None
    return ExpressionNode(
        node["class"].rpartition(".")[-1].partition("$$")[0], tuple(names.split(", ")), time, children
    )


def is_nondeterministic(rows: DataFrame) -> bool:
    """Tell whether rows would be others in another run: by chance, the clock, or texts that Spark takes for its time.

    Raises:
        AnalysisException: they make no sense.
    """
    optimizer = _get_jvm(rows.sparkSession).org.apache.spark.sql.catalyst.optimizer
    plan = rows._jdf.queryExecution().analyzed()  # noqa: SLF001
    if not plan.deterministic():
        return True
    # What some functions stand for is a cast, whose text may be the clock's: to_timestamp('now').
    plain = _get_optimizer_rule(optimizer, "ReplaceExpressions").apply(plan)
    return any(
        not _get_optimizer_rule(optimizer, name).apply(plain).fastEquals(plain)
        for name in ("ComputeCurrentTime", "SpecialDatetimeValues")
    )


def _get_optimizer_rule(optimizer: Any, name: str) -> Any:
    return getattr(getattr(optimizer, f"{name}$"), "MODULE$")


def analyze_filter(rows: DataFrame, condition: Column) -> AnalyzedFilter:
    """Analyse and optimize a filter over rows; nothing runs.

    Raises:
        AnalysisException: it makes no sense over these rows.
    """
    spark, plan = rows.sparkSession, rows.where(condition)._jdf.queryExecution()  # noqa: SLF001
    read = Expression(spark, plan.analyzed().condition()).references
    optimized = Expression(spark, plan.optimizedPlan())
    if optimized.class_name != "Filter":  # it is always true, or never
        return AnalyzedFilter(read, [], [])
    parts = Expression(spark, optimized.node.condition()).split_conjuncts()
    not_null = [part.references[0] for part in parts if part.class_name == "IsNotNull"]
    compared = (part.to_comparison() for part in parts)
    return AnalyzedFilter(read, not_null, [one for one in compared if one is not None])


def _get_jvm(spark: SparkSession) -> Any:
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    assert jvm is not None, "a classic session has a JVM"
    return jvm


def supports_conditional_put(spark: SparkSession, path: str) -> bool:
    """Put two objects at a place of S3, each on condition that there is none; whether the second was refused."""
    place = _get_jvm(spark).org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001

    def put() -> None:
        made = files.createFile(place).overwrite(True).must("fs.option.create.conditional.overwrite", "true").build()
        made.close()

    try:
        put()
        put()
    except Py4JJavaError as error:
        if "412" not in str(error.java_exception):
            raise
        return True
    finally:
        files.delete(place, False)
    return False
