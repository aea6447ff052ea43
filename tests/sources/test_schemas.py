"""Inputs of any schema give the rows that an oracle gives, with all values as they were, or are refused in one line."""

import os
import re
from collections import Counter
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
    any_kind,
    bits,
    plain,
    random_case,
    unlike,
)
from tests.tiers import cases
from tidemark.cli.app import main
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.sources.stored_input import stored_inputs

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 1000
"""Schemas of each dialect; its first three share out the types of keys, and so do the first ones of the dialects."""
DIALECTS = ["flink-datastream", "flink-sql", "spark"]
TAKEN = {
    "flink-datastream": {None},
    "flink-sql": {None, "null_key"},
    "spark": {None, "null_key", "null_event_time"},
}
"""With which faults a row reaches the join."""
STILL_IN = {"late", "behind_watermark"}
REFUSALS = [
    r"input (left|right): key .+ is .+, which cannot be compared; name a column, a field of a struct, or an .+ can be",
    r"keys left\..+ and right\..+ are of different types; cast one where the table is written",
    r"input left: column .+ is .+; a time is timestamp, timestamp_ntz, date, or a number with its unit",
    r"input left: column .+ is a number \(.+\); say what one stands for, such as \{column: .+, unit: ms\}",
    r"input left: column .+ is .+; remove its unit",
    r"input left: tiebreak .+ is .+; it must be an integer column",
]
"""All that a user may read of a column that does not serve."""


def expected(case):
    """The pairs of ids that the oracle gives, and the ids of late rows; None where it does not tell them."""
    names: dict[tuple, str] = {}
    rows = [row for row in case.rows if row.fault in TAKEN[case.dialect]]
    keys = {row.id: None if row.fault == "null_key" else names.setdefault(row.keys, str(len(names))) for row in rows}
    delays = {side: hours * HOUR // 1000 for side, hours in case.delays.items()}
    lower, upper = (bound * HOUR // 1000 for bound in case.bounds)
    if case.dialect == "spark":
        answer = spark_stream_stream.answer(
            {
                "mode": "idle",
                "policy": "min",
                "late_watermark": "previous_batch",
                "join_type": "inner",
                "bounds": {"lower_ms": lower, "upper_ms": upper, "lower_inclusive": True, "upper_inclusive": True},
                **{f"delay_{side}_ms": delay for side, delay in delays.items()},
                "window": None,
                "ts_unit": "us",
                "batches": batches(rows, keys, case.every),
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
    answer = (flink_sql_interval if sql else flink_datastream_interval).answer(vector)
    pairs = Counter((int(row["left_id"]), int(row["right_id"])) for row in answer["rows"])
    return pairs, None if sql else {int(row["id"]) for row in answer["dropped"]}


def batches(rows, keys, every):
    """The rows of each slice."""
    found = {}
    for row in rows:
        batch = found.setdefault((row.arrival - START) // (every * HOUR), {side: [] for side in SIDES})
        batch[row.side].append({"id": row.id, "key": keys[row.id], "ts": row.event, "v": None})
    return [found[number] for number in sorted(found)]


def write_tables(spark, lake, case):
    for side in SIDES:
        table, path = case.table(side), str(lake / side)
        # delta-rs writes no column mapping, and no times without a zone inside others.
        if case.mapped[side] or "timestamp[us]" in str(table.schema):
            frame = spark.createDataFrame(table).coalesce(1)
            frame.write.format("delta").option("delta.columnMapping.mode", "name").save(path)
        else:
            write_deltalake(path, table)


def rows_of(frame):
    table = frame.toArrow()
    columns = [[plain(one) for one in column] for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def replayed(spark, folder, case):
    """The emissions and the late rows of a case's pipeline."""
    lake = folder / "lake"
    write_tables(spark, lake, case)
    pipeline = write_pipeline(folder / "pipeline.yaml", **case.settings())
    plan = make_plan(spark, pipeline, str(lake), Request(slices_per_job=case.slices_per_job))
    list(execute(spark, plan, lambda *_: None))
    read = spark.read.format("delta").load
    return rows_of(read(plan.tables.emissions)), rows_of(read(plan.tables.late))


def differences(case, emitted, late):
    """What is not as the oracle and the inputs have it, a line each."""
    pairs, dropped = expected(case)
    inputs = {row.id: row.values for row in case.rows}
    found = Counter((one[f"left_{case.ids['left']}"], one[f"right_{case.ids['right']}"]) for one in emitted)
    if found != pairs:
        yield f"pairs missing: {sorted((pairs - found).items())}; too many: {sorted((found - pairs).items())}"
    for one in emitted:
        for side in SIDES:
            was = inputs[one[f"{side}_{case.ids[side]}"]]
            yield from changed(was, {name: one[f"{side}_{name}"] for name in was})
    for one in late:
        side = one["side"]
        yield from changed(inputs[one[side][case.ids[side]]], one[side])
    reasons = {one[one["side"]][case.ids[one["side"]]]: one["reason"] for one in late}
    rejected = {row.id: row.fault for row in case.rows if row.fault not in TAKEN[case.dialect]}
    if case.dialect == "spark":  # an inner join filters these itself
        rejected |= {row.id: row.fault for row in case.rows if row.fault in TAKEN["spark"] and row.fault}
    told = {row: reason for row, reason in reasons.items() if reason not in STILL_IN}
    if rejected != told:
        yield f"rejected: {rejected}; told: {told}"
    behind = {row for row, reason in reasons.items() if reason == "late"}
    if dropped is not None and dropped != behind:
        yield f"late: {dropped}; told: {behind}"


def changed(was, now):
    for name, before in was.items():
        if bits(now[name]) != bits(before):
            yield f"{name!r} was {before!r} and is {now[name]!r}"


@pytest.mark.parametrize("dialect", cases(DIALECTS, fast=["flink-sql"]))
def test_rows_and_values_are_those_of_the_oracle(spark, tmp_path, dialect):
    for number in range(EXAMPLES):
        third = DIALECTS.index(dialect) + number
        kinds = KEYS[third % 3 :: 3] if number < 3 else None
        case = random_case(number * len(DIALECTS) + DIALECTS.index(dialect), dialect, kinds=kinds)
        check(spark, tmp_path / str(number), case)


@pytest.mark.slow
def test_hundreds_of_columns(spark, tmp_path):
    case = random_case(3, "flink-datastream", columns=300, kinds=KEYS)
    assert max(len(case.schema(side)) for side in SIDES) >= 300
    check(spark, tmp_path, case)


def check(spark, folder, case):
    emitted, late = replayed(spark, folder, case)
    assert emitted or len(case.keys) <= 3
    assert not list(differences(case, emitted, late)), (case.seed, case.dialect)


def compares(kind):
    if pa.types.is_struct(kind):
        return all(compares(field.type) for field in kind)
    if pa.types.is_list(kind):
        return compares(kind.value_type)
    return not pa.types.is_map(kind)


def is_number(kind):
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def is_time(kind, unit):
    return is_number(kind) if unit else pa.types.is_timestamp(kind) or pa.types.is_date(kind)


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    """A lake whose inputs have the same columns of all kinds, and which is without rows."""
    chance, lake = Random(0), tmp_path_factory.mktemp("every_kind")
    kinds = [*KEYS, pa.map_(pa.binary(), pa.int8()), pa.list_(pa.map_(pa.int8(), pa.int8()))]
    kinds += [pa.struct([("a.b", pa.list_(pa.map_(pa.string(), pa.date32())))]), *(any_kind(chance) for _ in range(30))]
    names = unlike(chance, len(kinds) + 1)
    # delta-rs makes no table with times without a zone inside others.
    nested = [kind for kind in kinds if kind not in SCALARS and "timestamp[us]" in str(kind)]
    schema = dict(zip(names, [*(kind for kind in kinds if kind not in nested), pa.date32()], strict=False))
    for side in SIDES:
        write_deltalake(str(lake / side), pa.schema(schema.items()).empty_table())
    return lake, schema


def test_what_does_not_serve_is_refused_in_one_line_and_all_else_is_taken(spark, every_kind, tmp_path):
    lake, kinds = every_kind
    chance, refused = Random(EXAMPLES), Counter()
    for _ in range(100 * EXAMPLES):
        time, unit = chance.choice([*kinds]), chance.choice([None, None, "s", "ms", "us", "ns"])
        left, right = chance.choices([*kinds], k=2)
        right = chance.choice([left, right])
        tiebreak = chance.choice([*kinds]) if chance.random() < 0.15 else None
        if chance.random() < 0.6:  # or hardly anything would be taken
            time, unit = chance.choice([(name, None) for name, kind in kinds.items() if is_time(kind, None)])
        source = {"event_time": {"column": time, **({"unit": unit} if unit else {})}, "watermark_delay": "0 s"}
        source |= {"tiebreak": tiebreak} if tiebreak else {}
        fields = {
            "left": {"table": "left", **source},
            "right": {"table": "right", **source},
            "join__keys": [{"left": left, "right": right}],
        }
        serves = (
            is_time(kinds[time], unit)
            and (tiebreak is None or pa.types.is_integer(kinds[tiebreak]))
            and all(compares(kinds[one]) for one in (left, right))
            and (kinds[left] == kinds[right] or (is_number(kinds[left]) and is_number(kinds[right])))
        )
        try:
            stored_inputs(spark, write_pipeline(tmp_path / "pipeline.yaml", **fields), str(lake))
        except UserError as error:
            refused[next((one for one in REFUSALS if re.fullmatch(one, str(error), re.DOTALL)), str(error))] += 1
            served = False
        else:
            served = True
        assert served == serves, fields
    assert refused.keys() <= {*REFUSALS}
    assert len(refused) >= 5, refused


def test_a_name_that_breaks_lines_does_not_break_the_message(tmp_path, capsys):
    lake = tmp_path / "lake"
    for side in SIDES:
        write_deltalake(str(lake / side), pa.table({"a\nb": [1], "\x1b[2J": [1]}))
    write_pipeline(tmp_path / "pipeline.yaml")
    assert main(["plan", str(tmp_path / "pipeline.yaml"), "--lake", str(lake)]) == 2
    told = capsys.readouterr().err
    assert told == "error: input left has no column happened (named as event_time); it has a b,  [2J\n"
