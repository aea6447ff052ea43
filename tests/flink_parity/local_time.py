"""Record vectors of Flink SQL windows in local time from a real Flink: `make flink-vectors`.

The streams are around clock changes, with late rows. A full join emits each row in every window that it has entered;
rows that it does not emit were dropped by joins of any type.
"""

import gzip
import json
import random
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.flink_parity.recorder import record_streams
from tests.semantics.flink_sql_window import assign_windows

VECTORS = Path(__file__).parents[1] / "semantics" / "vectors" / "flink_sql_window_zone.jsonl.gz"
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
SPRING, AUTUMN = "2026-03-29T", "2026-10-25T"
"""Days of clock changes in Berlin, forward and back, at 01:00 UTC."""
DAYS = {"tvf": "TUMBLE", "size": DAY}
HOURS = {"tvf": "TUMBLE", "size": HOUR}
SPRING_ROWS = (
    "L22:30-1 R22:59-1 L23:00-1 R23:10-1 L00:30 R00:59:59.999 L01:00 R01:10 L00:20 R21:00 L21:59 L22:00 R22:05"
)
AUTUMN_ROWS = (
    "L21:59-1 R22:00-1 L23:30-1 R00:10 L00:50 R01:10 L01:05 L01:50 R00:05 R01:59:59.999 L01:59:59.999 "
    "L02:00 R01:20 R02:30 L03:10 R03:00 L22:59 R22:59 L23:00 R23:30 L22:30"
)
MANUAL_STREAMS = {
    "days_in_spring": (DAYS, SPRING, SPRING_ROWS + " L23:00+1 R23:00+1 L21:30"),
    "days_in_autumn": (DAYS, AUTUMN, AUTUMN_ROWS),
    "hours_in_spring": (HOURS, SPRING, SPRING_ROWS),
    "hours_in_autumn": (HOURS, AUTUMN, AUTUMN_ROWS),
    "ends_in_the_skipped_hour": (
        {"tvf": "TUMBLE", "size": 3 * HOUR},
        SPRING,
        (
            "L23:30-1 R23:40-1 L00:59:59.998 R00:59:59.998 L00:30 R00:59:59.999 L00:59:59.999 R00:40 L01:00 R00:50 "
            "R01:00 L00:10 R01:30"
        ),
    ),
    "minutes_shown_twice": (
        {"tvf": "TUMBLE", "size": 10 * MINUTE},
        AUTUMN,
        (
            "L00:05 R00:07 L00:15 R00:15 L01:02 R01:05 L01:09:59.998 R01:09:59.999 L00:08 L01:09:59.999 R01:01 L01:15 "
            "R00:11 L03:00 R03:00"
        ),
    ),
    "offset_in_autumn": (
        {"tvf": "TUMBLE", "size": DAY, "offset": 6 * HOUR},
        AUTUMN,
        AUTUMN_ROWS + " L04:00+1 R04:59:59.999+1 L05:00+1 R05:00+1",
    ),
    "hops_in_spring": ({"tvf": "HOP", "size": 3 * HOUR, "slide": HOUR}, SPRING, SPRING_ROWS),
    "hops_in_autumn": ({"tvf": "HOP", "size": 2 * HOUR, "slide": 30 * MINUTE}, AUTUMN, AUTUMN_ROWS),
    "cumulating_in_spring": ({"tvf": "CUMULATE", "size": DAY, "step": 2 * HOUR}, SPRING, SPRING_ROWS),
    "cumulating_in_autumn": ({"tvf": "CUMULATE", "size": DAY, "step": 4 * HOUR}, AUTUMN, AUTUMN_ROWS),
    "sessions_in_spring": (
        {"tvf": "SESSION", "gap": 30 * MINUTE},
        SPRING,
        "L00:10 R00:12 L00:35 R00:50 L00:50 R01:10 L01:10 R00:55 L01:29 R01:40 L01:00 L03:00 R03:00",
    ),
    "sessions_in_autumn": (
        {"tvf": "SESSION", "gap": 30 * MINUTE},
        AUTUMN,
        "L00:10 R00:12 L00:50 R00:50 L01:10 R01:12 L01:15 R00:15 L01:45 R01:50 R00:40 L02:10 R02:40 L03:30 R03:30",
    ),
}
"""Windows, the day, and rows in the order of arrival, by time of day in UTC (`-1`, `+1`: a day before or after)."""
ZONES = {
    "Europe/Berlin": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "America/New_York": ("2026-03-08T07:00Z", "2026-11-01T06:00Z"),
    "America/Sao_Paulo": ("2018-11-04T03:00Z", "2018-02-18T02:00Z"),
    "Australia/Adelaide": ("2026-10-03T16:30Z", "2026-04-04T16:30Z"),
    "Australia/Lord_Howe": ("2026-10-03T15:30Z", "2026-04-04T15:00Z"),
    "Europe/Moscow": ("2011-03-26T23:00Z", "2014-10-25T22:00Z"),
}
"""Clock changes, forward and back: in Sao Paulo at midnight, in the last three zones not as Flink expects them."""


def main() -> None:
    vectors = [*create_manual_vectors(), *create_random_vectors()]
    runs = [(vector, "full") for vector in vectors]
    runs += [(vector, vector["params"]["join_type"]) for vector in vectors if vector["params"]["join_type"] != "full"]
    answers = replay_runs(runs)
    full = {run[0]["name"]: rows for run, rows in zip(runs, answers, strict=True) if run[1] == "full"}
    for (vector, join_type), rows in zip(runs, answers, strict=True):
        if join_type == vector["params"]["join_type"]:
            vector["expected"] = {"rows": rows, "dropped": find_dropped(vector, full[vector["name"]])}
    lines = "".join(json.dumps(vector, separators=(",", ":")) + "\n" for vector in vectors)
    VECTORS.write_bytes(gzip.compress(lines.encode(), mtime=0))
    Console().print(f"{VECTORS.name}: {len(vectors)} vectors, {sum(len(v['expected']['rows']) for v in vectors)} rows")


def create_manual_vectors():
    """Yield vectors of the manual streams, in Berlin."""
    for name, (params, day, rows) in MANUAL_STREAMS.items():
        events = [
            {"side": row[0], "key": "a", "ts": parse_millis(day, row[1:]), "id": f"{row[0].lower()}{number}"}
            for number, row in enumerate(rows.split())
        ]
        yield create_vector(name, {"join_type": "full", **params, "time_zone": "Europe/Berlin"}, (0, 0), events)


def parse_millis(day, text):
    """Parse a time of a day, or of the day before or after, to ms since 1970."""
    clock, shift = (text[:-2], int(text[-2:])) if text[-2] in "+-" else (text, 0)
    since_epoch = datetime.fromisoformat(f"{day}{clock}+00:00") - datetime(1970, 1, 1, tzinfo=UTC)
    return round(since_epoch.total_seconds() * 1000) + shift * DAY


def create_random_vectors():
    """Yield random vectors in several zones."""
    for number, zone in enumerate([*ZONES, "Europe/Berlin", *ZONES]):
        generator = random.Random(number)
        tvf = generator.choice(["TUMBLE", "HOP", "CUMULATE"]) if number % 3 else "SESSION"
        step = generator.choice([10, 30, 60, 120]) * MINUTE
        shapes = {
            "TUMBLE": {"size": generator.choice([step, DAY])},
            "HOP": {"size": 3 * step, "slide": step},
            "CUMULATE": {"size": 4 * step, "step": step},
            "SESSION": {"gap": generator.choice([10, 30, 45]) * MINUTE},
        }
        kind = generator.choice(["full", "left", "right", "full" if tvf == "SESSION" else "inner"])
        params = {"join_type": kind, "tvf": tvf, **shapes[tvf], "time_zone": zone}
        if tvf != "SESSION":
            params["offset"] = generator.choice([0, 5 * MINUTE])
        change = parse_millis("", ZONES[zone][number % 2].removesuffix("Z"))
        delays = generator.choice([0, 10 * MINUTE]), generator.choice([0, 30 * MINUTE])
        yield create_vector(f"random_{number}", params, delays, list(generate_rows(generator, change)))


def generate_rows(generator, change):
    """Generate rows over seven hours around a clock change, many late, many within 1 ms of a boundary."""
    for number in range(36):
        side = generator.choice("LR")
        time = change - 3 * HOUR + number * 12 * MINUTE - generator.choice([0, 0, 5, 15, 60, 90]) * MINUTE
        time -= time % (5 * MINUTE) + generator.choice([0, 0, 0, 1])
        yield {"side": side, "key": generator.choice("aab"), "ts": time, "id": f"{side.lower()}{number}"}


def create_vector(name, params, delays, events):
    watermark = {"kind": "sql", "delay_ms_left": delays[0], "delay_ms_right": delays[1]}
    header = {"name": name, "flink": "2.3.0", "dialect": "sql_window", "params": params}
    return {**header, "watermark": watermark, "drain": True, "events": events}


def replay_runs(runs):
    """Run streams in Flink, and return the rows of each in the form of vectors."""
    streams = []
    for vector, join_type in runs:
        params = vector["params"]
        streams.append(
            ({"table.local-time-zone": params["time_zone"]}, ("query", format_query(params, join_type)), vector)
        )
    are_sessions = (vector["params"]["tvf"] == "SESSION" for vector, _ in runs)
    return [
        [to_vector_row(step, fields, is_session) for step, _, fields in answer.rows]
        for answer, is_session in zip(record_streams(streams), are_sessions, strict=True)
    ]


def format_query(params, join_type):
    """Return the join in Flink SQL: ids, starts of both sides' windows, their end, and the result's time."""
    windows = {side: format_windows(params, side) for side in ("left", "right")}
    starts = "l.window_start, r.window_start"
    times = "CAST(COALESCE(l.window_time, r.window_time) AS TIMESTAMP_LTZ(3))"
    same = "l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end"
    return (
        f"SELECT l.id, r.id, {starts}, COALESCE(l.window_end, r.window_end), {times} "
        f"FROM {windows['left']} l {join_type.upper()} JOIN {windows['right']} r ON {same}"
    )


def format_windows(params, side):
    if params["tvf"] == "SESSION":
        spans, rows = [params["gap"]], f"TABLE {side}_rows PARTITION BY k"
    else:
        spans = [params[name] for name in ("slide", "step", "size") if name in params] + [params.get("offset", 0)]
        rows = f"TABLE {side}_rows"
    return f"(SELECT * FROM TABLE({params['tvf']}({rows}, DESCRIPTOR(ts), {', '.join(map(format_interval, spans))})))"


def format_interval(ms):
    days, rest = divmod(ms, DAY)
    clock = f"{rest // HOUR:02}:{rest // MINUTE % 60:02}:{rest // 1000 % 60:02}.000"
    return f"INTERVAL '{days} {clock}' DAY TO SECOND(3)"


def to_vector_row(step, fields, is_session):
    left, right, left_start, right_start, end, ts = fields
    row = {"left_id": left, "right_id": right, "ts": int(ts), "window_start": int(left_start or right_start)}
    row |= {"window_end": int(end), "at": step}
    return row | ({"right_window_start": int(right_start)} if is_session and left and right else {})


def find_dropped(vector, rows):
    """Return what a full join's rows lack of each event: of sessions the event, else each of its windows."""
    emitted = {(row[f"{side}_id"], row["window_end"]) for row in rows for side in ("left", "right")}
    emitted_ids = {id_ for id_, _ in emitted}
    lost = []
    for step, event in enumerate(vector["events"]):
        row = {"side": event["side"], "id": event["id"], "at": step}
        if vector["params"]["tvf"] == "SESSION":
            lost += [{**row, "by": "session_tvf"}] if event["id"] not in emitted_ids else []
            continue
        for window in assign_windows(vector["params"], event["ts"]):
            if (event["id"], window.end) not in emitted:
                bounds = {"window_start": window.start, "window_end": window.end}
                lost.append({**row, **bounds, "by": "window_join"})
    return lost


if __name__ == "__main__":
    main()
