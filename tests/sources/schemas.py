"""Generate random input schemas with rows, reproducible by seed.

A case is a pair of tables with the data that an oracle needs of each row: arrival, event time, keys and fault. Values
are as in Arrow, times as integers, so that results can be compared bit by bit, even dates that Python does not support.
"""

import random
import string
import struct
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa

from tidemark.formatting import quote_identifier

HOUR, DAY = 3_600_000_000, 86_400_000_000
START = 1_704_067_200_000_000
"""2024-01-01T00:00Z in microseconds."""
SIDES = ("left", "right")
PRINTABLE = "".join(sign for sign in map(chr, range(32, 127)))
INTERNAL_NAMES = (
    "_slice", "_emission", "_pane", "_run", "_lane", "_metadata", "_arrival", "slice", "start", "side", "lane", "left",
    "right", "left_t", "right_left_", "key_0", "clock", "row", "rejected", "watermark", "reason", "run", "run=1",
    "hash", "copy", "event_time", "owning_slice", "bucket", "carried_from", "carried_until", "struct", "file", "known",
)  # fmt: skip
"""Names of internal columns."""
SPECIAL_NAMES = (
    "select", "from", "null", "true", "Order", "GROUP", "case", "end", "interval", "current_date", "timestamp", "lower",
    "1", "1e5", "0x", "*", "a.b", "a.*", ".", "..", "`", "``", "a`b", '"', "'", "''", "--", "/*", "${x}", "%s", "{0}",
    "[0]", "\\", "\\n", "é", "E\u0301", "ß", "\u017f", "\u212a", "İ", "日本", "🌊", "\u200d", "\u202e", "a\tb", "a\nb",
    " a", "a ", " ",
    "#a", "a=b", "a;b", "a,b", "(a)", "NaN", "-0.0", "yes", "~", "|", "<&>", "\u00a0", "\ufeffa",
)  # fmt: skip
"""Names with a meaning in some parser, format or terminal."""


def random_name(rng):
    """Return a random name of printable characters."""
    match rng.randrange(4):
        case 0:
            return rng.choice(INTERNAL_NAMES)
        case 1:
            return rng.choice(SPECIAL_NAMES)
        case 2:
            return "".join(rng.choices(PRINTABLE, k=rng.randint(1, 8)))
    signs = [chr(rng.randrange(*rng.choice([(0xA0, 0x3000), (0x1F300, 0x1FA00)]))) for _ in range(99)]
    return "".join([sign for sign in signs if sign.isprintable()][: rng.randint(1, 8)])


def random_names(rng, count):
    """Return names that are distinct in case-insensitive Spark."""
    value = {}
    while len(value) < count:
        item = random_name(rng)
        value.setdefault(item.lower(), item)
    return [*value.values()]


SCALARS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(1, 0),
    pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal128(38, 38), pa.decimal128(20, 20), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
]  # fmt: skip


def random_type(rng, depth=2):
    """Return a random type, nested at most `depth` levels."""
    if depth == 0 or rng.random() < 0.6:
        return rng.choice(SCALARS)
    match rng.choice(["list", "map", "struct", "struct"]):
        case "list":
            return pa.list_(random_type(rng, depth - 1))
        case "map":
            return pa.map_(rng.choice(SCALARS), random_type(rng, depth - 1))
    return pa.struct([(item, random_type(rng, depth - 1)) for item in random_names(rng, rng.randint(1, 3))])


def random_value(rng, dtype, nulls=0.15):
    """Return a random value of a type, often a limit of the type."""
    if rng.random() < nulls:
        return None
    if pa.types.is_struct(dtype):
        return {field.name: random_value(rng, field.type) for field in dtype}
    if pa.types.is_map(dtype):
        keys = {
            to_comparable(key): key for key in (random_value(rng, dtype.key_type, 0) for _ in range(rng.randint(0, 3)))
        }
        # To Spark 0.0 and -0.0 are one key of a map.
        keys = {repr(value).removeprefix("-") if value == 0 else key: value for key, value in keys.items()}
        return [(key, random_value(rng, dtype.item_type)) for key in keys.values()]
    if pa.types.is_list(dtype):
        return [random_value(rng, dtype.value_type) for _ in range(rng.randint(0, 3))]
    return rng.choice(edge_values(dtype)) if rng.random() < 0.6 else random_scalar(rng, dtype)


def edge_values(dtype):  # noqa: PLR0911 - a type a return
    """Return the values of a scalar type that are most likely to fail."""
    if pa.types.is_boolean(dtype):
        return [True, False]
    if pa.types.is_integer(dtype):
        return [-(2 ** (dtype.bit_width - 1)), 2 ** (dtype.bit_width - 1) - 1, 0, -1, 1]
    if pa.types.is_floating(dtype):
        huge, tiny = (3.4028234663852886e38, 1e-45) if dtype == pa.float32() else (1.7976931348623157e308, 5e-324)
        tiny = struct.unpack("f", struct.pack("f", tiny))[0] if dtype == pa.float32() else tiny
        return [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, huge, -huge, tiny, -tiny, 1.0]
    if pa.types.is_decimal(dtype):
        most = 10**dtype.precision - 1
        return [create_decimal(units, dtype.scale) for units in (most, -most, 0, 1)]
    if pa.types.is_string(dtype):
        return ["", " ", "\0", "null", "a", "A", "a ", "e\u0301", "\u00e9", "\ud7ff\uffff", "🌊", "x" * 3000, '"\n\\']
    if pa.types.is_binary(dtype):
        return [b"", b"\0", b"\0\0", b"\xff", bytes(range(256)), b"x" * 3000]
    if pa.types.is_date(dtype):
        return [0, -1, -719_528, -719_163, -141_428, 2_932_896, 2_932_897, 3_652_059, 19_723]
    return [0, -1, 1, -62_135_596_800_000_001, -12_219_292_800_000_001, 253_402_300_800_000_000, START + 1, 10**18]


def random_scalar(rng, dtype):  # noqa: PLR0911 - as above
    """Return a random value of a scalar type."""
    if pa.types.is_boolean(dtype):
        return rng.random() < 0.5
    if pa.types.is_integer(dtype):
        return rng.randrange(-(2 ** (dtype.bit_width - 1)), 2 ** (dtype.bit_width - 1))
    if pa.types.is_floating(dtype):
        value = rng.uniform(-1, 1) * 10 ** rng.randint(-30, 30)
        return struct.unpack("f", struct.pack("f", value))[0] if dtype == pa.float32() else value
    if pa.types.is_decimal(dtype):
        return create_decimal(rng.randrange(10**dtype.precision), dtype.scale)
    if pa.types.is_string(dtype):
        return "".join(rng.choices(string.printable + "äß日🌊", k=rng.randint(0, 40)))
    if pa.types.is_binary(dtype):
        return rng.randbytes(rng.randint(0, 20))
    if pa.types.is_date(dtype):
        return rng.randint(-100_000, 100_000)
    return rng.randint(-(10**16), 10**16)


def create_decimal(units, scale):
    """Create a decimal with any number of digits, which arithmetic would round."""
    return Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -scale))


def to_comparable(value):
    """Convert a Python value to one that is equal only for identical values. All NaNs are equal."""
    match value:
        case float():
            return "NaN" if value != value else struct.pack(">d", value)  # noqa: PLR0124 - a NaN is not itself
        case dict():
            return tuple((name, to_comparable(item)) for name, item in value.items())
        case list() | tuple():
            return tuple(map(to_comparable, value))
        case Decimal():
            return ("Decimal", value.as_integer_ratio())
        case _:
            return (type(value).__name__, value)


def to_python(scalar):
    """Convert an Arrow scalar to a value as of `random_value`."""
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(scalar.type):
        return {field.name: to_python(scalar[number]) for number, field in enumerate(scalar.type)}
    if pa.types.is_map(scalar.type):
        return [(to_python(entry[0]), to_python(entry[1])) for entry in scalar.values]
    if pa.types.is_list(scalar.type):
        return [to_python(item) for item in scalar.values]
    if pa.types.is_temporal(scalar.type):
        return scalar.value
    return scalar.as_py()


CLOCKS = {
    "timestamp": (pa.timestamp("us", "UTC"), None, 1),
    "timestamp_ntz": (pa.timestamp("us"), None, 1),
    "date": (pa.date32(), None, DAY),
    "seconds": (pa.int64(), "s", 1_000_000),
    "seconds in an int": (pa.int32(), "s", 1_000_000),
    "milliseconds": (pa.int64(), "ms", 1_000),
    "microseconds": (pa.int64(), "us", 1),
    "nanoseconds": (pa.int64(), "ns", 1),
    "a double of seconds": (pa.float64(), "s", 500_000),
    "a double of milliseconds": (pa.float64(), "ms", 1_000),
    "a float of hours": (pa.float32(), "s", 128_000_000),
    "a decimal of seconds": (pa.decimal128(20, 6), "s", 1),
    "a wide decimal of milliseconds": (pa.decimal128(38, 18), "ms", 1),
}
"""Kinds of time columns: type, unit, and resolution in microseconds."""
MICROS_PER_UNIT = {None: 1, "s": 1_000_000, "ms": 1_000, "us": 1}


def encode_time(name, micros):
    """Encode a time for a kind of column."""
    dtype, unit, _ = CLOCKS[name]
    if name == "date":
        return micros // DAY
    if unit == "ns":
        return micros * 1000 + 999
    if pa.types.is_decimal(dtype):
        return Decimal(micros) / MICROS_PER_UNIT[unit]
    return micros / MICROS_PER_UNIT[unit] if pa.types.is_floating(dtype) else micros // MICROS_PER_UNIT[unit]


INVALID_TIMES = {
    "timestamp": [-1, 4_102_444_800_000_000, 253_402_300_800_000_000, -62_135_596_800_000_001],
    "timestamp_ntz": [-1, 4_102_444_800_000_000, 253_402_300_800_000_000, -62_135_596_800_000_001],
    "date": [-1, 47_482, 2_932_897, -719_528, -800_000],
    "seconds": [-1, 4_102_444_800, 2**63 - 1, -(2**63)],
    "seconds in an int": [-1, -(2**31)],
    "milliseconds": [-1, 4_102_444_800_000, 2**63 - 1, -(2**63)],
    "microseconds": [-1, 4_102_444_800_000_000, 2**63 - 1, -(2**63)],
    "nanoseconds": [-1, 4_102_444_800_000_000_000, 2**63 - 1, -(2**63)],
    "a double of seconds": [-0.5, 4_102_444_800.0, 1e300, -1e30, float("nan"), float("inf"), float("-inf")],
    "a double of milliseconds": [-0.5, 4_102_444_800_000.0, 1e300, -1e30, float("nan"), float("inf"), float("-inf")],
    "a float of hours": [-0.5, 4_102_444_800.0, 2.0**100, float("nan"), float("inf"), float("-inf")],
    "a decimal of seconds": [Decimal("-0.000001"), Decimal(4_102_444_800), Decimal("9" * 14)],
    "a wide decimal of milliseconds": [Decimal("-0.000001"), Decimal(4_102_444_800_000), Decimal("9" * 20)],
}
"""Invalid values of each kind: before 1970, from 2100 on, or not representable."""


@dataclass(frozen=True)
class Key:
    """One equality of a join with its possible values."""

    expressions: dict[str, str]
    """Key expression in the pipeline file, by side."""
    column: dict[str, str]
    dtypes: dict[str, pa.DataType]
    values: tuple[Any, ...]
    """Values of the key columns; rows that differ in another key have the first."""
    field: str | None = None
    """Field of a struct that is the key."""
    is_lowered: bool = False
    """True if the key is the string in lower case."""

    def to_column_value(self, value):
        """Convert a value of the key to a value of its column."""
        if self.field is None:
            return value
        return {self.field: value, "extra": 1}

    def normalize(self, dialect, value):
        """Return a value that is equal for all values that the dialect considers the same key."""
        if value is None:
            return None
        if isinstance(value, float) and (dialect == "spark" or value != 0):
            return "NaN" if value != value else value  # noqa: PLR0124 - a NaN is not itself
        if self.is_lowered:
            return value.lower()
        return value if isinstance(value, int | Decimal) else to_comparable(value)


WIDER = {pa.int8(): pa.int64(), pa.int16(): pa.int32(), pa.float32(): pa.float64()}
"""Types with a wider one, which together are a key."""
KEYS = [
    *SCALARS,
    pa.list_(pa.int32()),
    pa.struct([("a b", pa.string()), ("d", pa.date32())]),
    pa.struct([("x", pa.struct([("y`.z", pa.list_(pa.binary()))]))]),
]


def random_key(rng, dtype, names):
    """Create a key of a type, over columns of these names."""
    if pa.types.is_floating(dtype):
        value = [-0.0, 0.0, float("nan")]
    elif dtype in SCALARS:
        value = rng.sample(edge_values(dtype), min(3, len(edge_values(dtype))))
    else:
        value = [random_value(rng, dtype, 0) for _ in range(3)]
    values = tuple({to_comparable(item): item for item in value}.values())
    column, both = dict(zip(SIDES, names, strict=True)), dict.fromkeys(SIDES, dtype)
    how = rng.choice(["plain", "lower", "field", "wider"])
    if how == "lower" and pa.types.is_string(dtype):
        expressions = {side: f"lower({quote_identifier(item)})" for side, item in column.items()}
        return Key(expressions, column, both, ("a", "A", *values), is_lowered=True)
    if how == "field" and not any("." in item for item in names):
        structs = dict.fromkeys(SIDES, pa.struct([("k", dtype), ("extra", pa.int32())]))
        return Key({side: f"{item}.k" for side, item in column.items()}, column, structs, values, field="k")
    if how == "wider" and dtype in WIDER:
        return Key(column, column, {"left": dtype, "right": WIDER[dtype]}, values)
    return Key(column, column, both, values)


@dataclass(frozen=True)
class Row:
    """A row with the data that an oracle needs."""

    id: int
    side: str
    arrival: int | None
    """Arrival time in microseconds; None if null or out of range."""
    event: int | None
    """Event time in microseconds; None if `fault` is about it."""
    keys: tuple[Any, ...]
    fault: str | None
    values: dict[str, Any]
    """Values of the table's columns."""


@dataclass(frozen=True)
class Case:
    """Two tables and a join of them."""

    dialect: str
    keys: tuple[Key, ...]
    clocks: dict[str, tuple[str, str]]
    """Kinds of the columns with event and arrival times, by side."""
    times: dict[str, tuple[str, str]]
    """Names of these columns, by side."""
    ids: dict[str, str]
    extra_columns: dict[str, dict[str, pa.DataType]]
    uses_column_mapping: dict[str, bool]
    """True if a table uses Delta's column mapping, by side."""
    delays: dict[str, int]
    """Watermark delays in hours."""
    bounds: tuple[int, int]
    """Interval bounds in hours."""
    slices_per_job: int
    seed: int

    def create_schema(self, side):
        """Create the schema of a side's table."""
        event, arrival = (CLOCKS[dtype][0] for dtype in self.clocks[side])
        fields = {self.ids[side]: pa.int64(), self.times[side][0]: event, self.times[side][1]: arrival}
        fields |= {key.column[side]: key.dtypes[side] for key in self.keys}
        fields |= self.extra_columns[side]
        order = list(fields)
        random.Random(self.seed).shuffle(order)
        return pa.schema([(name, fields[name]) for name in order])

    def create_table(self, side):
        """Create the table of a side."""
        rows = [row.values for row in self.rows if row.side == side]
        schema = self.create_schema(side)
        return pa.table([pa.array([row[item.name] for row in rows], item.type) for item in schema], schema=schema)

    @property
    def hours_per_slice(self):
        """Length of a slice in hours; three slices contain all rows."""
        return -(-len(self.rows) // 3)

    @cached_property
    def rows(self):
        """Rows of both sides in the order of their arrival, an hour apart."""
        rng = random.Random(self.seed)
        copies = max(3, 12 // len(self.keys))
        lanes = [(number, side) for number in range(len(self.keys)) for side in SIDES for _ in range(copies)]
        lanes.sort(key=lambda lane: lane[0] * copies + rng.randrange(2 * copies))
        return [self._row(rng, number, lane, side) for number, (lane, side) in enumerate(lanes)]

    def _row(self, rng, number, lane, side):
        event_kind, arrival_kind = self.clocks[side]
        arrival = START + number * HOUR
        event = arrival - rng.randrange(30) * HOUR - rng.choice([0, 0, 1, 999, 1000])
        grain = CLOCKS[event_kind][2]
        event = event // grain * grain
        encoded = {"event": encode_time(event_kind, event), "arrival": encode_time(arrival_kind, arrival)}
        key_values = [key.values[0] for key in self.keys]
        key_values[lane] = rng.choice(self.keys[lane].values)
        fault = None
        match rng.randrange(30):
            case 0:
                fault, encoded["event"] = "null_event_time", None
            case 1:
                fault, encoded["event"] = "event_time_out_of_range", rng.choice(INVALID_TIMES[event_kind])
            case 2:
                fault, encoded["arrival"] = "null_arrival", None
            case 3:
                fault, encoded["arrival"] = "arrival_out_of_range", rng.choice(INVALID_TIMES[arrival_kind])
            case 4:
                fault, key_values[lane] = "null_key", None
        values = {self.ids[side]: number, **dict(zip(self.times[side], encoded.values(), strict=True))}
        for key, item in zip(self.keys, key_values, strict=True):
            values[key.column[side]] = key.to_column_value(item)
        values |= {name: random_value(rng, dtype) for name, dtype in self.extra_columns[side].items()}
        has_no_arrival = fault in {"null_arrival", "arrival_out_of_range"}
        has_no_event_time = fault in {"null_event_time", "event_time_out_of_range"}
        normalized_keys = tuple(
            key.normalize(self.dialect, item) for key, item in zip(self.keys, key_values, strict=True)
        )
        return Row(
            number,
            side,
            None if has_no_arrival else arrival,
            None if has_no_event_time else event,
            normalized_keys,
            fault,
            values,
        )

    def create_settings(self):
        """Create the fields of the pipeline file."""
        sources = {
            side: {
                "table": side,
                **{
                    role: {"column": name, "unit": CLOCKS[dtype][1]} if CLOCKS[dtype][1] else {"column": name}
                    for role, name, dtype in zip(
                        ("event_time", "arrival"), self.times[side], self.clocks[side], strict=True
                    )
                },
                "watermark_delay": f"{self.delays[side]} hours",
            }
            for side in SIDES
        }
        lower, upper = (f"{bound} hours" for bound in self.bounds)
        join = {"keys": [key.expressions for key in self.keys], "interval": {"lower": lower, "upper": upper}}
        slices = {"every": f"{self.hours_per_slice} hours", "start": "2024-01-01T00:00:00Z"}
        return {"dialect": self.dialect, **sources, "join": join, "slices": slices}


EXACT_ARRIVALS = [dtype for dtype in CLOCKS if dtype not in {"date", "a float of hours"}]


def random_case(seed, dialect, columns=12, dtypes=None):
    """Create the case of a seed.

    Args:
        seed: The seed.
        dialect: The dialect of the join.
        columns: Maximum number of extra columns per side; the minimum is half of it.
        dtypes: Types of the keys. Default: one to three random types.
    """
    rng = random.Random(seed)
    dtypes = dtypes or rng.choices(KEYS, k=rng.randint(1, 3))
    names, extra_columns = {}, {}
    for side in SIDES:
        names_of_side = random_names(rng, 3 + len(dtypes) + rng.randint(columns // 2, columns))
        names[side], extra_columns[side] = names_of_side[: 3 + len(dtypes)], names_of_side[3 + len(dtypes) :]
    of_keys = list(zip(*(names[side][3:] for side in SIDES), strict=True))
    lower = rng.randint(-40, 0)
    return Case(
        dialect=dialect,
        keys=tuple(random_key(rng, dtype, both) for dtype, both in zip(dtypes, of_keys, strict=True)),
        clocks={side: (rng.choice([*CLOCKS]), rng.choice(EXACT_ARRIVALS)) for side in SIDES},
        times={side: tuple(names[side][1:3]) for side in SIDES},
        ids={side: names[side][0] for side in SIDES},
        extra_columns={side: {item: random_type(rng) for item in extra_columns[side]} for side in SIDES},
        uses_column_mapping={side: rng.random() < 0.3 for side in SIDES},
        delays={side: rng.randint(0, 24) for side in SIDES},
        bounds=(lower, lower + rng.randint(10, 80)),
        slices_per_job=rng.choice([1, 100]),
        seed=seed,
    )
