"""What real Flink SQL makes of the exported rows. Runs in a virtual environment of its own: `make flink-parity`.

Both inputs are one source, so that Flink reads them in the order of the file: two sources would race, and the padding
of an interval join depends on which is ahead.

Usage: python flink_job.py FOLDER JOIN...
The folder holds rows.csv (side, id, key, time) in order of event time. Writes a folder of CSV files for each join: left
id, right id, window start.
"""

import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

SOURCE = """
CREATE TABLE both_sides (side STRING, id STRING, k STRING, ts TIMESTAMP(3),
  WATERMARK FOR ts AS ts - INTERVAL '0.001' SECOND)
WITH ('connector' = 'filesystem', 'path' = '{folder}/rows.csv', 'format' = 'csv', 'csv.null-literal' = '')
"""
VIEW = "CREATE VIEW {name} AS SELECT id, k, ts FROM both_sides WHERE side = '{name}'"
SINK = """
CREATE TABLE {name} (left_id STRING, right_id STRING, window_start TIMESTAMP(3))
WITH ('connector' = 'filesystem', 'path' = '{folder}/{name}', 'format' = 'csv', 'csv.null-literal' = '')
"""
INTERVAL = """
SELECT f.id, w.id, CAST(NULL AS TIMESTAMP(3)) FROM flights f {how} JOIN weather w
ON f.k = w.k AND f.ts BETWEEN w.ts AND w.ts + INTERVAL '1' HOUR
"""
WINDOW = """
SELECT f.id, w.id, COALESCE(f.window_start, w.window_start)
FROM (SELECT * FROM TABLE({tvf}(TABLE flights, DESCRIPTOR(ts), {size}))) f
{how} JOIN (SELECT * FROM TABLE({tvf}(TABLE weather, DESCRIPTOR(ts), {size}))) w
ON f.k = w.k AND f.window_start = w.window_start AND f.window_end = w.window_end
"""
HALF = """
SELECT f.id, CAST(NULL AS STRING), f.window_start
FROM (SELECT * FROM TABLE(TUMBLE(TABLE flights, DESCRIPTOR(ts), INTERVAL '1' HOUR))) f
WHERE {how} (SELECT * FROM (
    SELECT * FROM TABLE(TUMBLE(TABLE weather, DESCRIPTOR(ts), INTERVAL '1' HOUR))) w
  WHERE f.k = w.k AND f.window_start = w.window_start AND f.window_end = w.window_end)
"""
HOUR, HOP = "INTERVAL '1' HOUR", "INTERVAL '30' MINUTE, INTERVAL '1' HOUR"
QUERIES = {
    "interval_inner": INTERVAL.format(how="INNER"),
    "interval_full": INTERVAL.format(how="FULL"),
    "tumble_full": WINDOW.format(tvf="TUMBLE", size=HOUR, how="FULL"),
    "hop_left": WINDOW.format(tvf="HOP", size=HOP, how="LEFT"),
    "tumble_semi": HALF.format(how="EXISTS"),
    "tumble_anti": HALF.format(how="NOT EXISTS"),
}


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", "1")
    tables.execute_sql(SOURCE.format(folder=folder))
    for name in ("flights", "weather"):
        tables.execute_sql(VIEW.format(name=name))
    for name in sys.argv[2:]:
        tables.execute_sql(SINK.format(name=name, folder=folder))
        tables.execute_sql(f"INSERT INTO {name} {QUERIES[name]}").wait()
        sys.stdout.write(f"flink: {name} done\n")


if __name__ == "__main__":
    main()
