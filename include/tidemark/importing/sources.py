"""Import a join from what a user names: a compiled plan, a script of Flink SQL, or a function that makes a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.errors import ImportRefusedError, UserError, prefix_errors, suggest_name
from tidemark.importing.draft import Omission
from tidemark.importing.flink_bounds import CLEANUP, TIME_ZONE
from tidemark.importing.flink_join import IDLE_TIMEOUT, JobSettings, import_flink_join
from tidemark.importing.flink_plan import FlinkPlan, PlanNode, parse_plan
from tidemark.importing.flink_planner import compile_script
from tidemark.importing.sql_script import list_option_hints
from tidemark.importing.stream_join import StreamJoin, choose_join

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLAN_SUFFIX, _SQL_SUFFIX = ".json", ".sql"
_MAX_BYTES = 50_000_000


def import_joins(
    source: str, number: int | None, settings: Mapping[str, str], start_session: Callable[[], SparkSession]
) -> list[StreamJoin]:
    """Import a join, or all joins of a chain, each after those whose output it reads.

    Args:
        source: Path of a compiled plan (.json) or of a script of Flink SQL (.sql), or MODULE:FUNCTION of a Spark query.
        number: Number of the join, from 1, in the order of the plan; None for the only one, or for all of a chain.
        settings: Settings of the job, in addition to those of the plan or script.
        start_session: Starts a Spark session, for a Spark query.

    Raises:
        UserError: The source cannot be read.
        ImportRefusedError: A pipeline cannot express the join.
    """
    if Path(source).suffix == _PLAN_SUFFIX:
        return _list_imported(import_compiled_plan(Path(source), number, settings), number)
    if Path(source).suffix == _SQL_SUFFIX:
        return _list_imported(import_flink_sql(Path(source), number, settings), number)
    if ":" in source:
        return [import_spark_query(start_session(), source, number, settings)]
    raise UserError(f"{source} cannot be imported. Give a compiled plan (.json), a script (.sql) or MODULE:FUNCTION.")


def list_unread_settings(source: str, names: Iterable[str]) -> tuple[Omission, ...]:
    """List the settings of a job that its import does not read, such as misspelt ones.

    Args:
        source: As for `import_joins`.
        names: Names of the settings. Flink's planner reads all of those of a script.
    """
    if Path(source).suffix == _SQL_SUFFIX:
        return ()
    if Path(source).suffix == _PLAN_SUFFIX:
        read: tuple[str, ...] = (CLEANUP, IDLE_TIMEOUT, TIME_ZONE)
    else:
        from tidemark.importing.spark_query import READ_SETTINGS  # noqa: PLC0415 - imports Spark

        read = READ_SETTINGS
    return tuple(
        Omission(name, f"The import does not read it. {suggest_name(name, read)}")
        for name in sorted(set(names) - set(read))
    )


def _list_imported(join: StreamJoin, number: int | None) -> list[StreamJoin]:
    return list(join.list_chain()) if number is None else [join]


def import_compiled_plan(path: Path, number: int | None, settings: Mapping[str, str]) -> StreamJoin:
    """Import a join of the file that COMPILE PLAN has written.

    Args:
        path: The JSON file.
        number: Number of the join, from 1, in the order of the plan; None for the only one, or for the last of a chain.
        settings: Flink settings of the job.

    Raises:
        UserError: The file cannot be read.
        ImportRefusedError: A pipeline cannot express the join.
    """
    with prefix_errors(str(path)):
        plan = parse_plan(_read_text(path))
        node = _choose_join([(plan, node) for node in plan.list_joins()], [plan], number)[1]
        return _import_join_node(plan, node, JobSettings(settings, {}, is_job_plan=True, name=path.stem))


def import_flink_sql(path: Path, number: int | None, settings: Mapping[str, str]) -> StreamJoin:
    """Import a join of a script with tables and queries, as Flink's planner compiles it.

    Args:
        path: The script.
        number: Number of the join, from 1, in the order of the queries; None for the only one, or the last of a chain.
        settings: Flink settings of the job, in addition to SET statements.

    Raises:
        UserError: The file cannot be read, or Flink is not installed.
        ImportRefusedError: Flink refuses the script, or a pipeline cannot express the join.
    """
    with prefix_errors(str(path)):
        text = _read_text(path)
        script = compile_script(text, settings)
        joins = [(plan, node) for plan in script.plans for node in plan.list_joins()]
        plan, node = _choose_join(joins, script.plans, number)
        position = script.plans.index(plan)
        plan_settings = {**settings, **script.settings[position]}
        before = sum(len(earlier.list_joins()) for earlier in script.plans[:position])
        job = JobSettings(plan_settings, script.tables, is_job_plan=False, name=path.stem, joins_before=before)
        join = _import_join_node(plan, node, job)
    ignored = tuple(Omission("statement", f"{beginning} ... is not run.") for beginning in script.ignored)
    hints = tuple(
        Omission("hint", f"{hint} is not read. Pass --set for what it says of watermarks.")
        for hint in list_option_hints(text)
    )
    return replace(join, omissions=(*join.omissions, *ignored, *hints))


def _import_join_node(plan: FlinkPlan, node: PlanNode, job: JobSettings) -> StreamJoin:
    """Import a join, and refuse a plan that lacks a part.

    Raises:
        ImportRefusedError: A pipeline cannot express the join, or the plan has an unknown form.
    """
    try:
        return import_flink_join(plan, node, job)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ImportRefusedError(
            f"the plan has an unknown form at the {node.label}: {error!r}. Compile it with a Flink from 1.17 to 2.3."
        ) from None


def import_spark_query(spark: SparkSession, source: str, number: int | None, settings: Mapping[str, str]) -> StreamJoin:
    """Import a join of the streaming DataFrame that a function returns.

    Args:
        spark: The session.
        source: MODULE:FUNCTION.
        number: Number of the join, from 1, the outermost first; None if it is the only one.
        settings: Spark settings of the query, in place of the session's.

    Raises:
        UserError: There is no such function, or it failed.
        ImportRefusedError: A pipeline cannot express the join.
    """
    # Spark is imported only here, because the other sources need none.
    from tidemark.importing.spark_join import import_spark_join  # noqa: PLC0415
    from tidemark.importing.spark_query import (  # noqa: PLC0415
        build_query,
        read_plan,
        read_settings,
        with_job_settings,
    )

    with prefix_errors(source), with_job_settings(spark, settings):
        query = build_query(spark, source)
        job_settings = {**read_settings(spark), **settings}
        try:
            return import_spark_join(read_plan(query), source.rpartition(":")[2], number, job_settings)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ImportRefusedError(f"the query's plan has an unknown form: {error!r}. Simplify the query.") from None


def _choose_join(
    joins: list[tuple[FlinkPlan, PlanNode]], plans: list[FlinkPlan], number: int | None
) -> tuple[FlinkPlan, PlanNode]:
    """Choose a join of Flink's plans by its number. Without one it is the only join, or the last of the only chain.

    Raises:
        ImportRefusedError: There is none, or the number does not choose one.
    """
    if not joins:
        raise ImportRefusedError(plans[0].explain_missing_join() if plans else "there is no query. Add an INSERT.")
    last = [(plan, node) for plan, node in joins if not any(plan.list_next_joins(node))]
    if number is None and len(last) == 1:
        return last[0]
    return choose_join(joins, number, lambda join: join[1].label)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} has more than {_MAX_BYTES:,} bytes. Give the plan of one query.")
        return path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Check the path.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} cannot be read: it is not UTF-8. Convert it.") from None
