"""The checkpoint of a real query determines the rows that each batch has read."""

import json
import shutil
from collections import defaultdict

import pytest
from pyspark.sql import functions as F

from tidemark.config import CheckpointArrival
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import InputError
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN, create_query_input
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.query_trace import QueryTrace


@pytest.fixture
def append_files(spark, lake):
    """Append versions to table `left`, given the numbers of rows of their files."""

    def append(*versions):
        path, first = str(lake / "left"), len(list((lake / "left").glob("*.parquet"))) * 100
        for sizes in versions:
            rows = [(first + file * 100 + n, file) for file, size in enumerate(sizes) for n in range(size)]
            table = spark.createDataFrame(rows, "id int, file int").repartitionById(len(sizes), "file")
            table.write.format("delta").mode("append").save(path)
            first += 100 * len(sizes)

    return append


@pytest.fixture
def run_query(spark, lake, tmp_path):
    """Read the new rows of a table, and return the rows of all batches so far."""
    batches = defaultdict(set)

    def run(folder="left", format_name="delta", **options):
        reader = spark.readStream.format(format_name).options(**options)
        if format_name != "delta":
            reader = reader.schema("id int")
        rows = reader.load(str(lake / folder)).select("id")
        sink = rows.writeStream.foreachBatch(lambda part, n: batches[n].update(row["id"] for row in part.collect()))
        with tuned_for_tiny_queries(spark):
            sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
        return [batches[number] for number in sorted(batches)]

    return run


@pytest.fixture
def read_trace(spark, lake, tmp_path, pipeline):
    def read(**settings):
        trace = QueryTrace.read(spark, str(tmp_path / "c"), pipeline(dialect="spark"))
        batches = defaultdict(set)
        table = DeltaInput.find(spark, str(lake), "left")
        for row in (
            create_query_input(table, trace, "left", CheckpointArrival(streaming_checkpoint="c", **settings))
            .read()
            .collect()
        ):
            batches[row[ARRIVAL_COLUMN].timestamp() * 1_000_000 // 1].add(row["id"])
        return [batches[batch.clock] for batch in trace.batches]

    return read


def test_trace_of_a_snapshot_and_later_versions_equals_the_batches(spark, lake, append_files, run_query, read_trace):
    append_files([2, 1, 3], [1, 2])
    assert len(run_query(maxFilesPerTrigger="2")) == 3

    append_files([4, 1, 1], [2])
    read = run_query(maxFilesPerTrigger="2")
    assert read_trace() == read
    assert len(read) == 5
    assert all(read)

    spark.sql(f"OPTIMIZE delta.`{lake}/left`")
    append_files([1])
    assert read_trace() == read


def test_trace_from_a_starting_version_equals_the_batches(append_files, run_query, read_trace):
    append_files([2, 1], [1, 2, 3])
    read = run_query(maxFilesPerTrigger="1", startingVersion="1")
    assert read_trace(starting_version=1) == read
    assert [len(batch) for batch in read] == [1, 2, 3]


def test_trace_of_files_converted_to_delta_equals_the_batches(spark, lake, append_files, run_query, read_trace):
    rows = spark.createDataFrame([(n, 0) for n in range(24)], "id int, file int")
    rows.repartition(12).write.parquet(str(lake / "left"))
    read = run_query(format_name="parquet", maxFilesPerTrigger="1")
    spark.sql(f"CONVERT TO DELTA parquet.`{lake}/left`")
    append_files([2])
    assert read_trace() == read
    assert len(read) == 12, "enough for the query to compact its list"
    assert set().union(*read) == set(range(24))

    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE id = 0")
    with pytest.raises(InputError, match="no longer has 1 of the files that the query .* it was rewritten. Restore"):
        read_trace()


def test_trace_of_files_of_one_name_in_several_partitions_equals_the_batches(spark, lake, run_query, read_trace):
    rows = spark.createDataFrame([(n, n % 3) for n in range(9)], "id int, file int")
    rows.coalesce(1).write.partitionBy("file").parquet(str(lake / "left"))
    spark.sql(f"CONVERT TO DELTA parquet.`{lake}/left` PARTITIONED BY (file int)")
    assert len({file.name for file in (lake / "left").glob("file=*/*.parquet")}) == 1
    read = run_query(maxFilesPerTrigger="1")
    assert read_trace() == read
    assert len(read) == 3


def test_trace_of_files_in_a_column_equals_the_batches(spark, lake, run_query, read_trace, tmp_path):
    folder = lake / "landing folder"
    for day in range(3):
        (folder / f"day={day}").mkdir(parents=True)
        (folder / f"day={day}" / "rows.json").write_text("".join(f'{{"id": {10 * day + n}}}\n' for n in range(3)))
        read = run_query(folder="landing folder", format_name="json")
    assert read == [{0, 1, 2}, {10, 11, 12}, {20, 21, 22}]

    rows = spark.read.schema("id int").json(str(folder)).withColumn("path", F.col("_metadata.file_path"))
    rows.write.format("delta").save(str(lake / "left"))
    assert read_trace(file_column="path") == read
    with pytest.raises(InputError, match="has no row of them by the names of its own files. Name the column"):
        read_trace()
    with pytest.raises(InputError, match="has no column file .named as file_column.. Available: id, day, path"):
        read_trace(file_column="file")

    rows.withColumn("path", F.url_decode("path")).write.format("delta").mode("overwrite").save(str(lake / "left"))
    assert read_trace(file_column="path") == read

    shutil.rmtree(tmp_path / "c" / "sources")
    with pytest.raises(InputError, match="the files that the query has read are unknown"):
        read_trace(file_column="path")


def test_trace_of_an_unusable_checkpoint_raises(spark, lake, append_files, run_query, read_trace, tmp_path):
    with pytest.raises(InputError, match="is not a checkpoint of a streaming query"):
        read_trace()

    append_files([1], [1])
    run_query(maxFilesPerTrigger="1")
    first = tmp_path / "c" / "offsets" / "0"
    content = first.read_text()
    first.unlink()
    (first.parent / ".0.crc").unlink()
    with pytest.raises(InputError, match="begins with batch 1: Spark has removed"):
        read_trace()

    version, header, offset = content.splitlines()
    first.write_text("\n".join([version, header, json.dumps({"orders-0": 12})]))
    with pytest.raises(InputError, match="sources that are neither Delta tables nor files"):
        read_trace()

    first.write_text(f"v9\n{header}\n{offset}")
    with pytest.raises(InputError, match=r"format v9. This version of Tidemark reads format v1"):
        read_trace()
