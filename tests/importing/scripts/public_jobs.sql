-- Joins of the same shape as those of public jobs; docs/import.md names the jobs.
CREATE TABLE events (
  event_type INT,
  person ROW<id BIGINT, name STRING, state STRING, ts TIMESTAMP(3)>,
  auction ROW<id BIGINT, seller BIGINT, category BIGINT, ts TIMESTAMP(3), expires TIMESTAMP(3)>,
  bid ROW<auction BIGINT, price BIGINT, ts TIMESTAMP(3)>,
  ts AS CASE WHEN event_type = 0 THEN person.ts WHEN event_type = 1 THEN auction.ts ELSE bid.ts END,
  WATERMARK FOR ts AS ts - INTERVAL '4' SECOND
) WITH ('connector' = 'kafka');
CREATE VIEW person AS SELECT person.id, person.name, person.state, ts FROM events WHERE event_type = 0;
CREATE VIEW auction AS SELECT auction.id, auction.seller, auction.category, auction.expires, ts FROM events WHERE event_type = 1;
CREATE VIEW bid AS SELECT bid.auction, bid.price, ts FROM events WHERE event_type = 2;

CREATE TABLE plain_orders (id INT, order_time TIMESTAMP_LTZ(3)) WITH ('connector' = 'datagen');
CREATE TABLE plain_shipments (id INT, order_id INT, ship_time TIMESTAMP_LTZ(3)) WITH ('connector' = 'datagen');

CREATE TABLE raw_orders (id INT, amount DOUBLE, raw_ts BIGINT, ts AS TO_TIMESTAMP(FROM_UNIXTIME(raw_ts)), WATERMARK FOR ts AS ts)
WITH ('connector' = 'kafka');
CREATE TABLE raw_shipments (id STRING, order_id INT, raw_ts BIGINT, ts AS TO_TIMESTAMP(FROM_UNIXTIME(raw_ts)), WATERMARK FOR ts AS ts)
WITH ('connector' = 'kafka');

CREATE TABLE left_rows (row_time TIMESTAMP(3), num INT, id STRING, WATERMARK FOR row_time AS row_time - INTERVAL '1' SECOND)
WITH ('connector' = 'datagen');
CREATE TABLE right_rows (row_time TIMESTAMP(3), num INT, id STRING, WATERMARK FOR row_time AS row_time - INTERVAL '1' SECOND)
WITH ('connector' = 'datagen');

-- Flink's documentation, window join
SELECT l.num AS l_num, l.id AS l_id, r.num AS r_num, r.id AS r_id,
  COALESCE(l.window_start, r.window_start) AS window_start, COALESCE(l.window_end, r.window_end) AS window_end
FROM (SELECT * FROM TABLE(TUMBLE(TABLE left_rows, DESCRIPTOR(row_time), INTERVAL '5' MINUTES))) AS l
FULL JOIN (SELECT * FROM TABLE(TUMBLE(TABLE right_rows, DESCRIPTOR(row_time), INTERVAL '5' MINUTES))) AS r
ON l.num = r.num AND l.window_start = r.window_start AND l.window_end = r.window_end;

-- Flink's documentation, interval join
SELECT l.id FROM left_rows AS l, right_rows AS r
WHERE l.id = r.id AND l.row_time BETWEEN r.row_time - INTERVAL '4' HOUR AND r.row_time;

-- Confluent's tutorial on joining two streams
SELECT o.id AS order_id, o.amount, s.id AS shipment_id FROM raw_orders AS o
JOIN raw_shipments AS s ON o.id = s.order_id AND s.ts BETWEEN o.ts AND o.ts + INTERVAL '7' DAY;

-- Flink SQL cookbook, interval join
SELECT o.id, s.ship_time FROM plain_orders AS o JOIN plain_shipments AS s ON o.id = s.order_id
WHERE o.order_time BETWEEN s.ship_time - INTERVAL '3' DAY AND s.ship_time;

-- Nexmark q3
SELECT p.name, a.id FROM auction AS a JOIN person AS p ON a.seller = p.id WHERE a.category = 10 AND p.state = 'or';

-- Nexmark q4, q9
SELECT a.category, MAX(b.price) AS price FROM auction AS a, bid AS b
WHERE a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires GROUP BY a.id, a.category;

-- Nexmark q7
SELECT b.auction, b.price FROM bid AS b
JOIN (SELECT MAX(price) AS max_price, window_end AS ts FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end) AS m
ON b.price = m.max_price WHERE b.ts BETWEEN m.ts - INTERVAL '10' SECOND AND m.ts;

-- Nexmark q8
SELECT p.id, p.name, p.window_start FROM (
  SELECT id, name, window_start, window_end FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY id, name, window_start, window_end) AS p
JOIN (SELECT seller, window_start, window_end FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY seller, window_start, window_end) AS a
ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end;

-- Nexmark q20
SELECT b.auction, b.price, a.category FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.category = 10;
