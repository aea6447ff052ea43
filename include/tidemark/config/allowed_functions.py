"""Check which functions and columns an expression in a pipeline file may use.

`allowed_functions.csv` lists each of Spark's functions, with the reason if it is refused. `bin/list-functions` updates
it to another Spark version. Entries are reviewed by hand: an allowed function is deterministic and depends on the row
alone. Both parsers use these checks (`config.expressions`, `spark.expression_sandbox`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from tidemark.errors import suggest_name

CATALOGUE_FILE = Path(__file__).with_name("allowed_functions.csv")
"""CSV columns: `function`; `group` in Spark's documentation; `refused`, a key of `REFUSAL_REASONS` or empty."""

REFUSAL_REASONS = {
    "random": "returns another value in each run, so a replay would differ. Use a column's hash, such as xxhash64().",
    "clock": "returns the time of the run. Use a time column, and to_unix_timestamp for its number.",
    "session": "depends on the session, not on the row. Write the value itself.",
    "task": "depends on how Spark partitions its work. Use a column.",
    "java": "calls Java. Use a function of SQL.",
    "aggregate": "aggregates many rows, but an expression has one row or pair. Aggregate the emissions instead.",
    "rows": "changes the number of rows. Set `explode` to the array, or do it with the emissions.",
    "stops": "fails the job with a row's values. Write an expectation under quality.",
    "files": "can read files. Parse the column when the table is written.",
    "unreviewed": "has not been reviewed. Compute the column when the table is written.",
}
"""Reasons to refuse a function, with the remedy."""

_GRAMMAR_FUNCTIONS = ("timestampadd", "timestampdiff")
"""Functions in Spark's grammar that are missing in its function list."""
_COLUMN = re.compile(r"(left|right)(_.*)?|_(slice|emission|pane|result_time|(right_)?window_(start|end))", re.DOTALL)


def split_words(text: str) -> frozenset[str]:
    """Split text into its set of words."""
    return frozenset(text.split())


ColumnCheck = Callable[[str], None]
"""Function that raises a ValueError if a name is not a column of the rows of an expression."""

_PARAMETERLESS_FUNCTIONS = split_words(
    """
    current_catalog current_database current_date current_schema current_time current_timestamp current_user
    localtimestamp session_user
    """
)
"""Names that Spark resolves to a function without parentheses if no column has the name."""


@cache
def load_catalogue() -> Mapping[str, str]:
    """Return Spark's functions in lower case with the key of their refusal reason, empty if allowed."""
    with CATALOGUE_FILE.open(encoding="utf-8", newline="") as file:
        refusals = {row["function"]: row["refused"] for row in csv.DictReader(file)}
    return refusals | dict.fromkeys(_GRAMMAR_FUNCTIONS, "")


def check_function(path: Sequence[str]) -> None:
    """Check that a function is allowed.

    Args:
        path: The function's name, after catalog and schema if there are any.

    Raises:
        ValueError: The function is unknown or refused. The message has reason and remedy.
    """
    name = path[-1].lower()
    if len(path) > 1:
        raise ValueError(f"{'.'.join(path)}() names a catalog or a schema. Use Spark's own functions without a prefix.")
    if (reason := load_catalogue().get(name)) is None:
        allowed = [function for function, refusal in load_catalogue().items() if not refusal]
        matches = get_close_matches(name, allowed, n=1)
        hint = f"Did you mean {matches[0]}?" if matches else "Use Spark's own functions only."
        raise ValueError(f"{name}() is not a function of Spark. {hint}")
    if reason:
        raise ValueError(f"{name}() {REFUSAL_REASONS[reason]}")


def check_column(name: str) -> None:
    """Check that a name is a column of a pair, or a column that Tidemark adds.

    Spark would resolve bare names such as `current_user` to functions, and tables have hidden columns such as
    `_metadata`.

    Raises:
        ValueError: The name is not such a column.
    """
    if not _COLUMN.fullmatch(name.lower()):
        raise ValueError(f"{name} is not a column of the join. Columns are named left_NAME and right_NAME.")


@dataclass(frozen=True)
class InputColumns:
    """Column check for expressions over the columns of one input."""

    names: tuple[str, ...] | None = None
    """Columns of the input's table. None before the table is read: only names that cannot be columns are refused."""

    def __call__(self, name: str) -> None:
        """Check that a name is a column of the input.

        Raises:
            ValueError: The column does not exist, or Spark would resolve the name to a function.
        """
        if self.names is None:
            if name.lower() in _PARAMETERLESS_FUNCTIONS:
                raise ValueError(f"{name} returns the time or the user of the run. Use a column with another name.")
        elif name.lower() not in {column.lower() for column in self.names}:
            raise ValueError(f"{name} is not a column of the input. {suggest_name(name, self.names)}")
