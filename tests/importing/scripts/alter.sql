-- Tables that are changed or copied after they were created.
CREATE TABLE old_orders (
  order_id BIGINT,
  customer STRING,
  off BIGINT METADATA FROM 'offset' VIRTUAL,
  order_ts TIMESTAMP(3),
  WATERMARK FOR order_ts AS order_ts - INTERVAL '10' SECOND
) WITH ('connector' = 'kafka', 'topic' = 'orders', 'format' = 'json');
ALTER TABLE old_orders RENAME TO orders;
ALTER TABLE orders MODIFY WATERMARK FOR order_ts AS order_ts - INTERVAL '1' MINUTE;
ALTER TABLE orders ADD (region STRING);
ALTER TABLE orders SET ('scan.watermark.idle-timeout' = '40 s');

CREATE TABLE shipments WITH ('topic' = 'shipments') LIKE orders;
ALTER TABLE shipments DROP region;
CREATE TABLE changes WITH ('format' = 'debezium-json') LIKE orders;
CREATE TABLE corrections LIKE changes;
CREATE TABLE IF NOT EXISTS orders (order_id INT) WITH ('connector' = 'upsert-kafka');

CREATE VIEW big_orders AS SELECT * FROM orders WHERE order_id > 5;
ALTER VIEW big_orders AS SELECT * FROM orders WHERE order_id > 7;

CREATE TABLE results (order_id BIGINT) WITH ('connector' = 'blackhole');
CREATE TEMPORARY TABLE unused (order_id BIGINT) WITH ('connector' = 'print');
DROP TEMPORARY TABLE unused;

INSERT INTO results SELECT o.order_id FROM big_orders AS o JOIN shipments AS s
  ON o.order_id = s.order_id AND o.order_ts BETWEEN s.order_ts AND s.order_ts + INTERVAL '1' HOUR AND o.region = 'x';
INSERT INTO results SELECT o.order_id FROM orders AS o JOIN corrections AS s
  ON o.order_id = s.order_id AND o.order_ts BETWEEN s.order_ts AND s.order_ts + INTERVAL '1' HOUR;
