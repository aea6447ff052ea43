-- Queries in statements other than INSERT and SELECT.
CREATE TABLE a (k STRING, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'kafka');
CREATE TABLE b (k STRING, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'kafka');
CREATE TABLE sink (v BIGINT) WITH ('connector' = 'blackhole');

CREATE TABLE joined_rows (w, v) WITH ('connector' = 'kafka', 'key.format' = 'json')
AS SELECT a.v, b.v AS w FROM a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '1' MINUTE;

CREATE OR REPLACE TABLE joined_rows WITH ('connector' = 'kafka')
AS SELECT a.v FROM a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '2' MINUTE;

COMPILE PLAN 'plan.json' FOR
INSERT INTO sink SELECT a.v FROM a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '3' MINUTE;

COMPILE PLAN 'set.json' IF NOT EXISTS FOR STATEMENT SET BEGIN
INSERT INTO sink SELECT a.v FROM a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '4' MINUTE;
INSERT INTO sink SELECT a.v FROM a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '5' MINUTE;
END;

EXPLAIN ESTIMATED_COST, CHANGELOG_MODE STATEMENT SET BEGIN
INSERT INTO sink SELECT a.v FROM a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '6' MINUTE;
END;

EXECUTE INSERT INTO sink SELECT a.v FROM a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '7' MINUTE;
