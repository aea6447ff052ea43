-- Joins that a pipeline cannot express, by number.
CREATE TABLE a (id BIGINT, k STRING, x INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH ('connector' = 'kafka');
CREATE TABLE b (id BIGINT, k STRING, x INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH ('connector' = 'kafka');
CREATE TABLE c (id BIGINT, k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH ('connector' = 'kafka');
CREATE TABLE late (id BIGINT, k STRING, x INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - x * INTERVAL '1' SECOND) WITH ('connector' = 'kafka');
CREATE TABLE changes (id BIGINT, k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'kafka', 'value.format' = 'debezium-json');

-- 1: null-safe keys
SELECT a.id, b.id AS b_id FROM a JOIN b ON a.k IS NOT DISTINCT FROM b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '5' SECOND;
-- 2 and 3: a chain of joins; its first join can be imported
SELECT ab.id, c.id AS c_id
FROM (SELECT a.id, a.k, a.ts FROM a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '5' SECOND) AS ab
JOIN c ON ab.k = c.k AND ab.ts BETWEEN c.ts AND c.ts + INTERVAL '5' SECOND;
-- 4: no equal keys
SELECT a.id, b.id AS b_id FROM a JOIN b ON a.ts BETWEEN b.ts AND b.ts + INTERVAL '5' SECOND;
-- 5: a condition that differs between engines
SELECT a.id, b.id AS b_id FROM a JOIN b ON a.k = b.k AND a.x / b.x > 1 AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '5' SECOND;
-- 6: the windows of aggregates
SELECT l.k FROM (SELECT k, window_start, window_end, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' HOUR)) GROUP BY k, window_start, window_end) AS l
JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(ts), INTERVAL '1' HOUR))) AS r
ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end;
-- 7: a watermark that is not a constant delay
SELECT late.id, b.id AS b_id FROM late JOIN b ON late.k = b.k AND late.ts BETWEEN b.ts AND b.ts + INTERVAL '5' SECOND;
-- 8: a union
SELECT l.id, c.id AS c_id FROM (SELECT id, k, ts FROM a UNION ALL SELECT id, k, ts FROM b) AS l JOIN c ON l.k = c.k AND l.ts BETWEEN c.ts AND c.ts + INTERVAL '5' SECOND;
-- 9: a changelog
SELECT changes.id, b.id AS b_id FROM changes JOIN b ON changes.k = b.k AND changes.ts BETWEEN b.ts AND b.ts + INTERVAL '5' SECOND;
-- 10: a filter of a computed value
SELECT a.id, b.id AS b_id FROM (SELECT * FROM a WHERE REVERSE(k) = 'x') AS a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '5' SECOND;
