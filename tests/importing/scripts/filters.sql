-- Conditions of every kind that is translated, an aggregate after the join; and filters after an inner and an outer join.
CREATE TABLE a (id BIGINT, n INT, f DOUBLE, ok BOOLEAN, k STRING, customer ROW<id BIGINT, name STRING>, `a b` STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' DAY) WITH ('connector' = 'kafka');
CREATE TABLE b (id BIGINT, k STRING, d DECIMAL(10, 2), ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1.5' SECOND) WITH ('connector' = 'kafka');

SELECT TUMBLE_START(ts, INTERVAL '1' HOUR) AS start_ts, k, COUNT(*) AS n FROM (
  SELECT a.ts, a.k, a.n FROM a JOIN b ON a.customer.id = b.id AND a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '1' DAY AND b.ts
  WHERE (a.n > 3 OR a.f < 1.5E0 OR a.ok) AND a.k LIKE 'x%' AND a.`a b` IS NOT NULL AND NOT (a.n BETWEEN 5 AND 7)
  AND b.d >= 1.25 AND UPPER(b.k) <> 'X' AND a.n < b.d
) GROUP BY TUMBLE(ts, INTERVAL '1' HOUR), k;

SELECT a.id, b.id AS b_id FROM a LEFT JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '1' DAY AND b.ts WHERE b.id IS NULL;
