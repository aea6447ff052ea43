"""A new version of a pipeline beside the one that is served: filled, compared, promoted, and taken back."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from tests.conftest import write_pipeline
from tests.ledger.reader_assertions import every_version_is_whole
from tidemark.cli.app import main
from tidemark.config.candidate_version import cli_arguments, to_candidate
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import SliceOrderError, UserError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Request, create_plan
from tidemark.timegrid.slices import Grid
from tidemark.versions import candidates, promotion

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
NARROW = {"join__interval": {"lower": "-30 minutes", "upper": "0 seconds"}}
WIDE = {"join__interval": {"lower": "-50 minutes", "upper": "0 seconds"}}


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def upto(hour):
    return ("--to", at(hour).isoformat().replace("+00:00", "Z"))


def pairs(*apart):
    """Three hours of pairs so many minutes apart."""
    return Counter((hour, minutes) for hour in range(3) for minutes in apart)


def killed(*_):
    raise KeyboardInterrupt


def dropped_with_kills(tidemark, folder, monkeypatch):
    """Drop the shadow of a folder, killed after each tenth file: from the first on there is none, nor is one filled."""
    remove, taken = candidates.delete_file, []

    def remove_ten(*file):
        remove(*file)
        taken.append(file)
        if len(taken) % 10 == 0:
            killed()

    monkeypatch.setattr(candidates, "delete_file", remove_ten)
    assert tidemark(WIDE, "versions", "--drop", "wide")[0] != 0
    assert "that candidate is being deleted" in tidemark(WIDE, "run", "--candidate", "wide")[1]
    while any(file.is_file() for file in folder.rglob("*")):
        before = len(taken)
        assert json.loads(tidemark(WIDE, "versions", "--json")[1]) == []
        told = tidemark(WIDE, "versions", "--drop", "wide")[1]
        assert len(taken) > before, told
    monkeypatch.setattr(candidates, "delete_file", remove)


@pytest.fixture
def tidemark(pipeline, tmp_path, lake, capsys, monkeypatch):
    """The command on the pipeline file under these settings: its exit code, and what it prints or says is wrong."""
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))

    def command(settings, name, *more):
        pipeline(**settings)
        code = main([name, str(tmp_path / "pipeline.yaml"), *more])
        told = capsys.readouterr()
        return code, told.out if code == 0 else told.err

    return command


@pytest.fixture
def landed(write):
    """In each hour a pair 20 minutes apart, and one 40 minutes apart, which only the wide bounds take."""

    def land(*hours):
        left = [(f"{hour}.{apart}", at(hour, 50), at(hour, 51), apart) for hour in hours for apart in (20, 40)]
        right = [(f"{h}.{apart}", at(h, 50 - apart), at(h, 52 - apart), apart) for h in hours for apart in (20, 40)]
        write("left", left, ROW)
        write("right", right, ROW)

    return land


@pytest.fixture
def served(lake):
    """What a plain read gives, by hour; with the tables as sound at each version as Tidemark promises."""

    def read(pipeline):
        tables = PipelineTables(f"{lake}/orders")
        assert every_version_is_whole(tables, Grid.from_config(pipeline.slices))
        log = DeltaTableHandle.open(tables.emissions)
        return Counter((row["_slice"].hour, row["left_v"]) for row in log.read(["_slice", "left_v"]).to_pylist())

    return read


def test_bounds_are_widened_beside_what_is_served(spark, lake, landed, tidemark, served, pipeline, monkeypatch):
    landed(0, 1, 2)
    assert tidemark(NARROW, "run", *upto(3))[0] == 0
    code, told = tidemark(WIDE, "run", *upto(3))
    assert code == 2
    assert "other settings" in told
    assert tidemark(WIDE, "run", "--candidate", "wide", *upto(2))[0] == 0
    code, told = tidemark(WIDE, "promote", "wide")
    assert code == 2
    assert "lacks live slices from 2024-01-01T02:00Z to 2024-01-01T03:00Z" in told
    assert tidemark(WIDE, "run", "--candidate", "wide", *upto(3))[0] == 0
    assert served(pipeline()) == pairs(20)

    code, told = tidemark(WIDE, "compare", "--candidate", "wide", "--json")
    assert code == 0
    found = json.loads(told)
    causes = [(one["cause"], one["missing_in"], one["rows"]) for one in found["causes"]]
    assert (found["same"], causes) == (3, [("other settings", "stream", 3)])
    assert found["causes"][0]["examples"][0]["_detail"] == "join.interval.lower -30 minutes, not -50 minutes"
    old = lake.parent / "old.yaml"
    write_pipeline(old, **NARROW)
    code, told = tidemark(WIDE, "plan", "--diff", str(old), "--rows", *upto(3), "--json")
    assert code == 0
    assert json.loads(told)["rows"] == {
        "start": "2024-01-01T00:00Z",
        "end": "2024-01-01T03:00Z",
        "added": 3,
        "removed": 0,
        "same": 3,
        "slices": 3,
    }
    code, told = tidemark(NARROW, "promote", "wide")
    assert code == 2
    assert "ran under other settings than the pipeline file has (join.interval.lower was" in told
    code, told = tidemark({**WIDE, "slices__every": "30 minutes"}, "promote", "wide")
    assert code == 2
    assert "has other slices (every 1 hour, from 2024-01-01T00:00Z on)" in told

    settings = pipeline(**WIDE)
    with monkeypatch.context() as patch:
        patch.setattr(promotion, "apply_to_tables", killed)
        with pytest.raises(KeyboardInterrupt):
            promotion.promote(spark, settings, str(lake), "wide", "somebody")
    assert served(pipeline()) == pairs(20)
    assert tidemark(WIDE, "verify")[0] == 1  # the tables are behind
    assert tidemark(WIDE, "status")[0] == 0  # and are brought up
    assert served(pipeline()) == pairs(20, 40)
    assert tidemark(WIDE, "verify", "--deep")[0] == 0
    assert "is the live version of orders already" in tidemark(WIDE, "promote", "wide")[1]
    code, told = tidemark(WIDE, "reprocess", "--json", "--from", upto(1)[1], *upto(2))
    assert code == 0
    assert [(one["added"], one["removed"], one["same"]) for one in json.loads(told)["changes"]] == [(0, 0, 2)]


def test_what_was_promoted_is_taken_back(spark, lake, landed, tidemark, served, pipeline, monkeypatch):
    landed(0, 1, 2)
    assert tidemark(NARROW, "run", *upto(2))[0] == 0
    assert tidemark(WIDE, "run", "--candidate", "wide", *upto(2))[0] == 0
    planned_before = create_plan(spark, pipeline(**NARROW), str(lake), Request(end=at(3)))
    assert tidemark(WIDE, "promote", "wide")[0] == 0
    with pytest.raises(SliceOrderError, match="another process has committed"):
        list(execute(spark, planned_before, lambda *_: None))
    assert tidemark(WIDE, "verify")[0] == 0
    code, told = tidemark(WIDE, "run", "--json", *upto(3))
    assert code == 0
    assert json.loads(told)["ran"]["slices"] == 1
    assert served(pipeline()) == pairs(20, 40)

    code, told = tidemark(NARROW, "rollback", "wide", "--json")
    assert code == 0
    moved = json.loads(told)
    assert (moved["slices"], moved["slices_to_rerun"]) == (2, [["2024-01-01T02:00Z", "2024-01-01T03:00Z"]])
    assert served(pipeline()) == pairs(20) + Counter({(2, 40): 1})
    assert "no promotion of candidate wide of orders is live" in tidemark(NARROW, "rollback", "wide")[1]
    code, told = tidemark(NARROW, "run", "--json", *upto(3))
    assert code == 0
    assert [one["reason"] for one in json.loads(told)["ran"]["segments"]] == ["changed settings"]
    assert served(pipeline()) == pairs(20)
    assert tidemark(NARROW, "verify", "--deep")[0] == 0

    assert tidemark(WIDE, "run", "--candidate", "wide", *upto(3))[0] == 0
    code, told = tidemark(WIDE, "versions")
    assert code == 0
    assert "wide: join.interval.lower was -30 minutes, now -50 minutes" in " ".join(told.split())
    assert tidemark(WIDE, "promote", "wide", "--user", "ada")[0] == 0
    last = Ledger.from_pipeline(pipeline(**WIDE), str(lake)).rows.iloc[-1]
    told = json.loads(last["brought"])
    assert (told["promoted"], told["by"], last["attempt"]) == ("wide", "ada", 3)
    dropped_with_kills(tidemark, lake / "orders" / "candidates" / "wide", monkeypatch)
    assert json.loads(tidemark(WIDE, "versions", "--json")[1]) == []
    assert "has no candidate wide (there are: none)" in tidemark(WIDE, "versions", "--drop", "wide")[1]
    assert tidemark(WIDE, "verify", "--deep")[0] == 0
    assert served(pipeline()) == pairs(20, 40)

    for file in (lake / "orders" / "emissions").rglob("*.parquet"):
        file.unlink()
    code, told = tidemark(NARROW, "rollback", "wide")
    assert code == 2
    assert "were vacuumed" in told


def test_promotions_are_taken_back_in_turn():
    def promoted(*brought):
        told = [json.dumps(one) if one else None for one in brought]
        return pd.DataFrame({"commit": range(1, len(told) + 1), "brought": told})

    wide, long_ = {"promoted": "wide"}, {"promoted": "long"}
    assert promotion._find_promotion(promoted(None, wide, None, long_), "long") == 4
    assert promotion._find_promotion(promoted(None, wide, None, long_, {"rolled_back": "long"}), "wide") == 2
    assert promotion._find_promotion(promoted(None, wide, {"rolled_back": "wide"}), "wide") is None
    with pytest.raises(UserError, match="candidate long was promoted after wide. Roll that back first"):
        promotion._find_promotion(promoted(wide, long_), "wide")


def test_a_shadow_has_a_name_that_a_folder_can_have(pipeline):
    assert cli_arguments(to_candidate(pipeline(), "wide-2")) == "orders --candidate wide-2"
    assert to_candidate(pipeline(), None) == pipeline()
    for name in ("", "Wide", "a/b", "..", "a" * 51):
        with pytest.raises(UserError, match="is not a valid candidate name"):
            to_candidate(pipeline(), name)
