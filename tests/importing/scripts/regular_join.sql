-- No bounds on times, so that Flink's planner makes a regular join.
CREATE TABLE a (id BIGINT, k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'kafka');
CREATE TABLE b (id BIGINT, k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'kafka');
SELECT a.id, b.id AS b_id FROM a JOIN b ON a.k = b.k AND a.ts >= b.ts;
