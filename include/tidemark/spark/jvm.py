"""Call private JVM objects of Spark and Delta for what PySpark 4.1 has no public API.

Other versions of Spark or Delta may behave differently. Spark Connect sessions have no JVM objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.classic.column import Column as ClassicColumn

from tidemark.spark.engine_protocol import AnalyzedFilter, NumericComparison

_COMPARISONS = {"GreaterThanOrEqual": ">=", "GreaterThan": ">", "LessThanOrEqual": "<=", "LessThan": "<"}

_CACHED_CLASSES = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")
"""Names by which PySpark looks up the JVM classes that create columns."""


class _CachedJavaClass(JavaClass):  # type: ignore[misc]  # py4j has no types
    """JVM class that caches its methods."""

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if isinstance(member, JavaMember):
            setattr(self, name, member)
        return member


def cache_jvm_lookups(spark: SparkSession) -> None:
    """Cache the JVM classes and methods that PySpark would otherwise look up twice per column.

    The JVM searches every jar for a class. The lookups take a tenth of the planning time of a small query.
    """
    jvm = _get_jvm(spark)
    for name in _CACHED_CLASSES:
        if name not in vars(jvm):
            java_class = getattr(jvm, name)
            setattr(jvm, name, _CachedJavaClass(java_class._fqn, java_class._gateway_client))  # noqa: SLF001


@contextmanager
def separate_session(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a copy of a session with changed settings, which is this thread's active session meanwhile.

    Spark's parser and optimizer read the settings of the active session. Other threads do not see the copy.
    """
    copy = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001
    for key, value in settings.items():
        copy.conf.set(key, value)
    _activate(copy)
    try:
        yield copy
    finally:
        _activate(spark)


def _activate(spark: SparkSession) -> None:
    """Make a session the active one, as PySpark does where it creates a DataFrame."""
    SparkSession._activeSession = spark  # noqa: SLF001
    SparkSession._get_j_spark_session_class(_get_jvm(spark)).setActiveSession(spark._jsparkSession)  # noqa: SLF001


def can_load(spark: SparkSession, class_name: str) -> bool:
    """Return True if a class is on the session's class path."""
    return bool(_get_jvm(spark).org.apache.spark.util.Utils.classIsLoadable(class_name))


def enable_warnings(spark: SparkSession, class_name: str) -> None:
    """Enable warnings of one class in the driver's log."""
    log4j = _get_jvm(spark).org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(class_name, log4j.Level.WARN)


def get_execution_memory(spark: SparkSession) -> int:
    """Return the bytes that all executors, or else the driver, share between execution and storage."""
    driver = _get_jvm(spark).org.apache.spark.SparkEnv.get().blockManager().blockManagerId()
    executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001
    remote = [info for info in executors if (info.host(), info.port()) != (driver.host(), driver.port())]
    return sum(info.totalOnHeapStorageMemory() for info in remote or executors)


def list_builtin_functions(spark: SparkSession) -> dict[str, str]:
    """Return the names of Spark's built-in functions and operators, sorted, with the group of each."""
    analysis = _get_jvm(spark).org.apache.spark.sql.catalyst.analysis
    registry = getattr(getattr(analysis, "FunctionRegistry$"), "MODULE$").builtin()
    identifiers = registry.listFunction()
    names = (identifiers.apply(index) for index in range(identifiers.size()))
    return dict(sorted((name.funcName(), registry.lookupFunction(name).get().getGroup()) for name in names))


@dataclass(frozen=True)
class DeltaSnapshot:
    """One version of a Delta table; later commits do not affect it.

    Spark's `load`, by contrast, reads the version that is the latest when the query runs, and lists the log twice.
    """

    spark: SparkSession
    log: Any
    snapshot: Any

    @classmethod
    def load_latest(cls, spark: SparkSession, path: str) -> DeltaSnapshot:
        """Load the latest version; for a missing table, `read` raises an AnalysisException."""
        empty = _get_jvm(spark).scala.Option.empty()
        log = _get_jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)  # noqa: SLF001
        return cls(spark, log, log.update(False, empty, empty))

    def read(self) -> DataFrame:
        """Return the rows of this version."""
        jvm = _get_jvm(self.spark)
        no_filters = jvm.org.apache.spark.api.python.PythonUtils.toSeq([])
        option = jvm.scala.Option
        relation = self.log.createRelation(no_filters, option.apply(self.snapshot), option.empty(), True)
        frame = self.spark._jsparkSession.baseRelationToDataFrame(relation)  # noqa: SLF001
        return DataFrame(frame, self.spark)

    @property
    def version(self) -> int:
        """Version of the table."""
        return int(self.snapshot.version())

    @property
    def metadata(self) -> dict[str, Any]:
        """Columns, partition columns and properties, as in the `metaData` action of the Delta log."""
        metadata: dict[str, Any] = json.loads(self.snapshot.metadata().json())["metaData"]
        return metadata

    def commit_replacement(self, actions: list[str]) -> None:
        """Commit Delta actions, including metadata; see `ReplaceableSnapshot`."""
        jvm = _get_jvm(self.spark)
        parsed = [jvm.org.apache.spark.sql.delta.actions.Action.fromJson(action) for action in actions]
        empty = jvm.scala.Option.empty()
        transaction = self.log.startTransaction(empty, jvm.scala.Option.apply(self.snapshot))
        transaction.readWholeTable()  # makes every concurrent commit of files a conflict; it would be lost otherwise
        operation = getattr(getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        transaction.commit(jvm.org.apache.spark.api.python.PythonUtils.toSeq(parsed), operation)


@dataclass(frozen=True)
class ExpressionNode:
    """A node of the tree that Spark's parser returns."""

    class_name: str
    """Spark's class of the node, without its package."""
    name_parts: tuple[str, ...]
    """Name of a column or function, after its qualifiers."""
    time_literal: str | None
    """Value of a date or timestamp literal, in the session's time zone; None for other nodes."""
    children: tuple[ExpressionNode, ...]


@dataclass(frozen=True)
class Expression:
    """Spark's own object of a parsed or optimized expression."""

    spark: SparkSession
    node: Any

    @classmethod
    def parse(cls, spark: SparkSession, expression: str) -> Expression:
        """Parse an expression.

        Raises:
            ParseException: The SQL is invalid.
        """
        return cls(spark, spark._jsparkSession.sessionState().sqlParser().parseExpression(expression))  # noqa: SLF001

    @property
    def class_name(self) -> str:
        """Class of the outermost operator, such as `And`."""
        return str(self.node.getClass().getSimpleName())

    @property
    def column(self) -> Column:
        """The expression as a column."""
        return ClassicColumn(_get_jvm(self.spark).org.apache.spark.sql.classic.ExpressionUtils.column(self.node))

    @property
    def references(self) -> list[str]:
        """Names of the columns that it reads."""
        attributes = self.node.references().toSeq()
        return [attributes.apply(index).name() for index in range(attributes.size())]

    def to_tree(self) -> ExpressionNode:
        """Return the entire tree, with a single call to the JVM."""
        return _build_tree(iter(json.loads(self.node.toJSON())))

    def split_conjuncts(self) -> list[Expression]:
        """Split the expression at each AND outside of other operators."""
        if self.class_name != "And":
            return [self]
        sides = (Expression(self.spark, side) for side in (self.node.left(), self.node.right()))
        return [part for side in sides for part in side.split_conjuncts()]

    def to_comparison(self) -> NumericComparison | None:
        """Return the comparison of a column with a literal number, as if the column came first; None if it is none."""
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
        return NumericComparison(operator, float(str(number.node.value())))

    @property
    def _is_numeric(self) -> bool:
        dtype = T._parse_datatype_json_string(self.node.dataType().json())  # noqa: SLF001
        return isinstance(dtype, T.NumericType)


def _build_tree(nodes: Iterator[dict[str, Any]]) -> ExpressionNode:
    """Build the tree of the next node; Spark lists each node before its children."""
    node = next(nodes)
    name_parts = node.get("nameParts", "").removeprefix("[").removesuffix("]")
    children = tuple(_build_tree(nodes) for _ in range(node["num-children"]))
    time_literal = node.get("value") if str(node.get("dataType")).startswith(("date", "timestamp")) else None
    return ExpressionNode(
        node["class"].rpartition(".")[-1].partition("$$")[0], tuple(name_parts.split(", ")), time_literal, children
    )


def is_nondeterministic(rows: DataFrame) -> bool:
    """Return True if rows depend on random numbers, the clock, or a cast of a string like 'now'; see `Engine`."""
    optimizer = _get_jvm(rows.sparkSession).org.apache.spark.sql.catalyst.optimizer
    plan = rows._jdf.queryExecution().analyzed()  # noqa: SLF001
    if not plan.deterministic():
        return True
    # Some functions are replaced by casts, whose string can be a time relative to the clock: to_timestamp('now').
    replaced = _get_optimizer_rule(optimizer, "ReplaceExpressions").apply(plan)
    return any(
        not _get_optimizer_rule(optimizer, name).apply(replaced).fastEquals(replaced)
        for name in ("ComputeCurrentTime", "SpecialDatetimeValues")
    )


def _get_optimizer_rule(optimizer: Any, name: str) -> Any:
    return getattr(getattr(optimizer, f"{name}$"), "MODULE$")


def analyze_filter(rows: DataFrame, condition: Column) -> AnalyzedFilter:
    """Analyze and optimize a filter without running it; see `Engine`."""
    spark, plan = rows.sparkSession, rows.where(condition)._jdf.queryExecution()  # noqa: SLF001
    references = Expression(spark, plan.analyzed().condition()).references
    optimized = Expression(spark, plan.optimizedPlan())
    if optimized.class_name != "Filter":  # it is always true or always false
        return AnalyzedFilter(references, [], [])
    conjuncts = Expression(spark, optimized.node.condition()).split_conjuncts()
    not_null = [part.references[0] for part in conjuncts if part.class_name == "IsNotNull"]
    comparisons = (part.to_comparison() for part in conjuncts)
    return AnalyzedFilter(references, not_null, [comparison for comparison in comparisons if comparison])


def _get_jvm(spark: SparkSession) -> Any:
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    assert jvm is not None, "a classic session has a JVM"
    return jvm


def supports_conditional_put(spark: SparkSession, path: str) -> bool:
    """Return True if S3 refuses the second of two puts of an object, each on condition that it does not exist.

    The object at this path is overwritten, and deleted at the end.
    """
    hadoop_path = _get_jvm(spark).org.apache.hadoop.fs.Path(path)
    file_system = hadoop_path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001

    def put() -> None:
        builder = file_system.createFile(hadoop_path).overwrite(True)
        builder.must("fs.option.create.conditional.overwrite", "true").build().close()

    try:
        put()
        put()
    except Py4JJavaError as error:
        if "412" not in str(error.java_exception):
            raise
        return True
    finally:
        file_system.delete(hadoop_path, False)
    return False
