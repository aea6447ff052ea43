"""Split a script of Flink SQL into statements, as Flink's SQL client does."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
    (?P<comment>--[^\n]*|/\*.*?\*/)
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`)
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
_HINT = "/*+"
_OPTIONS_HINT = re.compile(r"/\*\+\s*OPTIONS\s*\(.*?\)\s*\*/", re.IGNORECASE | re.DOTALL)
"""Hint with options of a connector."""
_PREFIX = re.compile(
    r"""
    COMPILE\s+(?:AND\s+EXECUTE\s+)?PLAN\s+'(?:[^']|'')*'\s+(?:IF\s+NOT\s+EXISTS\s+)?FOR\s+
    | EXPLAIN\s+(?:[\w\s,]*\s)?(?=STATEMENT\s+SET\s)
    | EXECUTE\s+(?=INSERT\s)
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Beginning of a statement that compiles, explains or runs an INSERT or a set of them."""
_STATEMENT_SET = re.compile(r"(?:EXECUTE\s+)?STATEMENT\s+SET\s+BEGIN\s+", re.IGNORECASE)
"""Beginning of a set of statements, up to END."""


def split_statements(script: str) -> list[str]:
    r"""Split a script at the semicolons outside of quotes and comments. Comments are removed, hints are not.

    Hints with options of a connector are removed, too, because the connector is replaced. A set of statements becomes
    its statements, also if the script compiles or explains the set. A COMPILE PLAN becomes its INSERT.

    >>> split_statements("SET 'a' = ';'; -- first;\nSELECT /*+ X */ 1;")
    ["SET 'a' = ';'", 'SELECT /*+ X */ 1']
    >>> split_statements("EXECUTE STATEMENT SET BEGIN INSERT INTO a TABLE b; INSERT INTO c TABLE d; END;")
    ['INSERT INTO a TABLE b', 'INSERT INTO c TABLE d']
    >>> split_statements("COMPILE PLAN 'p' FOR STATEMENT SET BEGIN INSERT INTO a TABLE b; END; EXPLAIN TABLE c")
    ['INSERT INTO a TABLE b', 'EXPLAIN TABLE c']
    >>> split_statements("EXPLAIN STATEMENT SET BEGIN INSERT INTO a TABLE b; END; EXECUTE INSERT INTO c TABLE d")
    ['INSERT INTO a TABLE b', 'INSERT INTO c TABLE d']
    """
    statements, start, text = [], 0, ""
    for match in _TOKEN.finditer(script):
        comment = match["comment"] or ""
        is_hint = comment.startswith(_HINT) and not _OPTIONS_HINT.fullmatch(comment)
        if match["text"] or is_hint:
            continue
        text += script[start : match.start()] + (" " if match["comment"] else "")
        start = match.end()
        if match["end"]:
            statements.append(text)
            text = ""
    statements.append(text + script[start:])
    plain = (_strip_set(statement.strip()) for statement in statements)
    return [statement for statement in plain if statement and statement.upper() != "END"]


def list_option_hints(script: str) -> list[str]:
    """List the hints with options of a connector.

    >>> list_option_hints("SELECT * FROM t /*+ OPTIONS('a'='b') */")
    ["/*+ OPTIONS('a'='b') */"]
    """
    return [match[0] for match in _OPTIONS_HINT.finditer(script)]


def _strip_set(statement: str) -> str:
    if prefix := _PREFIX.match(statement):
        statement = statement[prefix.end() :]
    match = _STATEMENT_SET.match(statement)
    return statement[match.end() :] if match else statement
