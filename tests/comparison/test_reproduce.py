"""One difference in a vector of few rows, which hold all that shows it: conformance fails on just that."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from tidemark import cli
from tidemark.comparison import Asked, compare
from tidemark.comparison.minimal_example import reproduce, smallest
from tidemark.config import TimeColumn
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark_conformance import check_files, read_vectors

ROW = "id int, k string, happened timestamp, arrived timestamp"
START = datetime(2024, 1, 1, tzinfo=UTC)
JOIN = {"keys": ["k"], "interval": {"lower": "-30 minutes", "upper": "20 minutes", "upper_inclusive": False}}


def rows_of(seed, first):
    """Rows over three hours, a fifth of which arrive long after they happened."""
    chance = random.Random(seed)
    for number in range(first, first + 80):
        happened = START + timedelta(seconds=chance.randrange(3 * 3600))
        late = timedelta(seconds=chance.randrange(2 * 3600 if chance.random() < 0.2 else 300))
        yield number, chance.choice("ab"), happened, happened + late


@pytest.fixture
def compared(spark, lake, write, pipeline):
    """A pipeline, and how it compares with a stream that ran under other settings."""

    def run(settings, **other):
        for side, seed in (("left", 1), ("right", 2)):
            write(side, list(rows_of(seed, 500 * seed)), ROW)
        made = [pipeline(**settings), pipeline(**(settings | other), output="other")]
        with tuned_for_tiny_queries(spark):
            plans = [make_plan(spark, one, str(lake), Request(drain=True)) for one in made]
            for plan in plans:
                list(execute(spark, plan, lambda *_: None))
            stream = spark.read.format("delta").load(plans[1].tables.emissions)
            stream.drop("_slice", "_pane", "_result_time").write.format("delta").save(str(lake / "stream"))
            return made[0], compare(spark, made[0], str(lake), Asked("stream", try_settings=False), None)

    return run


def failing(spark, path):
    """What the only vector of a file is told to lack, and to have too much."""
    (verdict,) = check_files(spark, [path], "1")
    return verdict.missing, verdict.unexpected


@pytest.mark.slow
def test_a_pair_that_only_the_stream_has(spark, lake, pipeline, compared, tmp_path):
    """The stream waited longer: a row that is late in the pipeline was on time there. Other differences are refused."""
    settings, told = compared({"join": JOIN}, left__watermark_delay="2 hours", right__watermark_delay="2 hours")
    cause = next(one for one in told.causes if one.missing_in == "batch")
    path = tmp_path / "vector.jsonl.gz"
    vector = reproduce(spark, settings, str(lake), told, cause.examples[0]["_number"], path)
    assert list(read_vectors(path)) == [vector]
    assert vector["dialect"] == "datastream_interval"
    # A pair, and what the watermark that left one of them behind was made of.
    assert 3 <= len(vector["events"]) <= 4
    missing, unexpected = failing(spark, path)
    assert (len(missing), unexpected) == (1, ())

    with pytest.raises(UserError, match="--reproduce 999: the comparison shows differences 1 to"):
        reproduce(spark, settings, str(lake), told, 999, path)
    windows = pipeline(join={"keys": ["k"], "window": {"tumbling": "1 hour"}})
    with pytest.raises(UserError, match="is for interval joins of Flink's dialects"):
        reproduce(spark, windows, str(lake), told, 1, path)
    recorded = settings.model_copy(
        update={"left": settings.left.model_copy(update={"watermark": TimeColumn(column="w")})}
    )
    with pytest.raises(UserError, match="the watermark of left is recorded, and a few rows do not have all of it"):
        reproduce(spark, recorded, str(lake), told, 1, path)
    with pytest.raises(UserError, match="where the job has restarted, a few rows do not tell"):
        reproduce(spark, pipeline(restarts=["2024-01-01T01:00Z"]), str(lake), told, 1, path)
    strange = spark.read.format("delta").load(str(lake / "stream")).limit(1).withColumn("left_id", F.lit(-1))
    strange.write.format("delta").save(str(lake / "strange"))
    with tuned_for_tiny_queries(spark):
        told = compare(spark, settings, str(lake), Asked("strange", try_settings=False), None)
    cause = next(one for one in told.causes if one.missing_in == "batch")
    with pytest.raises(UserError, match=f"a difference by '{cause.cause}' is not one of the join's rules"):
        reproduce(spark, settings, str(lake), told, cause.examples[0]["_number"], path)


def test_a_padded_row_that_only_the_pipeline_has(spark, lake, compared, tmp_path, capfd):
    """The stream's interval was wider: what it matched is padded here, and the other way round."""
    wider = {**JOIN["interval"], "upper": "2 hours"}
    settings, told = compared(
        {"dialect": "flink-sql", "join": {**JOIN, "type": "left"}}, join={**JOIN, "type": "left", "interval": wider}
    )
    shown = [one for cause in told.causes if cause.missing_in == "stream" for one in cause.examples]
    padded = next(one for one in shown if one["_emission"] == "padded_left")
    path = tmp_path / "vector.jsonl"
    vector = reproduce(spark, settings, str(lake), told, padded["_number"], path)
    assert len(vector["events"]) == 1
    assert vector["params"]["join_type"] == "left"
    missing, unexpected = failing(spark, path)
    assert (missing, len(unexpected)) == ((), 1)
    command = ["compare", str(tmp_path / "pipeline.yaml"), "--with", "stream", "--lake", str(lake)]
    assert cli.main([*command, "--reproduce", "1"]) == 2
    assert "--reproduce N and --into FILE go together" in capfd.readouterr().err
    assert cli.main([*command, "--reproduce", "1", "--into", "nowhere/one.jsonl"]) == 2
    assert "--into nowhere/one.jsonl: there is no folder nowhere; make it first" in " ".join(
        capfd.readouterr().err.split()
    )


def test_the_smallest_of_many_rows():
    asked = []

    def shows(parts):
        asked.append(len(parts))
        return [{3, 70, 71} <= set(part) for part in parts]

    assert smallest(range(200), shows) == [3, 70, 71]
    assert len(asked) < 20
    assert smallest(range(5), lambda parts: [True] * len(parts)) == []
