-- A view over an interval join on processing time, with computed keys.
CREATE TABLE a (id BIGINT, email STRING, arrived AS PROCTIME()) WITH ('connector' = 'kafka');
CREATE TABLE b (id BIGINT, email STRING, arrived AS PROCTIME()) WITH ('connector' = 'kafka');
CREATE VIEW pairs AS
SELECT a.id, b.id AS b_id FROM a JOIN b
ON LOWER(a.email) = LOWER(b.email) AND a.arrived BETWEEN b.arrived - INTERVAL '10' SECOND AND b.arrived + INTERVAL '5' SECOND;
