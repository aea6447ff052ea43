import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.WindowedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.WindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.evictors.CountEvictor;
import org.apache.flink.streaming.api.windowing.evictors.TimeEvictor;
import org.apache.flink.streaming.api.windowing.triggers.ContinuousEventTimeTrigger;
import org.apache.flink.streaming.api.windowing.triggers.CountTrigger;
import org.apache.flink.streaming.api.windowing.triggers.DeltaTrigger;
import org.apache.flink.streaming.api.windowing.triggers.EventTimeTrigger;
import org.apache.flink.streaming.api.windowing.triggers.PurgingTrigger;
import org.apache.flink.streaming.api.windowing.triggers.Trigger;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * Runs a flink-datastream window join by Flink's own operator. Compiled and started by jobs.flink_reference.
 *
 * <p>Flink implements a window join as one keyed stream of both sides' rows, in a window with the join's trigger and
 * evictor (CoGroupedStreams). So does this job, because the order of two streams would differ between runs.
 *
 * <p>Usage: FlinkWindows SETTINGS ROWS ANSWER. A line of the rows, in the order of their arrival, has the side (left,
 * right, or "instant" before the rows of one instant), number, event time (ms) and key. The number is -1 if the line only
 * moves the watermark. A line of the answer is JSON.
 */
public final class FlinkWindows {
    private static final String INSTANT = "instant";

    /** Number of a line that only moves the watermark of its side. */
    private static final long WITHOUT_ROW = -1;

    /** A row of either side, or the beginning of an instant. */
    public static final class Row {
        public String side;
        public long number;
        public long eventMs;
        public String key;

        static Row of(String line) {
            String[] parts = line.split(",", 4);
            Row row = new Row();
            row.side = parts[0];
            row.number = Long.parseLong(parts[1]);
            row.eventMs = Long.parseLong(parts[2]);
            row.key = parts[3];
            return row;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Settings settings = Settings.read(Path.of(arguments[0]));
        TypeInformation<Row> type = TypeInformation.of(Row.class);
        List<Row> rows = new ArrayList<>();
        Files.readAllLines(Path.of(arguments[1])).forEach(line -> rows.add(Row.of(line)));

        StreamExecutionEnvironment flink = StreamExecutionEnvironment.getExecutionEnvironment();
        flink.setParallelism(1);
        long left = settings.millis("left_lag");
        long right = settings.millis("right_lag");
        WindowedStream<Row, String, TimeWindow> windows =
                flink.fromData(rows, type)
                        .assignTimestampsAndWatermarks(
                                WatermarkStrategy.<Row>forGenerator(context -> new MinimumWatermark(left, right))
                                        .withTimestampAssigner((row, before) -> row.eventMs))
                        .filter(row -> !row.side.equals(INSTANT) && row.number != WITHOUT_ROW)
                        .keyBy(row -> row.key)
                        .window(settings.windows())
                        .trigger(settings.trigger(type))
                        .allowedLateness(settings.span("allowed_lateness"));
        DataStream<String> pairs = settings.evicted(windows).apply(new Pairs(), Types.STRING);
        try (BufferedWriter answer = Files.newBufferedWriter(Path.of(arguments[2]));
                var results = pairs.executeAndCollect()) {
            while (results.hasNext()) {
                answer.write(results.next());
                answer.newLine();
            }
        }
    }

    /** Settings of the join: a name and a number per line, spans in ms. */
    private record Settings(Properties values) {
        static Settings read(Path path) throws IOException {
            Properties values = new Properties();
            try (BufferedReader reader = Files.newBufferedReader(path)) {
                values.load(reader);
            }
            return new Settings(values);
        }

        boolean has(String name) {
            return values.containsKey(name);
        }

        long millis(String name) {
            return Long.parseLong(values.getProperty(name));
        }

        Duration span(String name) {
            return Duration.ofMillis(millis(name));
        }

        WindowAssigner<Object, TimeWindow> windows() {
            if (has("gap")) {
                return EventTimeSessionWindows.withGap(span("gap"));
            }
            if (has("slide")) {
                return SlidingEventTimeWindows.of(span("size"), span("slide"), span("offset"));
            }
            return TumblingEventTimeWindows.of(span("size"), span("offset"));
        }

        Trigger<Object, TimeWindow> trigger(TypeInformation<Row> type) {
            Trigger<Object, TimeWindow> trigger = EventTimeTrigger.create();
            if (has("continuous_event_time")) {
                trigger = ContinuousEventTimeTrigger.of(span("continuous_event_time"));
            } else if (has("count")) {
                trigger = CountTrigger.of(millis("count"));
            } else if (has("delta")) {
                trigger = delta(type);
            }
            return has("purging") ? PurgingTrigger.of(trigger) : trigger;
        }

        @SuppressWarnings("unchecked") // as every stream here, it is of rows
        private Trigger<Object, TimeWindow> delta(TypeInformation<Row> type) {
            Trigger<Row, TimeWindow> trigger =
                    DeltaTrigger.of(
                            millis("delta"),
                            (fired, row) -> row.eventMs - fired.eventMs,
                            type.createSerializer(
                                    new SerializerConfigImpl()));
            return (Trigger<Object, TimeWindow>) (Trigger<?, TimeWindow>) trigger;
        }

        WindowedStream<Row, String, TimeWindow> evicted(WindowedStream<Row, String, TimeWindow> windows) {
            boolean after = has("evictor_after");
            if (has("evictor_count")) {
                return windows.evictor(CountEvictor.of(millis("evictor_count"), after));
            }
            return has("evictor_time") ? windows.evictor(TimeEvictor.of(span("evictor_time"), after)) : windows;
        }
    }

    /** The watermark of a join: the lower one of both sides, updated before the rows of an instant. */
    private static final class MinimumWatermark implements WatermarkGenerator<Row> {
        private final Map<String, Long> lags;
        private final Map<String, Long> newest = new HashMap<>();

        MinimumWatermark(long left, long right) {
            lags = Map.of("left", left, "right", right);
        }

        @Override
        public void onEvent(Row row, long eventMs, WatermarkOutput output) {
            if (!row.side.equals(INSTANT)) {
                newest.merge(row.side, row.eventMs, Math::max);
            } else if (newest.keySet().equals(lags.keySet())) {
                long watermark = Long.MAX_VALUE;
                for (String side : lags.keySet()) {
                    watermark = Math.min(watermark, newest.get(side) - lags.get(side));
                }
                output.emitWatermark(new Watermark(watermark));
            }
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }

    /** Pairs the rows of a firing. */
    private static final class Pairs implements WindowFunction<Row, String, String, TimeWindow> {
        @Override
        public void apply(String key, TimeWindow window, Iterable<Row> rows, Collector<String> out) {
            for (Row left : rows) {
                for (Row right : rows) {
                    if (left.side.equals("left") && right.side.equals("right")) {
                        out.collect(
                                String.format(
                                        "{\"left_number\":%d,\"right_number\":%d,\"window_start\":\"%s\",\"window_end\":\"%s\"}",
                                        left.number,
                                        right.number,
                                        Instant.ofEpochMilli(window.getStart()),
                                        Instant.ofEpochMilli(window.getEnd())));
                    }
                }
            }
        }
    }
}
