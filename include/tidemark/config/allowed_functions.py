"""What an expression of a pipeline file may call and read, whichever parser has taken it apart.

Each of Spark's functions stands in `allowed_functions.csv`, which `bin/list-functions` brings up to another version of Spark,
with why it is refused, or with nothing: then it is allowed. Reviewed by hand: an allowed one gives the same for the
same row in every run, and knows nothing but the row.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from tidemark.errors import nearest

CATALOGUE = Path(__file__).with_name("allowed_functions.csv")
"""Columns: `function`, Spark's own `group` of it, and `refused`: a key of `WHY`, or nothing."""

WHY = {
    "random": "gives something else in each run, where a replay gives the same; take a column's hash, by xxhash64()",
    "clock": "tells the time of the run; take a column with a time, and to_unix_timestamp for its number",
    "session": "tells of the session, not of the row; write the value itself",
    "task": "tells how Spark has cut its work, which is another way in each run; take a column",
    "java": "calls Java; take a function of SQL",
    "aggregate": "is over many rows, and an expression has one row or pair; aggregate where the emissions are read",
    "rows": "makes other rows of a row; give `flatten` the array, or do so where the emissions are read",
    "stops": "stops the job with a row's values; write an expectation under quality",
    "files": "can read files; parse the column where the table is written",
    "unreviewed": "has not been reviewed; compute the column where the table is written",
}
"""Why a function is refused, with the remedy."""

_OF_THE_GRAMMAR = ("timestampadd", "timestampdiff")
"""Functions that Spark's grammar has and its catalogue has not."""
_COLUMN = re.compile(r"(left|right)(_.*)?|_(slice|emission|pane|result_time|(right_)?window_(start|end))", re.DOTALL)


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


CheckColumn = Callable[[str], None]
"""Sees that a name is that of a column of the rows that an expression is over; a ValueError says which there are."""


_BARE = words(
    """
    current_catalog current_database current_date current_schema current_time current_timestamp current_user
    localtimestamp session_user
    """
)
"""What Spark takes for a call without brackets where no column is called so, and hardly a column is."""


@cache
def catalogue() -> Mapping[str, str]:
    """Spark's functions in lower case, each with why it is refused (a key of `WHY`), empty if it is allowed."""
    with CATALOGUE.open(encoding="utf-8", newline="") as file:
        return {row["function"]: row["refused"] for row in csv.DictReader(file)} | dict.fromkeys(_OF_THE_GRAMMAR, "")


def check_function(path: Sequence[str]) -> None:
    """See that a function may be called.

    Raises:
        ValueError: names it, why not, and the remedy.
    """
    name = path[-1].lower()
    if len(path) > 1:
        raise ValueError(
            f"{'.'.join(path)}() names a catalog or a schema; only Spark's own functions serve, by their bare names"
        )
    if (why := catalogue().get(name)) is None:
        near = get_close_matches(name, (known for known, reason in catalogue().items() if not reason), n=1)
        hint = f"did you mean {near[0]}?" if near else "take one of these"
        raise ValueError(f"{name}() is none of Spark's own functions; {hint}")
    if why:
        raise ValueError(f"{name}() {WHY[why]}")


def check_column(name: str) -> None:
    """See that a name is that of a column of a pair, or of what Tidemark says of it.

    Spark takes bare words such as `current_user` for functions, and tables have columns that nobody has written.

    Raises:
        ValueError: says which columns there are.
    """
    if not _COLUMN.fullmatch(name.lower()):
        raise ValueError(f"{name} is no column of the join; columns are left_NAME and right_NAME")


@dataclass(frozen=True)
class ColumnsOf:
    """`check_column` for expressions over one input's own columns."""

    names: tuple[str, ...] | None = None
    """None where no table has been looked at: then only what can be no column is refused."""

    def __call__(self, name: str) -> None:
        """See that a name is that of a column.

        Raises:
            ValueError: says which columns there are, or that Spark takes the name for a function.
        """
        if self.names is None:
            if name.lower() in _BARE:
                raise ValueError(f"{name} tells the time or the user of the run; take a column, called otherwise")
        elif name.lower() not in {known.lower() for known in self.names}:
            raise ValueError(f"{name} is no column of it; {nearest(name, self.names, 'it has')}")
