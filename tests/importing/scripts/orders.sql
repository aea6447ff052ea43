-- Left interval join with exclusive and inclusive bounds, filters on both sides; and a residual condition.
SET 'table.exec.source.idle-timeout' = '30 s';
SET 'table.exec.interval-join.min-cleanup-interval' = '5 min';

CREATE TABLE orders (
  order_id BIGINT,
  customer STRING,
  amount DECIMAL(10, 2),
  order_ts TIMESTAMP(3),
  WATERMARK FOR order_ts AS order_ts - INTERVAL '10' SECOND
) WITH ('connector' = 'kafka', 'topic' = 'orders', 'scan.watermark.idle-timeout' = '20 s');

CREATE TABLE shipments (
  id BIGINT,
  order_id BIGINT,
  client STRING,
  broker_ts TIMESTAMP(3) METADATA FROM 'timestamp',
  ship_ts TIMESTAMP(3),
  WATERMARK FOR ship_ts AS ship_ts - INTERVAL '5' MINUTE
) WITH ('connector' = 'pulsar', 'topic' = 'shipments; -- all');

CREATE TABLE shipped_orders (order_id BIGINT, customer STRING, shipment BIGINT, ship_ts TIMESTAMP(3), PRIMARY KEY (order_id) NOT ENFORCED)
WITH ('connector' = 'jdbc', 'url' = 'jdbc:postgresql://host/db', 'table-name' = 'shipped_orders');

INSERT INTO shipped_orders
SELECT o.order_id, o.customer, s.id, s.ship_ts
FROM orders AS o
LEFT JOIN shipments AS s
  ON o.order_id = s.order_id AND o.customer = s.client
  AND s.ship_ts > o.order_ts - INTERVAL '1' HOUR AND s.ship_ts <= o.order_ts + INTERVAL '4' HOUR
  AND o.amount > 10 AND s.id <> 7
WHERE o.customer IN ('a', 'it''s', 'c\d');
