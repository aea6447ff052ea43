-- Statements, tables and hints of many forms.
CREATE CATALOG prod WITH ('type' = 'hive', 'hive-conf-dir' = '/x');
USE CATALOG prod;
CREATE DATABASE shop;
USE shop;
ADD JAR '/x.jar';
SET 'parallelism.default' = '4';
RESET 'parallelism.default';
CREATE TEMPORARY TABLE orders (
  order_id BIGINT, part INT METADATA FROM 'partition' VIRTUAL, off BIGINT METADATA FROM 'offset' VIRTUAL, ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', dd AS DATE_FORMAT(ts, 'yyyy'),
  WATERMARK FOR ts AS ts - INTERVAL '10' SECOND, PRIMARY KEY (order_id) NOT ENFORCED
) PARTITIONED BY (order_id) WITH ('connector' = 'iceberg');
CREATE TABLE shipments (WATERMARK FOR ts AS ts) WITH ('connector'='kafka') LIKE orders (EXCLUDING WATERMARKS EXCLUDING PARTITIONS);
CREATE TABLE out1 (order_id BIGINT, PRIMARY KEY (order_id) NOT ENFORCED) WITH ('connector' = 'upsert-kafka');
CREATE TABLE out2 (order_id BIGINT) WITH ('connector' = 'print');
CREATE FUNCTION g AS 'org.x.Missing';
SHOW TABLES;
DESCRIBE orders;
EXPLAIN SELECT 1;
EXECUTE STATEMENT SET BEGIN
INSERT INTO out1 SELECT o.order_id FROM orders o JOIN shipments s ON o.order_id = s.order_id AND o.ts BETWEEN s.ts AND s.ts + INTERVAL '1' HOUR;
INSERT INTO out2 SELECT /*+ STATE_TTL('o'='1d') */ o.order_id FROM orders /*+ OPTIONS('scan.startup.mode'='earliest') */ AS o JOIN shipments s ON o.order_id = s.order_id AND o.ts BETWEEN s.ts AND s.ts + INTERVAL '1' HOUR;
END;
