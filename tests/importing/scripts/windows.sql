-- All windows and join types of window joins.
CREATE TABLE clicks (id BIGINT, k STRING, ms BIGINT, ts AS TO_TIMESTAMP_LTZ(ms, 3), WATERMARK FOR ts AS ts)
WITH ('connector' = 'kafka');
CREATE TABLE page_views (id BIGINT, k STRING, ts TIMESTAMP_LTZ(3), v DOUBLE, WATERMARK FOR ts AS ts - INTERVAL '5' MINUTE)
WITH ('connector' = 'kinesis');
CREATE TABLE local_clicks (id BIGINT, k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND)
WITH ('connector' = 'kafka');

SELECT l.id, r.id AS view_id, l.window_start, l.ts, r.ts AS view_ts
FROM (SELECT * FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '10' MINUTE))) AS l
FULL JOIN (SELECT * FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '10' MINUTE))) AS r
ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end AND r.v > l.id;

SET 'table.local-time-zone' = 'Europe/Berlin';

SELECT l.id FROM (SELECT * FROM TABLE(HOP(TABLE clicks, DESCRIPTOR(ts), INTERVAL '10' MINUTE, INTERVAL '1' HOUR))) AS l
WHERE NOT EXISTS (
  SELECT * FROM (SELECT * FROM TABLE(HOP(TABLE page_views, DESCRIPTOR(ts), INTERVAL '10' MINUTE, INTERVAL '1' HOUR)) WHERE v > 3) AS r
  WHERE l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end);

SELECT l.id FROM (SELECT * FROM TABLE(CUMULATE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '10' MINUTE, INTERVAL '1' DAY))) AS l
RIGHT JOIN (SELECT * FROM TABLE(CUMULATE(TABLE page_views, DESCRIPTOR(ts), INTERVAL '10' MINUTE, INTERVAL '1' DAY))) AS r
ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end;

SELECT l.id FROM (SELECT * FROM TABLE(TUMBLE(TABLE local_clicks, DESCRIPTOR(ts), INTERVAL '90' SECOND, INTERVAL -'10' SECOND))) AS l
WHERE l.k IN (
  SELECT k FROM (SELECT * FROM TABLE(TUMBLE(TABLE local_clicks, DESCRIPTOR(ts), INTERVAL '90' SECOND, INTERVAL -'10' SECOND))) AS r
  WHERE l.window_start = r.window_start AND l.window_end = r.window_end);

SELECT l.id AS l_id, r.id AS r_id
FROM (SELECT * FROM TABLE(SESSION(TABLE clicks PARTITION BY k, DESCRIPTOR(ts), INTERVAL '10' MINUTE))) AS l
JOIN (SELECT * FROM TABLE(SESSION(TABLE page_views PARTITION BY k, DESCRIPTOR(ts), INTERVAL '10' MINUTE))) AS r
ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end;
