"""Find and load pipeline files, shared inputs and reference pipelines."""

import jsonschema
import pytest
import yaml

from tests.config.pipeline_files import FLIGHTS_WEATHER, PROJECT, read_as_json, read_base, write_variant
from tidemark.config import build_json_schema, list_pipeline_files, load_pipeline, load_reference, with_overrides
from tidemark.config.candidate_version import format_cli_arguments, to_candidate
from tidemark.errors import PipelineFileError


@pytest.mark.parametrize("content", ["a: [", "- just a list", "\x00"])
def test_load_without_mapping_raises(tmp_path, content):
    path = tmp_path / "p.yaml"
    path.write_text(content)
    with pytest.raises(PipelineFileError, match=r"p\.yaml"):
        load_pipeline(path)


def test_load_unknown_name_suggests_the_closest(monkeypatch):
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(PROJECT / "include" / "pipelines"))
    with pytest.raises(PipelineFileError, match="Did you mean flights_weather?"):
        load_pipeline("flight_weather")


def test_load_shared_inputs_by_name(tmp_path):
    content = read_base()
    (tmp_path / "inputs").mkdir()
    for name, side in (("flights", "left"), ("weather", "right")):
        (tmp_path / "inputs" / f"{name}.yaml").write_text(yaml.safe_dump(content[side]))
    weather = {"use": "weather", "watermark_delay": "7 minutes"}
    short = write_variant(tmp_path / "p.yaml", left="flights", right=weather)
    jsonschema.validate(read_as_json(short), build_json_schema())
    explicit = load_pipeline(write_variant(tmp_path / "w.yaml", right__watermark_delay="7 minutes"))

    assert load_pipeline(short) == explicit
    assert [file.name for file in list_pipeline_files(tmp_path)] == ["p.yaml", "w.yaml"], "inputs are not pipelines"


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ("flihgts", r"p.yaml: left: there is no input flihgts in .*inputs. Did you mean flights\?"),
        ({"use": "../p"}, "left: there is no input ../p in"),
        ({"use": ["flights"]}, r"left: there is no input \['flights'\] in"),
        ("list", "list.yaml is not an input. Write fields such as table and event_time."),
        ("typo", r"p.yaml with inputs/typo.yaml: left.event_tme: unknown field. Did you mean event_time\?"),
        ({"use": "flights", "usee": 1}, "p.yaml with inputs/flights.yaml: left.usee: unknown field"),
    ],
)
def test_load_invalid_shared_input_raises(tmp_path, left, message):
    (tmp_path / "inputs").mkdir()
    flights = {"table": "flights", "event_time": "scheduled_departure", "watermark_delay": "0 s"}
    for name, content in (("flights", flights), ("list", [1]), ("typo", {**flights, "event_tme": "x"})):
        (tmp_path / "inputs" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(PipelineFileError, match=message):
        load_pipeline(write_variant(tmp_path / "p.yaml", left=left, right__arrival=None))


def test_load_reference_searches_the_folder_of_the_file_first(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(PROJECT / "include" / "pipelines"))
    monkeypatch.chdir("/")
    (tmp_path / "pipelines").mkdir()
    write_variant(tmp_path / "pipelines" / "near.yaml", name="near")
    write_variant(tmp_path / "pipelines" / "flights_weather.yaml", name="local")

    def load_name(name):
        return load_reference(
            write_variant(tmp_path / "pipelines" / "p.yaml", compare={"table": "s", "reference": name})
        ).name

    assert [load_name(name) for name in ("near", "near.yaml", "../pipelines/near.yaml")] == ["near"] * 3
    assert load_name("flights_weather") == "local"
    assert load_name("flights_weather_event_time") == "flights_weather_event_time"
    with pytest.raises(PipelineFileError, match=r"p\.yaml: compare\.reference: there is no pipeline neer .*near"):
        load_name("neer")
    assert load_reference(FLIGHTS_WEATHER) is None


def test_command_argument_finds_the_file_from_the_working_directory(tmp_path, monkeypatch):
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (tmp_path / "a b").mkdir()
    by_name, by_path = write_variant(folder / "orders_v2.yaml"), write_variant(tmp_path / "a b" / "p.yaml")
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(folder))
    monkeypatch.chdir(tmp_path)

    assert load_pipeline(by_name).command_argument == "orders_v2", "the name of the file, not of the pipeline"
    pipeline = load_pipeline("a b/p.yaml")
    assert pipeline.command_argument == "a b/p.yaml"
    assert load_pipeline(pipeline.command_argument) == pipeline == load_pipeline(by_path)
    changed = with_overrides(to_candidate(pipeline, "wide"), {"left.watermark_delay": "7 minutes"})
    assert format_cli_arguments(changed) == "'a b/p.yaml' --candidate wide"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("orders", r"no pipeline orders in \S+pipelines. The folder has no pipeline file. Pass the path of a file, or"),
        ("orders.yaml", "there is no pipeline file orders.yaml. Check the path."),
    ],
)
def test_load_pipeline_missing_file_without_another_one_names_the_remedy(tmp_path, monkeypatch, name, message):
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path / "pipelines"))
    with pytest.raises(PipelineFileError, match=message):
        load_pipeline(name)
