"""List the columns of an input that the settings of a pipeline read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from tidemark.config.expressions import is_column_path, list_columns, use_spelling
from tidemark.config.inputs import Input
from tidemark.config.sides import SideName

if TYPE_CHECKING:
    from tidemark.config.pipeline import Pipeline


def list_read_columns(pipeline: Pipeline, side: SideName, existing: Collection[str]) -> list[str]:
    """List the columns of an input that keys, filters and expressions read, but no times.

    Args:
        pipeline: The pipeline.
        side: Side of the input.
        existing: Columns of the input. A key can have any name among them, and SQL ignores the case of letters.
    """
    source: Input = getattr(pipeline, side)
    names = [source.partition] if source.partition else []
    sql_columns = list_columns(source.where or "true")
    for pair in pipeline.join.keys:
        key: str = getattr(pair, side)
        if key in existing or is_column_path(key):
            names.append(key if key in existing else key.partition(".")[0])
        else:
            sql_columns += list_columns(key)
    expressions = [pipeline.join.condition or "true", pipeline.explode or "true"]
    pair_columns = [name for expression in expressions for name in list_columns(expression)]
    match pipeline.select:
        case list(selected):
            pair_columns += selected
        case dict(selected):
            pair_columns += [name for expression in selected.values() for name in list_columns(expression)]
    sql_columns += strip_prefix(pair_columns, side)
    return names + use_spelling(sql_columns, list(existing))


def strip_prefix(names: Iterable[str], side: SideName) -> list[str]:
    """Return the names of an input's columns by those of output columns."""
    prefix = f"{side}_"
    return [name[len(prefix) :] for name in names if name.lower().startswith(prefix)]
