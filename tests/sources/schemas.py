"""Random input schemas with their rows, each by the number of its seed.

A case is a pair of tables, and what an oracle needs to know of each row: when it arrived and happened, the value of
each of its keys, and what is wrong with it. Values are as Arrow has them, times as whole numbers, so that what comes
out can be compared bit by bit, also where Python has no such date.
"""

import random
import string
import struct
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa

from tidemark.formatting import quoted

HOUR, DAY = 3_600_000_000, 86_400_000_000
START = 1_704_067_200_000_000
"""2024-01-01T00:00Z in microseconds."""
SIDES = ("left", "right")
PRINTABLE = "".join(sign for sign in map(chr, range(32, 127)))
OURS = (
    "_slice", "_emission", "_pane", "_run", "_lane", "_metadata", "_arrival", "slice", "start", "side", "lane", "left",
    "right", "left_t", "right_left_", "key_0", "clock", "row", "rejected", "watermark", "reason", "run", "run=1",
    "hash", "copy", "event_time", "owning_slice", "bucket", "carried_from", "carried_until", "struct", "file", "known",
)  # fmt: skip
"""Names that Tidemark gives to columns of its own."""
WORDS = (
    "select", "from", "null", "true", "Order", "GROUP", "case", "end", "interval", "current_date", "timestamp", "lower",
    "1", "1e5", "0x", "*", "a.b", "a.*", ".", "..", "`", "``", "a`b", '"', "'", "''", "--", "/*", "${x}", "%s", "{0}",
    "[0]", "\\", "\\n", "é", "E\u0301", "ß", "\u017f", "\u212a", "İ", "日本", "🌊", "\u200d", "\u202e", "a\tb", "a\nb",
    " a", "a ", " ",
    "#a", "a=b", "a;b", "a,b", "(a)", "NaN", "-0.0", "yes", "~", "|", "<&>", "\u00a0", "\ufeffa",
)  # fmt: skip
"""Names that some parser, format or terminal gives a meaning."""


def name(chance):
    """A name of printable characters."""
    match chance.randrange(4):
        case 0:
            return chance.choice(OURS)
        case 1:
            return chance.choice(WORDS)
        case 2:
            return "".join(chance.choices(PRINTABLE, k=chance.randint(1, 8)))
    signs = [chr(chance.randrange(*chance.choice([(0xA0, 0x3000), (0x1F300, 0x1FA00)]))) for _ in range(99)]
    return "".join([sign for sign in signs if sign.isprintable()][: chance.randint(1, 8)])


def unlike(chance, count):
    """Names that Spark tells apart, in whatever case of letters."""
    found = {}
    while len(found) < count:
        one = name(chance)
        found.setdefault(one.lower(), one)
    return [*found.values()]


SCALARS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(1, 0),
    pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal128(38, 38), pa.decimal128(20, 20), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
]  # fmt: skip


def any_kind(chance, depth=2):
    """A type, nested so deep at most."""
    if depth == 0 or chance.random() < 0.6:
        return chance.choice(SCALARS)
    match chance.choice(["list", "map", "struct", "struct"]):
        case "list":
            return pa.list_(any_kind(chance, depth - 1))
        case "map":
            return pa.map_(chance.choice(SCALARS), any_kind(chance, depth - 1))
    return pa.struct([(one, any_kind(chance, depth - 1)) for one in unlike(chance, chance.randint(1, 3))])


def value(chance, kind, nulls=0.15):
    """A value of a type, often one at an end of what it can be."""
    if chance.random() < nulls:
        return None
    if pa.types.is_struct(kind):
        return {field.name: value(chance, field.type) for field in kind}
    if pa.types.is_map(kind):
        keys = {bits(key): key for key in (value(chance, kind.key_type, 0) for _ in range(chance.randint(0, 3)))}
        # To Spark 0.0 and -0.0 are one key of a map.
        keys = {repr(found).removeprefix("-") if found == 0 else key: found for key, found in keys.items()}
        return [(key, value(chance, kind.item_type)) for key in keys.values()]
    if pa.types.is_list(kind):
        return [value(chance, kind.value_type) for _ in range(chance.randint(0, 3))]
    return chance.choice(edges(kind)) if chance.random() < 0.6 else inside(chance, kind)


def edges(kind):  # noqa: PLR0911 - a type a return
    """The values of a scalar type at which things go wrong."""
    if pa.types.is_boolean(kind):
        return [True, False]
    if pa.types.is_integer(kind):
        return [-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1, 0, -1, 1]
    if pa.types.is_floating(kind):
        huge, tiny = (3.4028234663852886e38, 1e-45) if kind == pa.float32() else (1.7976931348623157e308, 5e-324)
        tiny = struct.unpack("f", struct.pack("f", tiny))[0] if kind == pa.float32() else tiny
        return [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, huge, -huge, tiny, -tiny, 1.0]
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return [fraction(units, kind.scale) for units in (most, -most, 0, 1)]
    if pa.types.is_string(kind):
        return ["", " ", "\0", "null", "a", "A", "a ", "e\u0301", "\u00e9", "\ud7ff\uffff", "🌊", "x" * 3000, '"\n\\']
    if pa.types.is_binary(kind):
        return [b"", b"\0", b"\0\0", b"\xff", bytes(range(256)), b"x" * 3000]
    if pa.types.is_date(kind):
        return [0, -1, -719_528, -719_163, -141_428, 2_932_896, 2_932_897, 3_652_059, 19_723]
    return [0, -1, 1, -62_135_596_800_000_001, -12_219_292_800_000_001, 253_402_300_800_000_000, START + 1, 10**18]


def inside(chance, kind):  # noqa: PLR0911 - as above
    """Any value of a scalar type."""
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_integer(kind):
        return chance.randrange(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1))
    if pa.types.is_floating(kind):
        found = chance.uniform(-1, 1) * 10 ** chance.randint(-30, 30)
        return struct.unpack("f", struct.pack("f", found))[0] if kind == pa.float32() else found
    if pa.types.is_decimal(kind):
        return fraction(chance.randrange(10**kind.precision), kind.scale)
    if pa.types.is_string(kind):
        return "".join(chance.choices(string.printable + "äß日🌊", k=chance.randint(0, 40)))
    if pa.types.is_binary(kind):
        return chance.randbytes(chance.randint(0, 20))
    if pa.types.is_date(kind):
        return chance.randint(-100_000, 100_000)
    return chance.randint(-(10**16), 10**16)


def fraction(units, scale):
    """A decimal of any number of digits, which Python's arithmetic would round."""
    return Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -scale))


def bits(found):
    """What tells a value of Python's from others: of fractions the bits, where all NaNs are one."""
    match found:
        case float():
            return "NaN" if found != found else struct.pack(">d", found)  # noqa: PLR0124 - a NaN is not itself
        case dict():
            return tuple((name, bits(one)) for name, one in found.items())
        case list() | tuple():
            return tuple(map(bits, found))
        case Decimal():
            return ("Decimal", found.as_integer_ratio())
        case _:
            return (type(found).__name__, found)


def plain(scalar):
    """A value of Arrow's as `value` gives it."""
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(scalar.type):
        return {field.name: plain(scalar[number]) for number, field in enumerate(scalar.type)}
    if pa.types.is_map(scalar.type):
        return [(plain(entry[0]), plain(entry[1])) for entry in scalar.values]
    if pa.types.is_list(scalar.type):
        return [plain(one) for one in scalar.values]
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
"""Columns of times: their type, unit, and of how many microseconds their times are multiples."""
PER_UNIT = {None: 1, "s": 1_000_000, "ms": 1_000, "us": 1}


def clock_value(name, micros):
    """A time as a column of this kind has it."""
    kind, unit, _ = CLOCKS[name]
    if name == "date":
        return micros // DAY
    if unit == "ns":
        return micros * 1000 + 999
    if pa.types.is_decimal(kind):
        return Decimal(micros) / PER_UNIT[unit]
    return micros / PER_UNIT[unit] if pa.types.is_floating(kind) else micros // PER_UNIT[unit]


UNTIMELY = {
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
"""Values of each kind before 1970, from 2100 on, or that no time can be."""


@dataclass(frozen=True)
class Key:
    """One equality of a join, and the values that tell its rows apart."""

    asked: dict[str, str]
    """How the pipeline file names it, by side."""
    column: dict[str, str]
    kinds: dict[str, pa.DataType]
    values: tuple[Any, ...]
    """What key columns have, the first one in the rows that other keys tell apart."""
    field: str | None = None
    """Of a struct: the one that is the key."""
    lowered: bool = False
    """Whether the key is the text in small letters."""

    def stored(self, found):
        """The value of the column for one of the key."""
        if self.field is None:
            return found
        return {self.field: found, "beside": 1}

    def same(self, dialect, found):
        """What is equal for values that the dialect takes for one key."""
        if found is None:
            return None
        if isinstance(found, float) and (dialect == "spark" or found != 0):
            return "NaN" if found != found else found  # noqa: PLR0124 - a NaN is not itself
        if self.lowered:
            return found.lower()
        return found if isinstance(found, int | Decimal) else bits(found)


WIDER = {pa.int8(): pa.int64(), pa.int16(): pa.int32(), pa.float32(): pa.float64()}
"""Types with a wider one, which together are a key."""
KEYS = [
    *SCALARS,
    pa.list_(pa.int32()),
    pa.struct([("a b", pa.string()), ("d", pa.date32())]),
    pa.struct([("x", pa.struct([("y`.z", pa.list_(pa.binary()))]))]),
]


def key(chance, kind, names):
    """A key of a type, over columns of these names."""
    if pa.types.is_floating(kind):
        found = [-0.0, 0.0, float("nan")]
    elif kind in SCALARS:
        found = chance.sample(edges(kind), min(3, len(edges(kind))))
    else:
        found = [value(chance, kind, 0) for _ in range(3)]
    values = tuple({bits(one): one for one in found}.values())
    column, both = dict(zip(SIDES, names, strict=True)), dict.fromkeys(SIDES, kind)
    how = chance.choice(["plain", "lower", "field", "wider"])
    if how == "lower" and pa.types.is_string(kind):
        asked = {side: f"lower({quoted(one)})" for side, one in column.items()}
        return Key(asked, column, both, ("a", "A", *values), lowered=True)
    if how == "field" and not any("." in one for one in names):
        held = dict.fromkeys(SIDES, pa.struct([("k", kind), ("beside", pa.int32())]))
        return Key({side: f"{one}.k" for side, one in column.items()}, column, held, values, field="k")
    if how == "wider" and kind in WIDER:
        return Key(column, column, {"left": kind, "right": WIDER[kind]}, values)
    return Key(column, column, both, values)


@dataclass(frozen=True)
class Row:
    """What an oracle needs to know."""

    id: int
    side: str
    arrival: int | None
    """Microseconds; None where it is null."""
    event: int | None
    """Microseconds; None where `fault` says why."""
    keys: tuple[Any, ...]
    fault: str | None
    values: dict[str, Any]
    """What the table has."""


@dataclass(frozen=True)
class Case:
    """Two tables and a join of them."""

    dialect: str
    keys: tuple[Key, ...]
    clocks: dict[str, tuple[str, str]]
    """By side the kinds of its columns of event times and of arrivals."""
    times: dict[str, tuple[str, str]]
    """By side the names of these columns."""
    ids: dict[str, str]
    others: dict[str, dict[str, pa.DataType]]
    mapped: dict[str, bool]
    """Whether a table has its columns by Delta's column mapping."""
    delays: dict[str, int]
    """Hours."""
    bounds: tuple[int, int]
    """Hours."""
    slices_per_job: int
    seed: int

    def schema(self, side):
        """The columns of a side's table."""
        event, arrival = (CLOCKS[kind][0] for kind in self.clocks[side])
        fields = {self.ids[side]: pa.int64(), self.times[side][0]: event, self.times[side][1]: arrival}
        fields |= {key.column[side]: key.kinds[side] for key in self.keys}
        fields |= self.others[side]
        order = list(fields)
        random.Random(self.seed).shuffle(order)
        return pa.schema([(name, fields[name]) for name in order])

    def table(self, side):
        """A side's rows."""
        rows = [row.values for row in self.rows if row.side == side]
        schema = self.schema(side)
        return pa.table([pa.array([row[one.name] for row in rows], one.type) for one in schema], schema=schema)

    @property
    def every(self):
        """How many hours a slice has: three slices have all rows."""
        return -(-len(self.rows) // 3)

    @cached_property
    def rows(self):
        """Rows of both sides in the order of their arrival, an hour apart."""
        chance = random.Random(self.seed)
        copies = max(3, 12 // len(self.keys))
        lanes = [(number, side) for number in range(len(self.keys)) for side in SIDES for _ in range(copies)]
        lanes.sort(key=lambda lane: lane[0] * copies + chance.randrange(2 * copies))
        return [self._row(chance, number, lane, side) for number, (lane, side) in enumerate(lanes)]

    def _row(self, chance, number, lane, side):
        event_kind, arrival_kind = self.clocks[side]
        arrival = START + number * HOUR
        event = arrival - chance.randrange(30) * HOUR - chance.choice([0, 0, 1, 999, 1000])
        grain = CLOCKS[event_kind][2]
        event = event // grain * grain
        shown = {"event": clock_value(event_kind, event), "arrival": clock_value(arrival_kind, arrival)}
        found = [key.values[0] for key in self.keys]
        found[lane] = chance.choice(self.keys[lane].values)
        fault = None
        match chance.randrange(30):
            case 0:
                fault, shown["event"] = "null_event_time", None
            case 1:
                fault, shown["event"] = "event_time_out_of_range", chance.choice(UNTIMELY[event_kind])
            case 2:
                fault, shown["arrival"] = "null_arrival", None
            case 3:
                fault, shown["arrival"] = "arrival_out_of_range", chance.choice(UNTIMELY[arrival_kind])
            case 4:
                fault, found[lane] = "null_key", None
        values = {self.ids[side]: number, **dict(zip(self.times[side], shown.values(), strict=True))}
        for key, one in zip(self.keys, found, strict=True):
            values[key.column[side]] = key.stored(one)
        values |= {name: value(chance, kind) for name, kind in self.others[side].items()}
        unplaced = fault in {"null_arrival", "arrival_out_of_range"}
        timeless = fault in {"null_event_time", "event_time_out_of_range"}
        same = tuple(key.same(self.dialect, one) for key, one in zip(self.keys, found, strict=True))
        return Row(number, side, None if unplaced else arrival, None if timeless else event, same, fault, values)

    def settings(self):
        """The pipeline file's fields."""
        sources = {
            side: {
                "table": side,
                **{
                    role: {"column": name, "unit": CLOCKS[kind][1]} if CLOCKS[kind][1] else {"column": name}
                    for role, name, kind in zip(
                        ("event_time", "arrival"), self.times[side], self.clocks[side], strict=True
                    )
                },
                "watermark_delay": f"{self.delays[side]} hours",
            }
            for side in SIDES
        }
        lower, upper = (f"{bound} hours" for bound in self.bounds)
        join = {"keys": [key.asked for key in self.keys], "interval": {"lower": lower, "upper": upper}}
        slices = {"every": f"{self.every} hours", "start": "2024-01-01T00:00:00Z"}
        return {"dialect": self.dialect, **sources, "join": join, "slices": slices}


EXACT_ARRIVALS = [kind for kind in CLOCKS if kind not in {"date", "a float of hours"}]


def random_case(seed, dialect, columns=12, kinds=None):
    """A case of a seed, with keys of these types, by default one to three, and half to all of so many other columns."""
    chance = random.Random(seed)
    kinds = kinds or chance.choices(KEYS, k=chance.randint(1, 3))
    names, others = {}, {}
    for side in SIDES:
        every = unlike(chance, 3 + len(kinds) + chance.randint(columns // 2, columns))
        names[side], others[side] = every[: 3 + len(kinds)], every[3 + len(kinds) :]
    of_keys = list(zip(*(names[side][3:] for side in SIDES), strict=True))
    lower = chance.randint(-40, 0)
    return Case(
        dialect=dialect,
        keys=tuple(key(chance, kind, both) for kind, both in zip(kinds, of_keys, strict=True)),
        clocks={side: (chance.choice([*CLOCKS]), chance.choice(EXACT_ARRIVALS)) for side in SIDES},
        times={side: tuple(names[side][1:3]) for side in SIDES},
        ids={side: names[side][0] for side in SIDES},
        others={side: {one: any_kind(chance) for one in others[side]} for side in SIDES},
        mapped={side: chance.random() < 0.3 for side in SIDES},
        delays={side: chance.randint(0, 24) for side in SIDES},
        bounds=(lower, lower + chance.randint(10, 80)),
        slices_per_job=chance.choice([1, 100]),
        seed=seed,
    )
