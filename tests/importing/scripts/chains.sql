-- Chains of joins, by the number of the last join.
CREATE TABLE a (id BIGINT, k STRING, x INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH ('connector' = 'filesystem');
CREATE TABLE b (id BIGINT, k STRING, x INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH ('connector' = 'filesystem');
CREATE TABLE c (id BIGINT, k STRING, x INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH ('connector' = 'filesystem');
CREATE TABLE d (id BIGINT, k STRING, x INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH ('connector' = 'filesystem');
CREATE VIEW ab AS SELECT a.id, b.id AS b_id, a.k, a.x, b.x AS b_x, a.ts, b.ts AS b_ts
FROM a LEFT JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' HOUR;

-- 2: by the time of the right side, with a filter between the joins
SELECT ab.id, ab.b_id, c.id AS c_id
FROM (SELECT id, b_id, k, b_ts FROM ab WHERE x > 3) AS ab
LEFT JOIN c ON ab.k = c.k AND c.ts BETWEEN ab.b_ts AND ab.b_ts + INTERVAL '2' HOUR;

-- 4: equal windows
SELECT r.id, c.id AS c_id, r.window_start
FROM (
  SELECT l.id, r.k, l.window_start, l.window_end
  FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS l
  RIGHT JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS r
  ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end
) AS r JOIN (SELECT * FROM TABLE(TUMBLE(TABLE c, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS c
ON r.k = c.k AND r.window_start = c.window_start AND r.window_end = c.window_end;

-- 6: an interval after windows
SELECT w.id, c.id AS c_id
FROM (
  SELECT l.id, l.k, r.window_time AS t
  FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS l
  JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS r
  ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end
) AS w JOIN c ON w.k = c.k AND c.ts BETWEEN w.t AND w.t + INTERVAL '1' HOUR;

-- 8: windows after an interval
SELECT l.id, c.id AS c_id
FROM (SELECT * FROM TABLE(TUMBLE(TABLE ab, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS l
JOIN (SELECT * FROM TABLE(TUMBLE(TABLE c, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS c
ON l.k = c.k AND l.window_start = c.window_start AND l.window_end = c.window_end;

-- 11: a tree
SELECT ab.id, cd.id AS c_id
FROM ab JOIN (
  SELECT c.id, d.id AS d_id, c.k, d.ts AS t FROM c JOIN d ON c.k = d.k AND d.ts BETWEEN c.ts AND c.ts + INTERVAL '1' HOUR
) AS cd ON ab.k = cd.k AND cd.t BETWEEN ab.ts AND ab.ts + INTERVAL '3' HOUR;

-- 14: three joins in a row
SELECT abc.id, d.id AS d_id
FROM (
  SELECT ab.id, ab.k, ab.ts, c.ts AS c_ts FROM ab JOIN c ON ab.k = c.k AND c.ts BETWEEN ab.ts AND ab.ts + INTERVAL '1' HOUR
) AS abc JOIN d ON abc.k = d.k AND d.ts BETWEEN abc.ts AND abc.ts + INTERVAL '1' HOUR;

-- 15: semi join first
SELECT s.id, c.id AS c_id
FROM (
  SELECT l.id, l.k, l.window_start, l.window_end
  FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS l
  WHERE l.k IN (
    SELECT r.k FROM (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS r
    WHERE l.window_start = r.window_start AND l.window_end = r.window_end
  )
) AS s JOIN (SELECT * FROM TABLE(TUMBLE(TABLE c, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS c
ON s.k = c.k AND s.window_start = c.window_start AND s.window_end = c.window_end;
