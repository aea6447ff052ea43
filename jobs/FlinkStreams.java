import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
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
import org.apache.flink.streaming.api.datastream.KeyedStream;
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
 * Feeds rows to Flink's joins in a given order, and writes their output. Started by jobs.flink_streams and by
 * tests.flink_parity.recorder.
 *
 * <p>Usage: FlinkStreams STREAMS ANSWER. Fields of a line are separated by tabs. The lines of a stream are, in this order:
 *
 * <ul>
 *   <li>settings of Flink: "set", name, value;
 *   <li>names of its inputs: "inputs", name, ...; without this line they are left and right;
 *   <li>the number of key columns of each input: "keys", number; without this line there are two, k and k2;
 *   <li>views: "view", name, query;
 *   <li>interval joins of the DataStream API, whose outputs later joins may read: "pairs", name, left, right, lower bound,
 *       upper bound, positions of the key fields in the left and in the right rows, separated by commas;
 *   <li>the join whose output is written: a "query" over views and inputs (left_rows, right_rows), the name of one of the
 *       "pairs" after "output", or one of two inputs: "interval" (lower, upper), or "join" or "cogroup" of tumbling windows
 *       (size);
 *   <li>events: a row with the watermark of its input after it ("event", input, key, time in ms, watermark, id, further
 *       keys), a row without one ("row", the same with an ignored watermark), a "watermark" (input, ms), "wait" until all of
 *       these are processed, "idle" and an input that falls idle, "restart" where the job fails;
 *   <li>"end".
 * </ul>
 *
 * <p>An event is processed before the next one begins; rows and watermarks of several inputs between two waits have no
 * order. A line of the answer is a "row" or the join's "watermark" after an event, with the number of the stream and of the
 * event at which it was emitted (or of the next event, "restart", or "drain"). A row has its timestamp and its fields: times are in ms; those
 * without a zone are converted as UTC. A row that an "interval" drops is "late" and its id.
 *
 * <p>A checkpoint that passes the source after an event shows that the join has processed the event, because its barrier
 * follows the event through all operators. The job also resumes from it after a failure.
 */
public final class FlinkStreams {
    private static final long PATIENCE_MS = 120_000;
    private static final KeySelector<Row, String> KEY = row -> row.getFieldAs(0);
    private static final TypeInformation<Row> PAIR = Types.ROW(Types.STRING, Types.STRING);

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
        Stream told = new Stream();
        for (String line : Files.readAllLines(Path.of(arguments[0]), StandardCharsets.UTF_8)) {
            String[] fields = line.split("\t", -1);
            switch (fields[0]) {
                case "set" -> told.settings.put(fields[1], fields[2]);
                case "inputs" -> told.inputs = List.of(fields).subList(1, fields.length);
                case "keys" -> told.keys = Integer.parseInt(fields[1]);
                case "view" -> told.views.put(fields[1], fields[2]);
                case "pairs" -> told.pairs.add(fields);
                case "query", "output", "interval", "join", "cogroup" -> told.join = fields;
                case "end" -> {
                    run(told);
                    Files.write(Path.of(arguments[1]), ANSWER);
                    told = new Stream();
                    stream++;
                }
                default -> told.events.add(fields);
            }
        }
    }

    /** A stream's lines. */
    private static final class Stream {
        final Map<String, String> settings = new HashMap<>();
        List<String> inputs = List.of("left", "right");
        int keys = 2;
        final Map<String, String> views = new LinkedHashMap<>();
        final List<String[]> pairs = new ArrayList<>();
        String[] join;
        final List<String[]> events = new ArrayList<>();

        /** Names of an input's columns: the key, the id, and the further keys. */
        List<String> columns() {
            List<String> columns = new ArrayList<>(List.of("k", "id"));
            for (int number = 2; number <= keys; number++) {
                columns.add("k" + number);
            }
            return columns;
        }
    }

    private static void run(Stream told) throws Exception {
        Map<String, String> settings = told.settings;
        List<String> inputs = told.inputs;
        long restarts = told.events.stream().filter(event -> event[0].equals("restart")).count();
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
            rows.put(input, rows(flink, input, told.columns()));
        }
        joined(flink, rows, told).transform("answer", Types.STRING, new Answer()).sinkTo(new DiscardingSink<>());
        passed = 0;
        completed = 0;
        CompletableFuture<JobExecutionResult> job = flink.executeAsync().getJobExecutionResult();
        await(job, () -> FED.tryAcquire(inputs.size()));
        int number = 0;
        for (String[] event : told.events) {
            switch (event[0]) {
                case "restart" -> {
                    at = "restart";
                    FEEDS.get("left").put(FAILURE);
                    await(job, () -> FED.tryAcquire(inputs.size()));
                }
                case "wait" -> await(job, () -> completed >= awaited);
                case "row", "watermark" -> {
                    at = String.valueOf(number);
                    FEEDS.get(event[1]).put(event);
                    await(job, () -> FED.tryAcquire());
                }
                default -> {
                    at = String.valueOf(number++);
                    FEEDS.get(event[1]).put(event);
                    await(job, () -> FED.tryAcquire());
                    await(job, () -> completed >= awaited);
                    ANSWER.add(String.join("\t", "watermark", String.valueOf(stream), at, String.valueOf(watermark)));
                }
            }
        }
        at = "drain";
        for (String input : inputs) {
            FEEDS.get(input).put(END);
        }
        await(job, job::isDone);
        job.get();
    }

    private static DataStream<Row> joined(
            StreamExecutionEnvironment flink, Map<String, DataStream<Row>> rows, Stream told) {
        String[] join = told.join;
        Iterator<DataStream<Row>> inputs = rows.values().iterator();
        DataStream<Row> left = inputs.next();
        DataStream<Row> right = inputs.next();
        return switch (join[0]) {
            case "query" -> queried(flink, rows, told, join[1]);
            case "output" -> {
                Map<String, DataStream<Row>> outputs = new HashMap<>(rows);
                told.pairs.forEach(pairs -> outputs.put(pairs[1], pairs(outputs, pairs)));
                yield outputs.get(join[1]);
            }
            case "interval" -> {
                OutputTag<Row> late = new OutputTag<>("late", left.getType());
                SingleOutputStreamOperator<Row> pairs =
                        left.keyBy(KEY)
                                .intervalJoin(right.keyBy(KEY))
                                .between(millis(join[1]), millis(join[2]))
                                .sideOutputLeftLateData(late)
                                .sideOutputRightLateData(late)
                                .process(new Ids(), PAIR);
                yield pairs.union(pairs.getSideOutput(late).map(row -> Row.of("late", row.getField(1)), PAIR));
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

    /** Joins two streams on an interval. A pair has the fields of both rows. A row without a key has no pair. */
    private static DataStream<Row> pairs(Map<String, DataStream<Row>> streams, String[] told) {
        DataStream<Row> left = streams.get(told[2]);
        DataStream<Row> right = streams.get(told[3]);
        return keyed(left, told[6])
                .intervalJoin(keyed(right, told[7]))
                .between(millis(told[4]), millis(told[5]))
                .process(new Fields(), fields(left.getType().getArity() + right.getType().getArity()));
    }

    private static KeyedStream<Row, String> keyed(DataStream<Row> rows, String positions) {
        int[] keys = Arrays.stream(positions.split(",")).mapToInt(Integer::parseInt).toArray();
        return rows.filter(row -> Arrays.stream(keys).allMatch(key -> row.getField(key) != null))
                .keyBy(
                        row ->
                                Arrays.stream(keys)
                                        .mapToObj(key -> row.<String>getFieldAs(key))
                                        .collect(Collectors.joining(",")),
                        Types.STRING);
    }

    private static DataStream<Row> rows(StreamExecutionEnvironment flink, String side, List<String> columns) {
        FEEDS.put(side, new LinkedBlockingQueue<>());
        TypeInformation<?>[] types = strings(columns.size());
        return flink.addSource(
                new Feed(side, columns.size()), side, Types.ROW_NAMED(columns.toArray(String[]::new), types));
    }

    private static TypeInformation<Row> fields(int number) {
        return Types.ROW(strings(number));
    }

    private static TypeInformation<?>[] strings(int number) {
        return Collections.nCopies(number, Types.STRING).toArray(TypeInformation<?>[]::new);
    }

    private static DataStream<Row> queried(
            StreamExecutionEnvironment flink,
            Map<String, DataStream<Row>> inputs,
            Stream told,
            String query) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(flink);
        Schema schema =
                Schema.newBuilder()
                        .fromFields(told.columns(), Collections.nCopies(told.columns().size(), DataTypes.STRING()))
                        .columnByMetadata("ts", DataTypes.TIMESTAMP_LTZ(3), "rowtime")
                        .watermark("ts", "SOURCE_WATERMARK()")
                        .build();
        inputs.forEach((name, rows) -> tables.createTemporaryView(name + "_rows", rows, schema));
        told.views.forEach((name, sql) -> tables.createTemporaryView(name, tables.sqlQuery(sql)));
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
                throw new IllegalStateException("no progress in two minutes at event " + at);
            }
        }
    }

    /** A side's rows, each with the watermark after it. */
    private static final class Feed implements SourceFunction<Row>, CheckpointedFunction {
        private final String side;
        private final int arity;

        Feed(String side, int arity) {
            this.side = side;
            this.arity = arity;
        }

        @Override
        public void run(SourceContext<Row> out) throws Exception {
            FED.release();
            for (String[] event = FEEDS.get(side).take(); event != END; event = FEEDS.get(side).take()) {
                if (event == FAILURE) {
                    throw new IOException("told to fail");
                }
                synchronized (out.getCheckpointLock()) {
                    switch (event[0]) {
                        case "idle" -> out.markAsTemporarilyIdle();
                        case "watermark" -> out.emitWatermark(new Watermark(Long.parseLong(event[2])));
                        default -> {
                            out.collectWithTimestamp(row(event), Long.parseLong(event[3]));
                            if (event[0].equals("event")) {
                                out.emitWatermark(new Watermark(Long.parseLong(event[4])));
                            }
                        }
                    }
                    awaited = passed + 1;
                }
                FED.release();
            }
        }

        /** Creates the row of an event: its key, its id, and the further keys. An empty key is null. */
        private Row row(String[] event) {
            Row row = new Row(arity);
            row.setField(0, event[2].isEmpty() ? null : event[2]);
            row.setField(1, event[5]);
            for (int field = 6; field < event.length; field++) {
                row.setField(field - 4, event[field].isEmpty() ? null : event[field]);
            }
            return row;
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

    /** Emits the ids of both rows. */
    private static final class Ids extends ProcessJoinFunction<Row, Row, Row> {
        @Override
        public void processElement(Row left, Row right, Context context, Collector<Row> out) {
            out.collect(Row.of(left.getField(1), right.getField(1)));
        }
    }

    /** Emits the fields of both rows. */
    private static final class Fields extends ProcessJoinFunction<Row, Row, Row> {
        @Override
        public void processElement(Row left, Row right, Context context, Collector<Row> out) {
            out.collect(Row.join(left, right));
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
