import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * Records the output of a Flink join event by event. Compiled and started by tests.flink_parity.recorder.
 *
 * <p>Usage: FlinkStreams STREAMS ANSWER. The lines of a stream are settings of Flink ("set", name, value), names of
 * its inputs ("inputs"; default: left, right), views ("view", name, query), its join, its events (input, key, time in ms,
 * the input's watermark after it, id, second key), "idle" and an input that falls idle, "restart" where the job fails, and
 * "end"; fields are separated by tabs. The join is a "query" over views and inputs (left_rows and right_rows), or one of
 * the DataStream API: an "interval" (lower, upper), a "chain" of two intervals (lower, upper, lower, upper; the second
 * key of the first input is the key of the second interval), or the "join" or "cogroup" of tumbling windows (size). A line of the answer is a "row" or the join's
 * "watermark" after an event, with the number of the stream and of the event at which it was emitted (or "restart", or
 * "drain"). A row has its timestamp and its fields: ids, and times in ms; times without a zone are converted as UTC. A row
 * that an interval join drops is "late" and its id.
 *
 * <p>A checkpoint that passes the source after an event shows that the join has processed the event, because its barrier
 * follows the event through all operators. The job also resumes from it after a failure.
 */
public final class FlinkStreams {
    private static final long PATIENCE_MS = 120_000;
    private static final KeySelector<Row, String> KEY = row -> row.getFieldAs(0);
    private static final TypeInformation<Row> INPUT =
            Types.ROW_NAMED(new String[] {"k", "id", "k2"}, Types.STRING, Types.STRING, Types.STRING);
    private static final TypeInformation<Row> PAIR = Types.ROW(Types.STRING, Types.STRING);
    private static final OutputTag<Row> LATE = new OutputTag<>("late", INPUT);

    /** State that sources, sink and the main thread share: all of them run in this process. */
    private static final Map<String, BlockingQueue<String[]>> FEEDS = new HashMap<>();

    /** Released by each source that starts, and for each event that it has emitted. */
    private static final Semaphore FED = new Semaphore(0);

    private static final List<String> ANSWER = new ArrayList<>();
    private static volatile int stream;
    private static volatile String at;
    private static volatile Long watermark;

    /** Numbers of checkpoints: the last that a source has passed, the first after an event, the last completed. */
    private static volatile long passed;

    private static volatile long awaited;
    private static volatile long completed;
    private static final String[] FAILURE = {};
    private static final String[] END = {};

    public static void main(String[] arguments) throws Exception {
        Map<String, String> settings = new HashMap<>();
        List<String> inputs = List.of("left", "right");
        Map<String, String> views = new LinkedHashMap<>();
        String[] join = null;
        List<String[]> events = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(arguments[0]), StandardCharsets.UTF_8)) {
            String[] fields = line.split("\t");
            switch (fields[0]) {
                case "set" -> settings.put(fields[1], fields[2]);
                case "inputs" -> inputs = List.of(fields).subList(1, fields.length);
                case "view" -> views.put(fields[1], fields[2]);
                case "query", "interval", "chain", "join", "cogroup" -> join = fields;
                case "event", "idle", "restart" -> events.add(fields);
                default -> {
                    run(settings, inputs, views, join, events);
                    Files.write(Path.of(arguments[1]), ANSWER);
                    inputs = List.of("left", "right");
                    settings.clear();
                    views.clear();
                    events.clear();
                    stream++;
                }
            }
        }
    }

    private static void run(
            Map<String, String> settings,
            List<String> inputs,
            Map<String, String> views,
            String[] join,
            List<String[]> events)
            throws Exception {
        long restarts = events.stream().filter(event -> event[0].equals("restart")).count();
        settings.put("execution.checkpointing.interval", "10 ms");
        settings.put("restart-strategy.type", "fixed-delay");
        settings.put("restart-strategy.fixed-delay.attempts", String.valueOf(restarts));
        settings.put("restart-strategy.fixed-delay.delay", "0 s");
        StreamExecutionEnvironment flink =
                StreamExecutionEnvironment.getExecutionEnvironment(Configuration.fromMap(settings));
        flink.setParallelism(1);
        flink.setBufferTimeout(0);
        Map<String, DataStream<Row>> rows = new LinkedHashMap<>();
        for (String input : inputs) {
            rows.put(input, rows(flink, input));
        }
        joined(flink, rows, views, join).transform("answer", Types.STRING, new Answer()).sinkTo(new DiscardingSink<>());
        passed = 0;
        completed = 0;
        CompletableFuture<JobExecutionResult> job = flink.executeAsync().getJobExecutionResult();
        await(job, () -> FED.tryAcquire(inputs.size()));
        int number = 0;
        for (String[] event : events) {
            if (event[0].equals("restart")) {
                at = "restart";
                FEEDS.get("left").put(FAILURE);
                await(job, () -> FED.tryAcquire(inputs.size()));
                continue;
            }
            at = String.valueOf(number++);
            FEEDS.get(event[1]).put(event);
            await(job, () -> FED.tryAcquire());
            await(job, () -> completed >= awaited);
            ANSWER.add(String.join("\t", "watermark", String.valueOf(stream), at, String.valueOf(watermark)));
        }
        at = "drain";
        for (String input : inputs) {
            FEEDS.get(input).put(END);
        }
        job.get();
    }

    private static DataStream<Row> joined(
            StreamExecutionEnvironment flink,
            Map<String, DataStream<Row>> rows,
            Map<String, String> views,
            String[] join) {
        Iterator<DataStream<Row>> inputs = rows.values().iterator();
        DataStream<Row> left = inputs.next();
        DataStream<Row> right = inputs.next();
        return switch (join[0]) {
            case "query" -> queried(flink, rows, views, join[1]);
            case "chain" ->
                    left.keyBy(KEY)
                            .intervalJoin(right.keyBy(KEY))
                            .between(millis(join[1]), millis(join[2]))
                            .process(new KeyedPairs(), INPUT)
                            .keyBy(KEY)
                            .intervalJoin(inputs.next().keyBy(KEY))
                            .between(millis(join[3]), millis(join[4]))
                            .process(new Pairs(), PAIR);
            case "interval" -> {
                SingleOutputStreamOperator<Row> pairs =
                        left.keyBy(KEY)
                                .intervalJoin(right.keyBy(KEY))
                                .between(millis(join[1]), millis(join[2]))
                                .sideOutputLeftLateData(LATE)
                                .sideOutputRightLateData(LATE)
                                .process(new Pairs(), PAIR);
                yield pairs.union(pairs.getSideOutput(LATE).map(row -> Row.of("late", row.getField(1)), PAIR));
            }
            case "join" ->
                    left.join(right)
                            .where(KEY)
                            .equalTo(KEY)
                            .window(TumblingEventTimeWindows.of(millis(join[1])))
                            .apply((one, other) -> Row.of(one.getField(1), other.getField(1)), PAIR);
            default ->
                    left.coGroup(right)
                            .where(KEY)
                            .equalTo(KEY)
                            .window(TumblingEventTimeWindows.of(millis(join[1])))
                            .apply((ones, others, out) -> out.collect(Row.of(ids(ones), ids(others))), PAIR);
        };
    }

    private static DataStream<Row> rows(StreamExecutionEnvironment flink, String side) {
        FEEDS.put(side, new LinkedBlockingQueue<>());
        return flink.addSource(new Feed(side), side, INPUT);
    }

    private static DataStream<Row> queried(
            StreamExecutionEnvironment flink,
            Map<String, DataStream<Row>> inputs,
            Map<String, String> views,
            String query) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(flink);
        Schema schema =
                Schema.newBuilder()
                        .column("k", "STRING")
                        .column("id", "STRING")
                        .column("k2", "STRING")
                        .columnByMetadata("ts", DataTypes.TIMESTAMP_LTZ(3), "rowtime")
                        .watermark("ts", "SOURCE_WATERMARK()")
                        .build();
        inputs.forEach((name, rows) -> tables.createTemporaryView(name + "_rows", rows, schema));
        views.forEach((name, sql) -> tables.createTemporaryView(name, tables.sqlQuery(sql)));
        return tables.toDataStream(tables.sqlQuery(query));
    }

    private static Duration millis(String told) {
        return Duration.ofMillis(Long.parseLong(told));
    }

    private static String ids(Iterable<Row> rows) {
        return StreamSupport.stream(rows.spliterator(), false)
                .map(row -> row.<String>getFieldAs(1))
                .sorted()
                .collect(Collectors.joining(","));
    }

    /** Waits for an action of the job, unless the job has failed permanently. */
    private static void await(CompletableFuture<JobExecutionResult> job, BooleanSupplier done) throws Exception {
        for (long end = System.currentTimeMillis() + PATIENCE_MS; !done.getAsBoolean(); Thread.sleep(1)) {
            if (job.isDone()) {
                job.get();
            }
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("nothing more came at " + at);
            }
        }
    }

    /** A side's rows, each with the watermark after it. */
    private static final class Feed implements SourceFunction<Row>, CheckpointedFunction {
        private final String side;

        Feed(String side) {
            this.side = side;
        }

        @Override
        public void run(SourceContext<Row> out) throws Exception {
            FED.release();
            for (String[] event = FEEDS.get(side).take(); event != END; event = FEEDS.get(side).take()) {
                if (event == FAILURE) {
                    throw new IOException("told to fail");
                }
                synchronized (out.getCheckpointLock()) {
                    if (event[0].equals("idle")) {
                        out.markAsTemporarilyIdle();
                    } else {
                        out.collectWithTimestamp(Row.of(event[2], event[5], event.length > 6 ? event[6] : null), Long.parseLong(event[3]));
                        out.emitWatermark(new Watermark(Long.parseLong(event[4])));
                    }
                    awaited = passed + 1;
                }
                FED.release();
            }
        }

        @Override
        public void cancel() {}

        @Override
        public void initializeState(FunctionInitializationContext context) {}

        @Override
        public void snapshotState(FunctionSnapshotContext context) {
            passed = context.getCheckpointId();
        }
    }

    private static final class Pairs extends ProcessJoinFunction<Row, Row, Row> {
        @Override
        public void processElement(Row left, Row right, Context context, Collector<Row> out) {
            out.collect(Row.of(left.getField(1), right.getField(1)));
        }
    }

    /** Pairs as an input of the next join, with the left row's second key. */
    private static final class KeyedPairs extends ProcessJoinFunction<Row, Row, Row> {
        @Override
        public void processElement(Row left, Row right, Context context, Collector<Row> out) {
            out.collect(Row.of(left.getField(2), left.getField(1) + "," + right.getField(1), null));
        }
    }

    /** The join's rows and watermarks, in the order of emission. */
    private static final class Answer extends AbstractStreamOperator<String>
            implements OneInputStreamOperator<Row, String> {
        @Override
        public void open() throws Exception {
            super.open();
            watermark = null;
        }

        @Override
        public void processElement(StreamRecord<Row> element) {
            Row row = element.getValue();
            String time = element.hasTimestamp() ? String.valueOf(element.getTimestamp()) : "null";
            List<String> fields = new ArrayList<>(List.of("row", String.valueOf(stream), at, time));
            for (int number = 0; number < row.getArity(); number++) {
                fields.add(told(row.getField(number)));
            }
            ANSWER.add(String.join("\t", fields));
        }

        private static String told(Object value) {
            if (value instanceof LocalDateTime local) {
                return String.valueOf(local.toInstant(ZoneOffset.UTC).toEpochMilli());
            }
            return value instanceof Instant instant ? String.valueOf(instant.toEpochMilli()) : String.valueOf(value);
        }

        @Override
        public void processWatermark(Watermark mark) throws Exception {
            super.processWatermark(mark);
            watermark = mark.getTimestamp();
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            completed = checkpoint;
        }
    }
}
