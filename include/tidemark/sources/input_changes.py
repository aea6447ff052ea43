"""Which rows an input has gained or lost since one of its versions, read from the table's own log."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidemark.delta.pipeline_tables import DeltaInput
from tidemark.delta.table import file_name, log_actions
from tidemark.errors import InputError
from tidemark.formatting import quoted
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.sources.streaming_checkpoint_source import ARRIVAL


@dataclass(frozen=True)
class _Action:
    """A file that came or went in a version."""

    version: int
    file_name: str
    changes_data: bool
    removed: bool


@dataclass(frozen=True)
class InputChanges:
    """What happened to an input table after version `seen`, up to the version that is read.

    Rewrites that change no row, such as OPTIMIZE, are not new rows.
    """

    table: DeltaInput
    seen: int
    added: dict[int, set[str]]
    """Names of the files with new rows, by version."""
    changed: tuple[int, ...]
    """Versions that deleted or changed rows."""
    whole: frozenset[str]
    """Names of files of version `seen` that went with all of their rows."""
    in_place: bool
    """Whether other rows went: of files that came again with the others, or that are younger than `seen`. Then files do
    not tell which rows have landed."""
    touched: frozenset[str]
    """Names of all files that came or went."""

    @classmethod
    def since(cls, table: DeltaInput, seen: int) -> InputChanges:
        """Read the log.

        Raises:
            InputError: it no longer reaches back, or the table is older than `seen`.
        """
        if table.version == seen:
            return cls(table, seen, {}, (), frozenset(), in_place=False, touched=frozenset())
        if table.version < seen:
            raise InputError(
                f"input {table.name} is at version {table.version}, but the ledger has read version {seen}: the table "
                "was replaced or restored from a copy; restore the table, or reprocess from the first slice"
            )
        try:
            actions = [one for version in range(seen + 1, table.version + 1) for one in _actions(table, version)]
        except FileNotFoundError:
            raise InputError(
                f"the log of input {table.name} no longer has versions {seen + 1} to {table.version}, so new rows "
                "cannot be told from old ones; keep delta.logRetentionDuration longer than the pause between runs, "
                "and reprocess from the first slice"
            ) from None
        added: dict[int, set[str]] = {}
        for one in actions:
            if one.changes_data and not one.removed:
                added.setdefault(one.version, set()).add(one.file_name)
        gone = [one for one in actions if one.changes_data and one.removed]
        came = {one.file_name for one in actions if not one.removed}
        whole = frozenset(one.file_name for one in gone if one.version not in added and one.file_name not in came)
        return cls(
            table,
            seen,
            added,
            changed=tuple(sorted({one.version for one in gone})),
            whole=whole,
            in_place=any(one.file_name not in whole for one in gone),
            touched=frozenset(one.file_name for one in actions),
        )

    def new(self, passed_over: Collection[str] = ()) -> DataFrame | None:
        """Rows that landed, but for those of some files that nobody asks for; None for none."""
        if self.in_place:
            others = self.touched - self.whole
            return _more(self._touched(self.table.version, others), self._touched(self.seen, others))
        added = {version: wanted for version, names in self.added.items() if (wanted := names.difference(passed_over))}
        if not added:
            return None
        live = {file_name(path) for path in self.table.paths}
        gone = {version: sorted(names - live) for version, names in added.items() if names - live}
        parts = [self.table.of_files(sorted(set().union(*added.values()) & live))]
        # Files that a later rewrite replaced are read from the version that added them.
        parts += [self.table.of_files(names, version) for version, names in gone.items()]
        return reduce(lambda rows, part: rows.unionByName(part, allowMissingColumns=True), parts)

    def gone(self, passed_over: Collection[str] = ()) -> DataFrame | None:
        """Rows that were there and no longer are, as they were, but for those of some `whole` files; None for none."""
        others = self.touched.difference(passed_over)
        if not self.in_place and self.whole <= set(passed_over):
            return None
        return _more(self._touched(self.seen, others), self._touched(self.table.version, others))

    def _touched(self, version: int, names: Collection[str]) -> DataFrame:
        """Rows of files as they stood, in the types that the columns have now: a wider one makes no other row."""
        # As Spark reads them: a log also tells which fields are never null, and to these nothing can be cast.
        rows = self.table.of_files(sorted(names), version)
        now = {field.name: field.dataType for field in self.table.read().schema}
        kinds = [(field.name, now.get(field.name, field.dataType)) for field in rows.schema]
        return rows.select(*(F.col(quoted(name)).cast(kind).alias(name) for name, kind in kinds))


def _actions(table: DeltaInput, version: int) -> Iterator[_Action]:
    for action in log_actions(table.path, version):
        for kind in ("add", "remove"):
            if (file := action.get(kind)) is not None:
                yield _Action(version, file_name(file["path"]), file["dataChange"], kind == "remove")


def _more(rows: DataFrame, others: DataFrame) -> DataFrame:
    """The rows that others do not have, or do not have as often, whenever they arrived."""
    names = [name for name in rows.columns if name in others.columns and name != ARRIVAL]
    place = Window.partitionBy("hash").orderBy(F.lit(0))
    counted, known = (
        part.select(content_hash(part, names).alias("hash"), F.struct("*").alias("row")).withColumn(
            "copy", F.row_number().over(place)
        )
        for part in (rows, others)
    )
    return counted.join(known, ["hash", "copy"], "anti").select("row.*")
