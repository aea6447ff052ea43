"""Inputs of random schemas give the oracle's rows with unchanged values, or are rejected in one line."""

import os
import re
from collections import Counter
from datetime import UTC, datetime
from random import Random

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.conftest import write_pipeline
from tests.semantics import flink_datastream_interval, flink_sql_interval, spark_stream_stream
from tests.sources.schemas import (
    HOUR,
    KEYS,
    SCALARS,
    SIDES,
    START,
    random_case,
    random_names,
    random_type,
    to_comparable,
    to_python,
)
from tests.tiers import cases
from tidemark.cli.app import main
from tidemark.errors import InputError, PipelineFileError, UserError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.sources.resolution import open_inputs

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 1000
"""Number of schemas per dialect. The first three of a dialect, and the first of all dialects, cover all key types."""
DIALECTS = ["flink-datastream", "flink-sql", "spark"]
ACCEPTED_FAULTS = {
    "flink-datastream": {None},
    "flink-sql": {None, "null_key"},
    "spark": {None, "null_key", "null_event_time"},
}
"""Faults with which a row still reaches the join."""
LATE_REASONS = {"late", "late_but_processed"}
REFUSALS = [
    r"input (left|right): key .+ is .+, which cannot be compared\. Name a column, .+ of another type\.",
    r"keys left\..+ and right\..+ have different types\. Cast one where the table is written\.",
    r"input left: column .+ is .+\. Use a timestamp, timestamp_ntz or date column, or a number with its unit\.",
    r"input left: column .+ is a number \(.+\)\. Give its unit, such as \{column: .+, unit: ms\}\.",
    r"input left: column .+ is .+\. Remove its unit\.",
    r"input left: tiebreak .+ is .+\. Name an integer column\.",
]
"""All messages about unsupported columns."""


def compute_expected(case):
    """Return the oracle's pairs of ids, and the ids of late rows or None."""
    names: dict[tuple, str] = {}
    rows = [row for row in case.rows if row.fault in ACCEPTED_FAULTS[case.dialect]]
    keys = {row.id: None if row.fault == "null_key" else names.setdefault(row.keys, str(len(names))) for row in rows}
    delays = {side: hours * HOUR // 1000 for side, hours in case.delays.items()}
    lower, upper = (bound * HOUR // 1000 for bound in case.bounds)
    if case.dialect == "spark":
        answer = spark_stream_stream.compute_expected(
            {
                "mode": "idle",
                "policy": "min",
                "late_watermark": "previous_batch",
                "join_type": "inner",
                "bounds": {"lower_ms": lower, "upper_ms": upper, "lower_inclusive": True, "upper_inclusive": True},
                **{f"delay_{side}_ms": delay for side, delay in delays.items()},
                "window": None,
                "ts_unit": "us",
                "batches": group_by_slice(rows, keys, case.hours_per_slice),
            }
        )
        return Counter((row["left_id"], row["right_id"]) for row in answer["expected"]), None
    sql = case.dialect == "flink-sql"
    # Flink SQL's bounds are of left time - right time.
    params = {"join_type": "inner", "allowed_lateness": 0, "min_cleanup_interval": 0} if sql else {}
    params |= {"lower": -upper, "upper": -lower} if sql else {"lower": lower, "upper": upper}
    vector = {
        "params": params,
        "watermark": {"kind": "sql" if sql else "datastream", **{f"delay_ms_{side}": d for side, d in delays.items()}},
        "events": [
            {"side": row.side[0].upper(), "key": keys[row.id], "ts": row.event // 1000, "id": str(row.id)}
            for row in rows
        ],
        "drain": False,
    }
    answer = (flink_sql_interval if sql else flink_datastream_interval).compute_expected(vector)
    pairs = Counter((int(row["left_id"]), int(row["right_id"])) for row in answer["rows"])
    return pairs, None if sql else {int(row["id"]) for row in answer["dropped"]}


def group_by_slice(rows, keys, every):
    """Group rows into one batch per slice."""
    batches = {}
    for row in rows:
        batch = batches.setdefault((row.arrival - START) // (every * HOUR), {side: [] for side in SIDES})
        batch[row.side].append({"id": row.id, "key": keys[row.id], "ts": row.event, "v": None})
    return [batches[number] for number in sorted(batches)]


def write_tables(spark, lake, case):
    for side in SIDES:
        table, path = case.create_table(side), str(lake / side)
        # delta-rs writes no column mapping, and no times without a zone inside others.
        if case.uses_column_mapping[side] or "timestamp[us]" in str(table.schema):
            frame = spark.createDataFrame(table).coalesce(1)
            frame.write.format("delta").option("delta.columnMapping.mode", "name").save(path)
        else:
            write_deltalake(path, table)


def read_rows(frame):
    table = frame.toArrow()
    columns = [[to_python(value) for value in column] for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def run_case(spark, folder, case):
    """Run the pipeline of a case and return its emissions and late rows."""
    lake = folder / "lake"
    write_tables(spark, lake, case)
    pipeline = write_pipeline(folder / "pipeline.yaml", **case.create_settings())
    plan = create_plan(spark, pipeline, str(lake), Request(slices_per_job=case.slices_per_job))
    list(execute(spark, plan, lambda *_: None))
    read = spark.read.format("delta").load
    return read_rows(read(plan.tables.emissions)), read_rows(read(plan.tables.late))


def find_differences(case, emitted, late):
    """Yield a line for each difference from the oracle and the inputs."""
    pairs, dropped = compute_expected(case)
    inputs = {row.id: row.values for row in case.rows}
    actual_pairs = Counter((row[f"left_{case.ids['left']}"], row[f"right_{case.ids['right']}"]) for row in emitted)
    if actual_pairs != pairs:
        missing, extra = (sorted(difference.items()) for difference in (pairs - actual_pairs, actual_pairs - pairs))
        yield f"pairs missing: {missing}; too many: {extra}"
    for row in emitted:
        for side in SIDES:
            was = inputs[row[f"{side}_{case.ids[side]}"]]
            yield from find_changed_values(was, {name: row[f"{side}_{name}"] for name in was})
    for row in late:
        side = row["side"]
        yield from find_changed_values(inputs[row[side][case.ids[side]]], row[side])
    reasons = {row[row["side"]][case.ids[row["side"]]]: row["reason"] for row in late}
    every = case.hours_per_slice * HOUR
    newest = max(row.arrival for row in case.rows if row.arrival is not None)
    end = newest - (newest - START) % every + every
    rejected = {
        row.id: row.fault
        for row in case.rows
        if row.fault not in ACCEPTED_FAULTS[case.dialect]
        if row.arrival is not None or row.event is None or row.event < end  # else its slice has not run
    }
    if case.dialect == "spark":  # an inner join filters these itself
        rejected |= {row.id: row.fault for row in case.rows if row.fault in ACCEPTED_FAULTS["spark"] and row.fault}
    actual = {id_: reason for id_, reason in reasons.items() if reason not in LATE_REASONS}
    if rejected != actual:
        yield f"rejected: {rejected}; actual: {actual}"
    late_ids = {id_ for id_, reason in reasons.items() if reason == "late"}
    if dropped is not None and dropped != late_ids:
        yield f"late: {dropped}; actual: {late_ids}"


def find_changed_values(was, now):
    for name, before in was.items():
        if to_comparable(now[name]) != to_comparable(before):
            yield f"{name!r} was {before!r} and is {now[name]!r}"


@pytest.mark.parametrize("dialect", cases(DIALECTS, fast=["flink-sql"]))
def test_random_schema_gives_rows_and_values_of_oracle(spark, tmp_path, dialect):
    for number in range(EXAMPLES):
        offset = DIALECTS.index(dialect) + number
        dtypes = KEYS[offset % 3 :: 3] if number < 3 else None
        case = random_case(number * len(DIALECTS) + DIALECTS.index(dialect), dialect, dtypes=dtypes)
        check_case(spark, tmp_path / str(number), case)


@pytest.mark.slow
def test_random_schema_with_hundreds_of_columns_gives_rows_of_oracle(spark, tmp_path):
    case = random_case(3, "flink-datastream", columns=300, dtypes=KEYS)
    assert max(len(case.create_schema(side)) for side in SIDES) >= 300
    check_case(spark, tmp_path, case)


def check_case(spark, folder, case):
    emitted, late = run_case(spark, folder, case)
    assert emitted or len(case.keys) <= 3
    assert not list(find_differences(case, emitted, late)), (case.seed, case.dialect)


def is_comparable(dtype):
    if pa.types.is_struct(dtype):
        return all(is_comparable(field.type) for field in dtype)
    if pa.types.is_list(dtype):
        return is_comparable(dtype.value_type)
    return not pa.types.is_map(dtype)


def is_number(dtype):
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)


def is_time(dtype, unit):
    return is_number(dtype) if unit else pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)


@pytest.fixture(scope="module")
def lake_with_all_types(tmp_path_factory):
    """Create a lake with empty inputs that have columns of all types."""
    rng, lake = Random(0), tmp_path_factory.mktemp("every_kind")
    dtypes = [*KEYS, pa.map_(pa.binary(), pa.int8()), pa.list_(pa.map_(pa.int8(), pa.int8()))]
    dtypes += [
        pa.struct([("a.b", pa.list_(pa.map_(pa.string(), pa.date32())))]),
        *(random_type(rng) for _ in range(30)),
    ]
    names = random_names(rng, len(dtypes) + 1)
    # delta-rs makes no table with times without a zone inside others.
    nested = [dtype for dtype in dtypes if dtype not in SCALARS and "timestamp[us]" in str(dtype)]
    schema = dict(zip(names, [*(dtype for dtype in dtypes if dtype not in nested), pa.date32()], strict=False))
    for side in SIDES:
        write_deltalake(str(lake / side), pa.schema(schema.items()).empty_table())
    return lake, schema


def test_unsupported_column_types_are_rejected_and_supported_accepted(spark, lake_with_all_types, tmp_path):
    lake, dtypes = lake_with_all_types
    rng, refused = Random(EXAMPLES), Counter()
    for _ in range(100 * EXAMPLES):
        time, unit = rng.choice([*dtypes]), rng.choice([None, None, "s", "ms", "us", "ns"])
        left, right = rng.choices([*dtypes], k=2)
        right = rng.choice([left, right])
        tiebreak = rng.choice([*dtypes]) if rng.random() < 0.15 else None
        if rng.random() < 0.6:  # otherwise hardly any case would be valid
            time, unit = rng.choice([(name, None) for name, dtype in dtypes.items() if is_time(dtype, None)])
        source = {"event_time": {"column": time, **({"unit": unit} if unit else {})}, "watermark_delay": "0 s"}
        source |= {"tiebreak": tiebreak} if tiebreak else {}
        fields = {
            "left": {"table": "left", **source},
            "right": {"table": "right", **source},
            "join__keys": [{"left": left, "right": right}],
        }
        is_valid = (
            is_time(dtypes[time], unit)
            and (tiebreak is None or pa.types.is_integer(dtypes[tiebreak]))
            and all(is_comparable(dtypes[name]) for name in (left, right))
            and (dtypes[left] == dtypes[right] or (is_number(dtypes[left]) and is_number(dtypes[right])))
        )
        try:
            open_inputs(spark, write_pipeline(tmp_path / "pipeline.yaml", **fields), str(lake))
        except UserError as error:
            message = str(error).removeprefix(f"{tmp_path}/pipeline.yaml: ")
            refused[next((pattern for pattern in REFUSALS if re.fullmatch(pattern, message, re.DOTALL)), message)] += 1
            is_accepted = False
        else:
            is_accepted = True
        assert is_accepted == is_valid, fields
    assert refused.keys() <= {*REFUSALS}
    assert len(refused) >= 5, refused


@pytest.mark.parametrize(
    ("changes", "role"),
    [
        ({"left__event_time": "note"}, "event_time note"),
        ({"left__arrival": {"column": "note", "unit": "ms"}}, "arrival note"),
        ({"left__tiebreak": "note"}, "tiebreak note"),
        ({"left__partition": "list"}, "partition list"),
        ({"join__keys": [{"left": "note", "right": "k"}]}, "key note"),
        ({"join__keys": [{"left": "s.a.b", "right": "k"}]}, "key s.a.b"),
        ({"join__keys": [{"left": "s.a", "right": "k"}]}, "key s.a"),
    ],
)
def test_column_without_type_as_time_or_key_is_refused_by_name(tmp_path, changes, role):
    columns = {
        "k": ["x"],
        "happened": [datetime(2024, 1, 1, tzinfo=UTC)],
        "arrived": [datetime(2024, 1, 1, tzinfo=UTC)],
    }
    nested = {"s": pa.array([{"a": {"b": None}, "c": 1}]), "list": pa.array([[None]])}
    write_deltalake(str(tmp_path / "left"), pa.table({**columns, "note": pa.nulls(1), **nested}))
    write_deltalake(str(tmp_path / "right"), pa.table(columns))

    with pytest.raises(
        InputError, match=rf"yaml: input left: {role} is void: the table has no values of it yet\. Give the"
    ):
        open_inputs(None, write_pipeline(tmp_path / "pipeline.yaml", **changes), str(tmp_path))


def test_plan_checks_columns_of_expectations_before_spark_analyses_expressions(tmp_path):
    columns = {name: pa.array([datetime(2024, 1, 1, tzinfo=UTC)]) for name in ("happened", "arrived")}
    for side in SIDES:
        write_deltalake(str(tmp_path / side), pa.table({"k": ["a"], **columns}))
    expectation = {"expect_column_values_to_not_be_null": {"column": "kee"}}
    settings = write_pipeline(tmp_path / "pipeline.yaml", select={"key": "upper(left_k)"}, quality=[expectation])

    with pytest.raises(PipelineFileError, match="quality.0: .* emissions has no column kee. Did you mean key"):
        create_plan(None, settings, str(tmp_path), Request())


def test_error_message_with_control_characters_in_names_is_single_line(tmp_path, capsys):
    lake = tmp_path / "lake"
    for side in SIDES:
        write_deltalake(str(lake / side), pa.table({"a\nb": [1], "\x1b[2J": [1]}))
    write_pipeline(tmp_path / "pipeline.yaml")

    assert main(["plan", str(tmp_path / "pipeline.yaml"), "--lake", str(lake)]) == 2

    message = capsys.readouterr().err
    location = f"{tmp_path}/pipeline.yaml: input left"
    assert message == f"error: {location} has no column happened (named as event_time). Available: a b,  [2J.\n"
