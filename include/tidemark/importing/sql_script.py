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


def split_statements(script: str) -> list[str]:
    r"""Split a script at the semicolons outside of quotes and comments. Comments are removed, hints are not.

    >>> split_statements("SET 'a' = ';'; -- first;\nSELECT /*+ X */ 1;")
    ["SET 'a' = ';'", 'SELECT /*+ X */ 1']
    """
    statements, start, text = [], 0, ""
    for match in _TOKEN.finditer(script):
        if match["text"] or (match["comment"] or "").startswith(_HINT):
            continue
        text += script[start : match.start()] + (" " if match["comment"] else "")
        start = match.end()
        if match["end"]:
            statements.append(text)
            text = ""
    statements.append(text + script[start:])
    return [statement.strip() for statement in statements if statement.strip()]
