CREATE TABLE orders (
  order_id BIGINT, customer STRING, order_ts TIMESTAMP(3),
  WATERMARK FOR order_ts AS order_ts - INTERVAL '10' SECOND
) WITH ('connector' = 'kafka', 'topic' = 'orders', 'format' = 'json');

CREATE TABLE shipments (
  order_id BIGINT, carrier STRING, ship_ts TIMESTAMP(3),
  WATERMARK FOR ship_ts AS ship_ts - INTERVAL '5' MINUTE
) WITH ('connector' = 'kafka', 'topic' = 'shipments', 'format' = 'json');

CREATE TABLE shipped (order_id BIGINT, customer STRING, carrier STRING) WITH ('connector' = 'kafka', 'topic' = 'shipped');

INSERT INTO shipped
SELECT o.order_id, o.customer, s.carrier
FROM orders AS o LEFT JOIN shipments AS s
  ON o.order_id = s.order_id AND s.ship_ts > o.order_ts AND s.ship_ts <= o.order_ts + INTERVAL '4' HOUR
WHERE o.customer <> 'test';
