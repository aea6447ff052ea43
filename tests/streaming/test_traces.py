"""Which rows each batch of a real query has read, told from its checkpoint alone."""

import json
import shutil
from collections import defaultdict

import pytest
from pyspark.sql import functions as F

from tidemark.config import Trace
from tidemark.delta.pipeline_tables import DeltaInput
from tidemark.errors import InputError
from tidemark.sources.streaming_checkpoint_source import ARRIVAL, traced_input
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.query_trace import QueryTrace


@pytest.fixture
def files(spark, lake):
    """Appends versions to table `left`, given the numbers of rows of their files."""

    def append(*versions):
        path, first = str(lake / "left"), len(list((lake / "left").glob("*.parquet"))) * 100
        for sizes in versions:
            rows = [(first + file * 100 + n, file) for file, size in enumerate(sizes) for n in range(size)]
            table = spark.createDataFrame(rows, "id int, file int").repartitionById(len(sizes), "file")
            table.write.format("delta").mode("append").save(path)
            first += 100 * len(sizes)

    return append


@pytest.fixture
def query(spark, lake, tmp_path):
    """Reads what is there and not read yet; gives the rows of all batches so far."""
    batches = defaultdict(set)

    def run(folder="left", kind="delta", **options):
        reader = spark.readStream.format(kind).options(**options)
        if kind != "delta":
            reader = reader.schema("id int")
        rows = reader.load(str(lake / folder)).select("id")
        sink = rows.writeStream.foreachBatch(lambda part, n: batches[n].update(row["id"] for row in part.collect()))
        with tuned_for_tiny_queries(spark):
            sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
        return [batches[number] for number in sorted(batches)]

    return run


@pytest.fixture
def traced(spark, lake, tmp_path, pipeline):
    def read(**settings):
        trace = QueryTrace.read(spark, str(tmp_path / "c"), pipeline(dialect="spark"))
        found = defaultdict(set)
        table = DeltaInput.find(spark, str(lake), "left")
        for row in traced_input(table, trace, "left", Trace(trace="c", **settings)).read().collect():
            found[row[ARRIVAL].timestamp() * 1_000_000 // 1].add(row["id"])
        return [found[batch.clock] for batch in trace.batches]

    return read


def test_files_of_the_first_snapshot_and_of_later_versions(spark, lake, files, query, traced):
    files([2, 1, 3], [1, 2])
    assert len(query(maxFilesPerTrigger="2")) == 3
    files([4, 1, 1], [2])
    read = query(maxFilesPerTrigger="2")
    assert traced() == read
    assert len(read) == 5
    assert all(read)
    spark.sql(f"OPTIMIZE delta.`{lake}/left`")
    files([1])
    assert traced() == read


def test_a_reader_that_began_with_a_later_version(files, query, traced):
    files([2, 1], [1, 2, 3])
    read = query(maxFilesPerTrigger="1", startingVersion="1")
    assert traced(starting_version=1) == read
    assert [len(batch) for batch in read] == [1, 2, 3]


def test_files_of_which_a_table_was_made(spark, lake, files, query, traced):
    rows = spark.createDataFrame([(n, 0) for n in range(24)], "id int, file int")
    rows.repartition(12).write.parquet(str(lake / "left"))
    read = query(kind="parquet", maxFilesPerTrigger="1")
    spark.sql(f"CONVERT TO DELTA parquet.`{lake}/left`")
    files([2])
    assert traced() == read
    assert len(read) == 12, "enough for the query to compact its list"
    assert set().union(*read) == set(range(24))
    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE id = 0")
    with pytest.raises(InputError, match="no longer has 1 of the files that the query .* it was rewritten; restore"):
        traced()


def test_files_that_a_column_names(spark, lake, query, traced, tmp_path):
    folder = lake / "landing one"
    for day in range(3):
        (folder / f"day={day}").mkdir(parents=True)
        (folder / f"day={day}" / "rows.json").write_text("".join(f'{{"id": {10 * day + n}}}\n' for n in range(3)))
        read = query(folder="landing one", kind="json")
    assert read == [{0, 1, 2}, {10, 11, 12}, {20, 21, 22}]
    rows = spark.read.schema("id int").json(str(folder)).withColumn("path", F.col("_metadata.file_path"))
    rows.write.format("delta").save(str(lake / "left"))
    assert traced(file="path") == read
    with pytest.raises(InputError, match="has no row of them by the names of its own files; name the column"):
        traced()
    with pytest.raises(InputError, match="has no column file .named as file.; it has id, day, path"):
        traced(file="file")
    rows.withColumn("path", F.url_decode("path")).write.format("delta").mode("overwrite").save(str(lake / "left"))
    assert traced(file="path") == read
    shutil.rmtree(tmp_path / "c" / "sources")
    with pytest.raises(InputError, match="without it nobody knows which files the query has read"):
        traced(file="path")


def test_checkpoints_that_cannot_be_replayed(spark, lake, files, query, traced, tmp_path):
    with pytest.raises(InputError, match="is not the checkpoint of a streaming query"):
        traced()
    files([1], [1])
    query(maxFilesPerTrigger="1")
    first = tmp_path / "c" / "offsets" / "0"
    kept = first.read_text()
    first.unlink()
    (first.parent / ".0.crc").unlink()
    with pytest.raises(InputError, match="begins with batch 1: Spark has removed"):
        traced()
    version, header, offset = kept.splitlines()
    first.write_text("\n".join([version, header, json.dumps({"orders-0": 12})]))
    with pytest.raises(InputError, match="reads something else than Delta tables and files"):
        traced()
    first.write_text(f"v9\n{header}\n{offset}")
    with pytest.raises(InputError, match=r"format v9; this version of Tidemark reads v1"):
        traced()
