"""Define which tables an erasure covers, and what their rows are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.tables.table_changes import LEDGER_MANAGED_TABLES, QUARANTINED

RowKind = Literal["input row", "emission"]
"""`input row`: the row of one input as a struct, in the column `left` or `right` that `side` names. `emission`: output
columns of the join, with `_emission`."""

REJECTED_OUTPUT = "rejected_output"

ROW_KINDS: Mapping[str, RowKind] = {
    "emissions": "emission",
    OUTPUT_STREAM: "emission",
    "late": "input row",
    "checkpoint": "input row",
    QUARANTINED: "emission",
    REJECTED_OUTPUT: "emission",
}
"""Kind of row by table, of all tables that contain rows of the inputs. An erasure covers these tables."""

ERASED_LEDGER_TABLES = tuple(name for name in ROW_KINDS if name in LEDGER_MANAGED_TABLES)
"""The tables of `ROW_KINDS` that the ledger manages: these two constants decide how an erasure covers them.

A table that does not follow it has code of its own in `plan` and `row_erasure`, as `REJECTED_OUTPUT` has.
"""
assert ROW_KINDS.keys() - ERASED_LEDGER_TABLES == {REJECTED_OUTPUT}
