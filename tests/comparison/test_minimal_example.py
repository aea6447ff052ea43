"""A minimal example contains few rows, and conformance fails on exactly one emission of it."""

import random
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from pyspark.sql import functions as F

from tidemark import cli
from tidemark.comparison import ComparisonRequest, compare
from tidemark.comparison.minimal_example import find_minimal_example, minimize, write_vector
from tidemark.comparison.minimal_test_case import write_test_case
from tidemark.config import TimeColumn
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.pipeline_tests.case_file import read_case_file
from tidemark.pipeline_tests.runner import run_case_files
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark_conformance import check_files, read_vectors

ROW = "id int, k string, happened timestamp, arrived timestamp"
START = datetime(2024, 1, 1, tzinfo=UTC)
JOIN = {"keys": ["k"], "interval": {"lower": "-30 minutes", "upper": "20 minutes", "upper_inclusive": False}}


def generate_rows(seed, first):
    """Generate rows over three hours, a fifth of which arrive long after they happened."""
    generator = random.Random(seed)
    for number in range(first, first + 80):
        happened = START + timedelta(seconds=generator.randrange(3 * 3600))
        delay = timedelta(seconds=generator.randrange(2 * 3600 if generator.random() < 0.2 else 300))
        yield number, generator.choice("ab"), happened, happened + delay


@pytest.fixture
def compare_with_other_settings(spark, lake, write, pipeline):
    """Run a pipeline, and compare it with a stream that ran under other settings."""

    def run(settings, **changes):
        for side, seed in (("left", 1), ("right", 2)):
            write(side, list(generate_rows(seed, 500 * seed)), ROW)
        other = pipeline(**(settings | changes), output="other")
        pipelines = [pipeline(**settings), other]
        with tuned_for_tiny_queries(spark):
            plans = [create_plan(spark, each, str(lake), Request(drain=True)) for each in pipelines]
            for plan in plans:
                list(execute(spark, plan, lambda *_: None))
            stream = spark.read.format("delta").load(plans[1].tables.emissions)
            stream.drop("_slice", "_pane", "_result_time").write.format("delta").save(str(lake / "stream"))
            return pipelines[0], compare(
                spark, pipelines[0], str(lake), ComparisonRequest("stream", try_settings=False), None
            )

    return run


def replay_vector(spark, path):
    """Return the missing and the unexpected rows of the only vector of a file."""
    (result,) = check_files(spark, [path], "1")
    return result.missing, result.unexpected


@pytest.mark.slow
def test_write_minimal_example_pair_in_stream_only_is_missing(
    spark, lake, pipeline, compare_with_other_settings, tmp_path
):
    """The stream waited longer, so a row that is late in the pipeline was on time there."""
    settings, comparison = compare_with_other_settings(
        {"join": JOIN}, left__watermark_delay="2 hours", right__watermark_delay="2 hours"
    )
    cause = next(cause for cause in comparison.causes if cause.missing_in == "batch")
    path = tmp_path / "vector.jsonl.gz"
    example = find_minimal_example(spark, settings, str(lake), comparison, cause.examples[0]["_number"])
    vector = write_vector(example, path)
    assert list(read_vectors(path)) == [vector]
    assert vector["dialect"] == "datastream_interval"
    # A pair, and the rows that determine the watermark behind which one of them is.
    assert 3 <= len(vector["events"]) <= 4
    missing, unexpected = replay_vector(spark, path)
    assert (len(missing), unexpected) == (1, ())

    write_test_case(example, "stream", tmp_path / "pipeline.yaml")
    case_file = read_case_file(tmp_path / "pipeline.yaml")
    [run] = run_case_files(spark, [case_file])
    assert run.result.status == "passed"
    late = case_file.cases[0].expected["late"]
    assert {row.values["reason"] for row in late} == {"late"}

    with pytest.raises(UserError, match="difference 999: the comparison shows differences 1 to"):
        find_minimal_example(spark, settings, str(lake), comparison, 999)
    windows = pipeline(join={"keys": ["k"], "window": {"tumbling": "1 hour"}})
    with pytest.raises(UserError, match="supports interval joins of Flink's dialects"):
        find_minimal_example(spark, windows, str(lake), comparison, 1)
    recorded = settings.model_copy(
        update={"left": settings.left.model_copy(update={"recorded_watermark": TimeColumn(column="w")})}
    )
    with pytest.raises(UserError, match="the watermark of left is recorded, and a few rows do not contain all of it"):
        find_minimal_example(spark, recorded, str(lake), comparison, 1)
    with pytest.raises(UserError, match="a few rows do not show where the job restarted"):
        find_minimal_example(spark, pipeline(restarts=["2024-01-01T01:00Z"]), str(lake), comparison, 1)
    foreign = spark.read.format("delta").load(str(lake / "stream")).limit(1).withColumn("left_id", F.lit(-1))
    foreign.write.format("delta").save(str(lake / "foreign"))
    with tuned_for_tiny_queries(spark):
        comparison = compare(spark, settings, str(lake), ComparisonRequest("foreign", try_settings=False), None)
    cause = next(cause for cause in comparison.causes if cause.missing_in == "batch")
    with pytest.raises(UserError, match=f"its cause '{cause.cause}' does not follow from the join's rules"):
        find_minimal_example(spark, settings, str(lake), comparison, cause.examples[0]["_number"])


def test_write_minimal_example_padded_row_in_batch_only_is_unexpected(
    spark, lake, compare_with_other_settings, tmp_path, capfd
):
    """The stream's interval was wider, so rows that it matched are padded here."""
    wider = {**JOIN["interval"], "upper": "2 hours"}
    settings, comparison = compare_with_other_settings(
        {
            "dialect": "flink-sql",
            "join": {**JOIN, "type": "left"},
            "left__where": "id > 0",
            "left__filter": "before_watermark",
        },
        join={**JOIN, "type": "left", "interval": wider},
    )
    examples = [row for cause in comparison.causes if cause.missing_in == "stream" for row in cause.examples]
    padded = next(row for row in examples if row["_emission"] == "padded_left")
    path = tmp_path / "vector.jsonl"
    vector = write_vector(find_minimal_example(spark, settings, str(lake), comparison, padded["_number"]), path)

    assert len(vector["events"]) == 1
    assert vector["params"]["join_type"] == "left"

    missing, unexpected = replay_vector(spark, path)
    assert (missing, len(unexpected)) == ((), 1)

    command = ["compare", "minimize", str(tmp_path / "pipeline.yaml"), "--with", "stream", "--lake", str(lake)]
    for output, expected_message in {
        "nowhere/one.jsonl": "--output nowhere/one.jsonl: the folder nowhere does not exist. Create it first",
        "one.yaml": f"{tmp_path}/pipeline.yaml are in {tmp_path}/tests/pipeline.yaml. Pass --output {tmp_path}/tests",
    }.items():
        assert cli.main([*command, "1", "--output", output]) == 2
        assert expected_message in " ".join(capfd.readouterr().err.split())

    # The same differences as test cases, after a case that somebody wrote.
    file = tmp_path / "tests" / "pipeline.yaml"
    file.parent.mkdir()
    file.write_text("cases:\n  nothing:\n    given: []\n    expect: {emissions: []}  # no row\n# the end\n")
    allowed = [
        "--set",
        "try_settings=false",
        "--set",
        "budget.unexplained=100 %",
        "--set",
        "ignore_columns=left_arrived",
    ]
    number = str(padded["_number"])
    assert cli.main([*command, number, "--output", str(file), *allowed]) == 0
    matched = next(row for cause in comparison.causes if cause.missing_in == "batch" for row in cause.examples)
    example = find_minimal_example(spark, settings, str(lake), comparison, matched["_number"])
    assert write_test_case(example, "stream", tmp_path / "pipeline.yaml") == 2

    content = file.read_text()
    assert content.startswith(
        "cases:\n  nothing:\n    given: []\n    expect: {emissions: []}  # no row\n\n  difference"
    )
    assert content.endswith("# the end\n")
    cases = yaml.safe_load(content)["cases"]
    assert list(cases) == ["nothing", f"difference {number}", f"difference {matched['_number']}"]
    [given] = cases[f"difference {number}"]["given"]
    assert given["left"].keys() == {"id", "k", "happened", "arrived"}
    assert cases[f"difference {number}"]["columns"] == {"left": {"id": "int"}}
    assert cases[f"difference {number}"]["expect"] == {
        "emissions": [],
        "late": [],
        "padded": [{f"left_{name}": value for name, value in given["left"].items()}],
    }
    assert cli.main(["test", str(tmp_path / "pipeline.yaml")]) == 0
    assert "3 cases passed, 0 failed" in capfd.readouterr().out
    assert cli.main([*command, number, "--output", str(file)]) == 2
    assert f"has a case 'difference {number}' already. Rename or remove that case" in " ".join(
        capfd.readouterr().err.split()
    )


def test_minimize_many_rows_finds_the_smallest_set():
    sizes = []

    def passes(subsets):
        sizes.append(len(subsets))
        return [{3, 70, 71} <= set(subset) for subset in subsets]

    assert minimize(range(200), passes) == [3, 70, 71]
    assert len(sizes) < 20
    assert minimize(range(5), lambda subsets: [True] * len(subsets)) == []
