"""Detect columns that were dropped and added again, by Delta logs with column mapping and without Spark."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyspark.sql import types as T

from tests.ledger.test_rules import create_entry, create_ledger
from tidemark.delta.column_changes import find_column_changes
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import InputError
from tidemark.planning.column_changes import check_column_changes
from tidemark.planning.context import PlanningContext
from tidemark.planning.plan import SliceRange
from tidemark.planning.preconditions import require_emitted_columns
from tidemark.planning.request import Request
from tidemark.sources.column_history import find_input_column_changes
from tidemark.sources.normalization import create_side
from tidemark.sources.stored_input import StoredInput
from tidemark.timegrid.slices import Grid

TIMES = {"happened": "timestamp", "arrived": "timestamp"}
START = datetime(2024, 1, 1, tzinfo=UTC)


def field(name, dtype="long", physical_name=None):
    metadata = {} if physical_name is None else {"delta.columnMapping.physicalName": physical_name}
    if physical_name and physical_name.startswith("col-"):
        metadata["delta.columnMapping.id"] = int(physical_name.removeprefix("col-"))
    return {"name": name, "type": dtype, "nullable": True, "metadata": metadata}


def struct(*fields):
    return {"type": "struct", "fields": list(fields)}


def list_changes(earlier, current):
    schemas = (T.StructType.fromJson(struct(*fields)) for fields in (earlier, current))
    return [(change.kind, change.name, change.other_name) for change in find_column_changes(*schemas)]


def array_of(dtype):
    return {"type": "array", "elementType": dtype, "containsNull": True}


def map_of(dtype):
    return {"type": "map", "keyType": "string", "valueType": dtype, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("earlier", "current", "changes"),
    [
        ([field("w")], [field("w")], []),
        ([field("w")], [field("w", physical_name="w")], []),
        ([field("w")], [field("w", physical_name="col-2")], [("replaced", "w", None)]),
        ([field("w", "long", "c1")], [field("w", "string", "c2")], [("replaced", "w", None)]),
        ([field("w", "integer", "c1")], [field("w", "long", "c1")], []),
        ([field("w", "long", "c1")], [field("weight", "long", "c1")], [("renamed", "w", "weight")]),
        ([field("w")], [], [("dropped", "w", None)]),
        (
            [field("a", "long", "c1"), field("b", "long", "c2")],
            [field("a", "long", "c2"), field("b", "long", "c1")],
            [("taken over", "a", "b"), ("taken over", "b", "a")],
        ),
        *(
            (
                [field("s", wrap(struct(field("a", "long", "c1"))), "c0")],
                [field("s", wrap(struct(field("a", "long", "c2"))), "c0")],
                [("replaced", f"s.{path}a", None)],
            )
            for wrap, path in ((dict, ""), (array_of, "element."), (map_of, "value."))
        ),
    ],
)
def test_column_change_is_found_by_physical_name(earlier, current, changes):
    assert list_changes(earlier, current) == changes


class Log:
    """A Delta log with column mapping, written by hand. A version begins with `commit`."""

    def __init__(self, path):
        self.path, self.version, self.ids = path, -1, 0
        self.columns = {}
        (path / "_delta_log").mkdir(parents=True)
        self.add_columns(k="string", w="long", **TIMES)

    def commit(self, operation, *actions):
        self.version += 1
        info = {"commitInfo": {"timestamp": self.version, "operation": operation, "operationParameters": {}}}
        if self.version == 0:
            actions = ({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, *actions)
        text = "\n".join(json.dumps(action) for action in (info, *actions))
        (self.path / "_delta_log" / f"{self.version:020d}.json").write_text(text)

    def add_columns(self, **dtypes):
        for name, dtype in dtypes.items():
            self.ids += 1
            self.columns[name] = (dtype, f"col-{self.ids}")
        self._commit_schema("ADD COLUMNS")

    def drop(self, name):
        del self.columns[name]
        self._commit_schema("DROP COLUMNS")

    def rename(self, name, new_name):
        self.columns = {new_name if old == name else old: column for old, column in self.columns.items()}
        self._commit_schema("RENAME COLUMN")

    def readd(self, name, dtype=None):
        dtype = dtype or self.columns[name][0]
        self.drop(name)
        self.add_columns(**{name: dtype})

    def append(self, name, hour, *, operation="WRITE", nulls=(), removes=None):
        """Add a file with a row of an hour; `removes` is a file that it replaces."""
        time = f"2024-01-01T{hour:02d}:10:00.000Z"
        stats = {
            "numRecords": 1,
            "nullCount": {physical: int(column in nulls) for column, (_, physical) in self.columns.items()},
            "maxValues": {physical: time for column, (_, physical) in self.columns.items() if column in TIMES},
        }
        file = {"path": name, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
        removed = [{"remove": {"path": removes, "dataChange": True, "deletionTimestamp": 1}}] if removes else []
        self.commit(operation, {"add": {**file, "stats": json.dumps(stats)}}, *removed)

    def _commit_schema(self, operation):
        fields = [field(name, dtype, physical) for name, (dtype, physical) in self.columns.items()]
        metadata = {
            "id": "1",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(struct(*fields)),
            "partitionColumns": [],
            "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(self.ids)},
            "createdTime": 0,
        }
        self.commit(operation, {"metaData": metadata})


@pytest.fixture
def left(lake):
    """Return the log of the left input, with a row of the first hour in version 1."""
    log = Log(lake / "left")
    log.append("a", 0)
    return log


@pytest.fixture
def right(lake):
    log = Log(lake / "right")
    log.append("a", 0)
    return log


@pytest.fixture
def create_context(lake, pipeline, left, right):
    """Return a function that creates the context of a plan after the first slice has read version 1 of both inputs."""

    def create(entries=None, **changes):
        settings = pipeline(**changes)
        grid = Grid.from_config(settings.slices)
        ledger = replace(create_ledger(*(entries or [create_entry(0)])), grid=grid)
        inputs = []
        for side in ("left", "right"):
            table = DeltaInput(None, side, str(lake / side))
            inputs.append(StoredInput(create_side(settings, side, table.schema, [T.StringType()]), table))
        return PlanningContext(settings, Request(), ledger, tuple(inputs), frozenset(), str(lake))

    return create


def reprocess(first):
    return [SliceRange(range(first, first + 1), "reprocess", "")]


NEW = [SliceRange(range(1, 2), "new", "")]


@pytest.mark.parametrize("side", ["left", "right"])
def test_column_added_again_is_noted_with_version_and_slices(create_context, left, right, side):
    assert check_column_changes(create_context(), reprocess(0)) == ()
    (left if side == "left" else right).readd("w")
    note = (
        f"input {side}: w is another column of this name since version 3: where slices up to 2024-01-01T01:00Z run "
        "again, it is null in rows that were written earlier"
    )
    for slice_ranges in ([], NEW, reprocess(0)):
        assert check_column_changes(create_context(), slice_ranges) == (note,)


def test_column_added_again_with_type_that_tables_cannot_hold_is_refused(create_context, left):
    left.add_columns(n="integer")
    left.readd("n", "long")
    left.readd("w", "string")
    entries = [create_entry(0, 2)]
    other, wider = check_column_changes(create_context(entries), [])
    assert "n is another column of this name since version 4 (int before): where" in wider
    assert "w is another column of this name since version 6 (bigint before): where" in other

    message = "input left: w is another column of this name since version 6, with type string instead of bigint, and"
    for slice_ranges in (NEW, reprocess(0)):
        with pytest.raises(InputError, match=message):
            check_column_changes(create_context(entries), slice_ranges)


def test_column_added_again_is_not_noted_where_no_value_is_lost(create_context, left):
    left.readd("w")
    left.append("b", 1)
    later = create_context([create_entry(0), create_entry(1, 4)])
    assert len(check_column_changes(later, [])) == 1
    assert check_column_changes(create_context(select=["left_k"]), []) == ()
    for expression in ("left_w + 1", "LEFT_W + 1"):
        assert check_column_changes(create_context(select={"v": expression}), []) != ()
    assert check_column_changes(create_context(select=["left_k"], join__condition="LEFT_W > 1"), []) != ()

    left.append("c", 0, operation="OPTIMIZE", nulls={"w"}, removes="a")
    assert len(check_column_changes(create_context(), [])) == 1, "the values are still missing"

    left.append("d", 0, operation="UPDATE", removes="c")
    assert check_column_changes(create_context(), reprocess(0)) == ()


def test_column_with_truncated_log_is_noted_without_version(create_context, left, lake):
    left.readd("w")
    for version in (2, 3):
        left.append(f"after {version}", 0)
    paths = sorted((lake / "left" / "_delta_log").iterdir())
    context = create_context()
    [change] = find_input_column_changes(context.inputs[0].table, [1])
    assert (change.since, change.files_without_values) == (3, {"a"})

    schema = context.inputs[0].table.get_schema_at(1)
    assert schema is not None
    paths[3].rename(paths[3].with_suffix(".gone"))
    context.inputs[0].table.__dict__["get_schema_at"] = lambda _: schema
    [change] = find_input_column_changes(context.inputs[0].table, [1])
    assert (change.since_label, change.files_without_values) == ("a version after 1", {"a"})


@pytest.mark.parametrize(
    ("column", "role", "changes"),
    [
        ("k", "key", {}),
        ("k", "key", {"join__keys": [{"left": "lower(k)", "right": "k"}]}),
        ("happened", "event_time", {}),
        ("arrived", "arrival", {}),
        ("w", "tiebreak", {"left__tiebreak": "w"}),
        ("w", "partition", {"left__partition": "w"}),
        ("w", "where", {"left__where": "w > 1"}),
        ("w", "where", {"left__where": "W > 1"}),
        ("k", "key", {"join__keys": [{"left": "lower(K)", "right": "k"}]}),
    ],
)
def test_reprocess_without_keys_or_times_of_rows_is_refused(create_context, left, column, role, changes):
    left.readd(column)
    context = create_context(**changes)
    message = (
        f"input left: {role} {column} is another column of this name since version 3. Rows that were written earlier "
        "have no value in it, so slices from 2024-01-01T00:00Z on would lose them. Set the values"
    )
    with pytest.raises(InputError, match=message):
        check_column_changes(context, reprocess(0))
    assert len(check_column_changes(context, NEW)) == 1, "no unread row lacks the value"

    left.append("b", 0, operation="UPDATE", removes="a")
    assert check_column_changes(create_context(**changes), reprocess(0)) == ()


@pytest.mark.parametrize("hour", [0, 1])
def test_new_slices_without_keys_of_unread_rows_are_refused(create_context, left, hour):
    """The file is unread in the first case, and in the second one it is read but has a row of a new slice."""
    left.append("ahead", hour)
    left.readd("k")
    context = create_context([create_entry(0, 2 if hour else 1)])
    with pytest.raises(InputError, match="key k is another column .* so slices from 2024-01-01T01:00Z on would lose"):
        check_column_changes(context, NEW)


def test_renamed_and_taken_over_columns_are_noted(create_context, left, right):
    left.add_columns(v="long")
    left.rename("w", "weight")
    left.rename("v", "w")
    right.rename("w", "weight")
    entries = [create_entry(0, 2)]
    right.commit("SET TBLPROPERTIES")
    slices = "where slices up to 2024-01-01T01:00Z run again"
    assert check_column_changes(create_context(entries), []) == (
        f"input left: w is the former column v since version 4: {slices}, it has the values of that column",
        f"input left: v is named w since version 4: {slices}, v is null and w has its values",
    )
    with pytest.raises(InputError, match="input left no longer has v .renamed to w., which slices up to"):
        require_emitted_columns(create_context(entries))
