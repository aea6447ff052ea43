"""Compile Flink SQL to plans, in the virtual environment of Flink; started by `importing.flink_planner`.

Usage: python flink_planner_process.py REQUEST ANSWER. The request is a JSON object of `statements` and `settings`. The
answer has `plans` (each a `plan` with its `settings`), `tables` (options by name) and `ignored` statements, or `error`.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyflink.java_gateway import get_gateway
from pyflink.table import EnvironmentSettings, TableEnvironment

_SOURCE = {"connector": "filesystem", "path": "/does-not-exist", "format": "json"}
"""Connector of all tables while a plan is compiled: it needs no server, and takes columns of every type."""
_SINK = {"connector": "blackhole"}
"""Connector of the table that an INSERT writes: it takes every kind of change."""
_STATEMENT_SETS = ("BeginStatementSetOperation", "EndStatementSetOperation")
_DEFINITIONS = ("Use", "Drop", "AlterView", "CreateDatabase", "CreateCatalogFunction", "CreateTempSystemFunction")
"""Beginnings of the operations that run as they are."""
_CREATE_TABLE = re.compile(r"CREATE\s+(OR\s+REPLACE\s+)?(TEMPORARY\s+)?TABLE\b", re.IGNORECASE)
_ALTER_TABLE = re.compile(r"ALTER\s+TABLE\b", re.IGNORECASE)
_WORD = re.compile(r"'(?:[^']|'')*'|`(?:[^`]|``)*`|[()]|\w+")


class Script:
    """Statements of one SQL script, and the plans of its queries."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        self.internal = self.environment._j_tenv  # noqa: SLF001 - the parser has no Python interface
        self.settings = dict(settings)
        self.plans: list[Any] = []
        self.tables: dict[str, dict[str, str]] = {}
        self.originals: dict[str, tuple[Any, Any]] = {}
        """Identifiers and tables by name, with the connectors of the script."""
        self.ignored: list[str] = []
        self.last_view: str | None = None
        for name, value in settings.items():
            self.environment.get_config().set(name, value)

    def run(self, statements: list[str]) -> dict[str, Any]:
        """Run the statements, and return the answer."""
        for statement in statements:
            self._run_statement(statement)
        if not self.plans and self.last_view:
            self._compile_query(f"TABLE {self.last_view}")
        return {"plans": self.plans, "tables": self.tables, "ignored": self.ignored}

    def _run_statement(self, statement: str) -> None:
        if _ALTER_TABLE.match(statement) or (_CREATE_TABLE.match(statement) and not _find_query(statement)):
            self._change_table(statement)
            return
        [operation] = self.internal.getParser().parse(statement)
        kind = operation.getClass().getSimpleName()
        if kind == "SetOperation":
            self._set(operation)
        elif kind in ("CreateTableASOperation", "ReplaceTableAsOperation"):
            self._create_table_of_query(statement, operation.getCreateTableOperation())
        elif kind == "SinkModifyOperation":
            self._compile_insert(statement, operation)
        elif kind == "PlannerQueryOperation":
            self._compile_query(statement)
        elif not self._define(statement, kind, operation) and kind not in _STATEMENT_SETS:
            self.ignored.append(" ".join(statement.split()[:3]))

    def _define(self, statement: str, kind: str, operation: Any) -> bool:
        """Run a statement that changes catalogs, views or functions, or drops something; False for another one."""
        if kind == "CreateCatalogOperation":
            name = operation.getCatalogName()
            self.environment.execute_sql(f"CREATE CATALOG {_quote(name)} WITH ('type' = 'generic_in_memory')")
        elif kind == "CreateViewOperation":
            self.environment.execute_sql(statement)
            self.last_view = operation.getViewIdentifier().asSerializableString()
        elif kind == "DropTableOperation":
            self.internal.getCatalogManager().dropTable(operation.getTableIdentifier(), operation.isIfExists())
            self._hide_connectors()
        elif kind.startswith(_DEFINITIONS):
            self.environment.execute_sql(statement)
        else:
            return False
        return True

    def _set(self, operation: Any) -> None:
        if operation.getKey().isPresent() and operation.getValue().isPresent():
            name, value = operation.getKey().get(), operation.getValue().get()
            self.environment.get_config().set(name, value)
            self.settings[name] = value

    def _change_table(self, statement: str) -> None:
        """Run a CREATE TABLE or ALTER TABLE. All tables have their own options then, which LIKE copies."""
        for identifier, table in self.originals.values():
            _replace(self.internal.getCatalogManager(), identifier, table)
        [operation] = self.internal.getParser().parse(statement)
        if operation.getClass().getSimpleName().startswith("CreateTable"):
            self._create_table(operation)
        else:
            self.environment.execute_sql(statement)
            if operation.getClass().getSimpleName() == "AlterTableRenameOperation":
                renamed = operation.getNewTableIdentifier()
                self.originals[renamed.asSummaryString()] = renamed, None
        self._hide_connectors()

    def _create_table(self, operation: Any) -> None:
        identifier, catalogs = operation.getTableIdentifier(), self.internal.getCatalogManager()
        # Plans lack the schema of temporary tables, so that these are permanent here.
        if operation.isTemporary():
            catalogs.dropTable(identifier, True)
        table = _without_metadata(operation.getCatalogTable())
        catalogs.createTable(table, identifier, operation.isIgnoreIfExists())
        self.originals[identifier.asSummaryString()] = identifier, None

    def _hide_connectors(self) -> None:
        """Keep the tables as they are now, and replace their connectors by one that needs no server."""
        catalogs = self.internal.getCatalogManager()
        for name, (identifier, original) in list(self.originals.items()):
            current = catalogs.getTable(identifier)
            if not current.isPresent():
                del self.originals[name]
                continue
            table = current.get().getTable()
            table = original if dict(table.getOptions()) == _SOURCE else _without_metadata(table)
            self.originals[name] = identifier, table
            self.tables[name] = dict(table.getOptions())
            _replace(catalogs, identifier, table.copy(_to_java(_SOURCE)))

    def _create_table_of_query(self, statement: str, operation: Any) -> None:
        """Run CREATE TABLE ... AS as a CREATE TABLE and an INSERT."""
        query = statement[_find_query(statement) :]
        columns = ", ".join(map(_quote, self.internal.sqlQuery(query).getResolvedSchema().getColumnNames()))
        identifier = operation.getTableIdentifier()
        self.internal.getCatalogManager().dropTable(identifier, True)
        self._create_table(operation)
        self._hide_connectors()
        self._run_statement(f"INSERT INTO {identifier.asSerializableString()} ({columns}) {query}")

    def _compile_insert(self, statement: str, operation: Any) -> None:
        """Compile an INSERT, whose sink has another connector meanwhile."""
        resolved = operation.getContextResolvedTable()
        catalogs, identifier, table = self.internal.getCatalogManager(), resolved.getIdentifier(), resolved.getTable()
        replace = _replace_temporary if resolved.isTemporary() else _replace
        replace(catalogs, identifier, table.copy(_to_java(_SINK)))
        try:
            self._compile(statement)
        finally:
            replace(catalogs, identifier, table)

    def _compile_query(self, query: str) -> None:
        """Compile a SELECT, into a table of its columns. Only one column may be a time attribute there, so none is."""
        schema = self.internal.sqlQuery(query).getResolvedSchema()
        types = [str(column.getDataType().getLogicalType().asSummaryString()) for column in schema.getColumns()]
        names = [_quote(str(column.getName())) for column in schema.getColumns()]
        plain = [text.replace(" *ROWTIME*", "").replace(" *PROCTIME*", "") for text in types]
        columns = ", ".join(f"{name} {text}" for name, text in zip(names, plain, strict=True))
        sink = f"`_query_{len(self.plans)}`"
        self.environment.execute_sql(f"CREATE TEMPORARY TABLE {sink} ({columns}) WITH ('connector' = 'blackhole')")
        values = (
            f"CAST({name} AS {text.removesuffix(' NOT NULL')})" if text != typed else name
            for name, text, typed in zip(names, plain, types, strict=True)
        )
        body = query.strip().rstrip(";")
        self._compile(f"INSERT INTO {sink} SELECT {', '.join(values)} FROM (\n{body}\n)")  # noqa: S608 - the user's own

    def _compile(self, insert: str) -> None:
        plan = json.loads(self.environment.compile_plan_sql(insert).as_json_string())
        self.plans.append({"plan": plan, "settings": dict(self.settings)})


def _find_query(statement: str) -> int | None:
    """Return the position after the AS of CREATE TABLE ... AS; None for another statement."""
    depth = 0
    for match in _WORD.finditer(statement):
        depth += (match[0] == "(") - (match[0] == ")")
        if depth == 0 and match[0].upper() == "AS":
            return match.end()
    return None


def _replace(catalogs: Any, identifier: Any, table: Any) -> None:
    catalogs.dropTable(identifier, True)
    catalogs.createTable(table, identifier, False)


def _replace_temporary(catalogs: Any, identifier: Any, table: Any) -> None:
    catalogs.dropTemporaryTable(identifier, True)
    catalogs.createTemporaryTable(table, identifier, False)


def _without_metadata(table: Any) -> Any:
    """Return a table whose metadata columns, which only its own connector has, are plain columns."""
    schema = table.getUnresolvedSchema()
    if not any(_class_name(column) == "UnresolvedMetadataColumn" for column in schema.getColumns()):
        return table
    java = get_gateway().jvm.org.apache.flink.table
    builder = java.api.Schema.newBuilder()
    for column in schema.getColumns():
        if _class_name(column) == "UnresolvedComputedColumn":
            builder.columnByExpression(column.getName(), column.getExpression())
        else:
            builder.column(column.getName(), column.getDataType())
    for watermark in schema.getWatermarkSpecs():
        builder.watermark(watermark.getColumnName(), watermark.getWatermarkExpression())
    if schema.getPrimaryKey().isPresent():
        builder.primaryKey(schema.getPrimaryKey().get().getColumnNames())
    plain = java.catalog.CatalogTable.newBuilder().schema(builder.build())
    return plain.partitionKeys(table.getPartitionKeys()).options(table.getOptions()).build()


def _class_name(java_object: Any) -> str:
    return str(java_object.getClass().getSimpleName())


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _to_java(options: dict[str, str]) -> Any:
    java_map = get_gateway().jvm.java.util.HashMap()
    for name, value in options.items():
        java_map.put(name, value)
    return java_map


def _list_messages(error: Any) -> Iterator[str]:
    """Yield the messages of an exception and its causes, outermost first."""
    while error is not None:
        if error.getMessage():
            yield str(error.getMessage())
        error = error.getCause()


def main() -> None:
    """Compile the script, and write the plans or Flink's message to the answer file."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        answer = Script(request["settings"]).run(request["statements"])
    except Py4JJavaError as error:
        answer = {"error": list(_list_messages(error.java_exception))[-1]}
    except Exception as error:  # noqa: BLE001 - pyflink converts some of Flink's exceptions
        answer = {"error": str(error)}
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
