"""Fill a candidate version next to the live one, compare, promote and roll back."""

import json
import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.conftest import write_pipeline
from tests.ledger.reader_assertions import check_every_version
from tidemark.cli.app import main
from tidemark.config.candidate_version import format_cli_arguments, format_version_name, to_candidate
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import SliceOrderError, UserError
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.integrity.repair import plan_repair
from tidemark.ledger import transaction
from tidemark.ledger.config_fingerprint import serialize_settings
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.timegrid.slices import Grid
from tidemark.versions import candidates, promotion
from tidemark.watermarks.values import Watermarks

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
NARROW = {"join__interval": {"lower": "-30 minutes", "upper": "0 seconds"}}
WIDE = {"join__interval": {"lower": "-50 minutes", "upper": "0 seconds"}}


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def end_options(hour):
    return ("--to", at(hour).isoformat().replace("+00:00", "Z"))


def count_pairs(*distances):
    """Count pairs by hour and distance in minutes, over three hours."""
    return Counter((hour, minutes) for hour in range(3) for minutes in distances)


def raise_interrupt(*_):
    raise KeyboardInterrupt


def drop_candidate_with_kills(run_tidemark, folder, monkeypatch):
    """Drop a candidate, killed after each tenth file; meanwhile it is not listed and cannot be filled."""
    delete_file, deleted = candidates.delete_file, []

    def delete_ten(*file):
        delete_file(*file)
        deleted.append(file)
        if len(deleted) % 10 == 0:
            raise_interrupt()

    monkeypatch.setattr(candidates, "delete_file", delete_ten)
    assert run_tidemark(WIDE, "version drop", "wide", "--yes")[0] != 0
    assert "that candidate is being deleted" in run_tidemark(WIDE, "run", "--candidate", "wide")[1]
    while any(file.is_file() for file in folder.rglob("*")):
        before = len(deleted)
        assert json.loads(run_tidemark(WIDE, "version list", "--json")[1]) == []
        message = run_tidemark(WIDE, "version drop", "wide", "--yes")[1]
        assert len(deleted) > before, message
    monkeypatch.setattr(candidates, "delete_file", delete_file)


def check_candidate_with_other_slices(run_tidemark, settings):
    """Run, list, erase from and drop a candidate version whose slices the pipeline file does not have."""
    assert run_tidemark(settings, "run", "--candidate", "halves", *end_options(1))[0] == 0
    candidates = {row["name"]: row["slices"] for row in json.loads(run_tidemark(WIDE, "version list", "--json")[1])}
    assert candidates == {"halves": 2, "wide": 3}

    options = ("--left", "k = '0.20'", "--dry-run", "--json")
    results = {
        result["pipeline"]: (result["row_counts"]["emissions"], result["slices"])
        for result in json.loads(run_tidemark(NARROW, "tables erase", *options)[1])
    }
    assert results["orders --candidate halves"] == (1, [["2024-01-01T00:30Z", "2024-01-01T01:00Z"]])
    assert results.keys() == {"orders", "orders --candidate halves", "orders --candidate wide"}
    assert run_tidemark(WIDE, "version drop", "halves", "--yes")[0] == 0


def check_repair_restores_one_copy(settings, lake):
    """Lose all references of emissions in a copy of the lake: of each candidate's file, one copy is restored."""
    damaged = lake.parent / "damaged"
    shutil.copytree(lake, damaged)
    log = DeltaTableHandle.open(f"{damaged}/orders/emissions")
    log.commit([], log.files["path"])
    report = check_integrity(settings, str(damaged))
    [table_repair] = plan_repair(settings, str(damaged), report, deep=False).table_repairs
    assert {file.path for file in table_repair.restored} == set(log.files["path"])


@pytest.fixture
def run_tidemark(pipeline, tmp_path, lake, capsys, monkeypatch):
    """Run a command on the pipeline file with some settings; return exit code and output or error."""
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))

    def execute(settings, name, *options):
        pipeline(**settings)
        code = main([*name.split(), str(tmp_path / "pipeline.yaml"), *options])
        output = capsys.readouterr()
        return code, output.out if code == 0 else output.err

    return execute


@pytest.fixture
def append_pairs(write):
    """Append two pairs per hour, 20 and 40 minutes apart; only the wide bounds join the latter."""

    def append(*hours):
        left = [(f"{hour}.{distance}", at(hour, 50), at(hour, 51), distance) for hour in hours for distance in (20, 40)]
        right = [
            (f"{h}.{distance}", at(h, 50 - distance), at(h, 52 - distance), distance)
            for h in hours
            for distance in (20, 40)
        ]
        write("left", left, ROW)
        write("right", right, ROW)

    return append


@pytest.fixture
def read_emissions(lake):
    """Count the live emissions by hour and `left_v`; also check every version of all tables."""

    def read(pipeline):
        tables = PipelineTables(f"{lake}/orders")
        assert check_every_version(tables, Grid.from_config(pipeline.slices))
        log = DeltaTableHandle.open(tables.emissions)
        return Counter((row["_slice"].hour, row["left_v"]) for row in log.read(["_slice", "left_v"]).to_pylist())

    return read


def test_candidate_with_wider_bounds_is_compared_and_promoted(
    spark, lake, append_pairs, run_tidemark, read_emissions, pipeline, monkeypatch
):
    append_pairs(0, 1, 2)
    assert run_tidemark(NARROW, "run", *end_options(3))[0] == 0

    code, output = run_tidemark(WIDE, "run", *end_options(3))
    assert code == 2
    assert "other settings" in output
    assert run_tidemark(WIDE, "run", "--candidate", "wide", *end_options(2))[0] == 0

    code, output = run_tidemark(WIDE, "version promote", "wide")
    assert code == 2
    assert "lacks live slices from 2024-01-01T02:00Z to 2024-01-01T03:00Z" in output
    assert run_tidemark(WIDE, "run", "--candidate", "wide", *end_options(3))[0] == 0
    assert read_emissions(pipeline()) == count_pairs(20)

    code, output = run_tidemark(WIDE, "compare run", "--candidate", "wide", "--json")
    assert code == 0

    comparison = json.loads(output)
    causes = [(group["cause"], group["missing_in"], group["rows"]) for group in comparison["causes"]]
    assert (comparison["same"], causes) == (3, [("other settings", "stream", 3)])
    assert comparison["labels"] == ["candidate", "live"]
    detail = comparison["causes"][0]["examples"][0]["_detail"]
    assert detail == "join.interval.lower is -30 minutes (-50 minutes in the pipeline)"

    old = lake.parent / "old.yaml"
    write_pipeline(old, **NARROW)
    code, output = run_tidemark(WIDE, f"diff {old}", "--rows", *end_options(3), "--json")
    assert code == 0
    assert json.loads(output)["rows"] == {
        "start": "2024-01-01T00:00Z",
        "end": "2024-01-01T03:00Z",
        "added": 3,
        "removed": 0,
        "same": 3,
        "slices": 3,
    }

    code, output = run_tidemark(NARROW, "version promote", "wide")
    assert code == 2
    assert "ran under other settings than the pipeline file has (join.interval.lower was" in output

    half_hours = {**WIDE, "slices__every": "30 minutes"}
    for command in (("version promote", "wide"), ("run",), ("reprocess", "--from", "2024-01-01T01:00Z"), ("status",)):
        code, output = run_tidemark(half_hours, *command)
        assert code == 2, command
        assert "has other slices than the pipeline file: every 1 hour, from 2024-01-01T00:00Z on" in output
    check_candidate_with_other_slices(run_tidemark, half_hours)

    settings = pipeline(**WIDE)
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "apply_to_tables", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            promotion.promote(spark, settings, str(lake), "wide", "somebody")
    assert read_emissions(pipeline()) == count_pairs(20)
    assert run_tidemark(WIDE, "tables verify")[0] == 1  # the promotion is not applied to the tables yet
    assert run_tidemark(WIDE, "status")[0] == 0  # applies it
    assert read_emissions(pipeline()) == count_pairs(20, 40)
    assert run_tidemark(WIDE, "tables verify", "--deep")[0] == 0
    assert "is the live version of orders already" in run_tidemark(WIDE, "version promote", "wide")[1]

    code, output = run_tidemark(WIDE, "reprocess", "--json", "--from", end_options(1)[1], *end_options(2))
    assert code == 0
    assert [(group["added"], group["removed"], group["same"]) for group in json.loads(output)["changes"]] == [(0, 0, 2)]


def test_rollback_restores_previous_version(
    spark, lake, append_pairs, run_tidemark, read_emissions, pipeline, monkeypatch
):
    append_pairs(0, 1, 2)
    assert run_tidemark(NARROW, "run", *end_options(2))[0] == 0
    assert run_tidemark(WIDE, "run", "--candidate", "wide", *end_options(2))[0] == 0

    planned_before = create_plan(spark, pipeline(**NARROW), str(lake), Request(end=at(3)))
    assert run_tidemark(WIDE, "version promote", "wide")[0] == 0
    with pytest.raises(SliceOrderError, match="another process committed"):
        list(execute(spark, planned_before, lambda *_: None))
    assert run_tidemark(WIDE, "tables verify")[0] == 0

    code, output = run_tidemark(WIDE, "run", "--json", *end_options(3))
    assert code == 0
    assert json.loads(output)["plan"]["slices"] == 1
    assert read_emissions(pipeline()) == count_pairs(20, 40)

    code, output = run_tidemark(NARROW, "version rollback", "wide", "--json")
    assert code == 0

    rollback = json.loads(output)
    assert (rollback["slices"], rollback["slices_to_rerun"]) == (2, [["2024-01-01T02:00Z", "2024-01-01T03:00Z"]])
    assert read_emissions(pipeline()) == count_pairs(20) + Counter({(2, 40): 1})
    assert "no promotion of candidate wide of orders is live" in run_tidemark(NARROW, "version rollback", "wide")[1]

    code, output = run_tidemark(NARROW, "run", "--json", *end_options(3))
    assert code == 0
    (rerun,) = json.loads(output)["plan"]["slice_ranges"]
    assert rerun["reason"] == "changed settings"
    assert (
        "slice 2024-01-01T02:00Z ran under other settings than the pipeline file has now (join" in rerun["explanation"]
    )
    assert read_emissions(pipeline()) == count_pairs(20)
    assert run_tidemark(NARROW, "tables verify", "--deep")[0] == 0

    assert run_tidemark(WIDE, "run", "--candidate", "wide", *end_options(3))[0] == 0
    (lake / "orders" / "candidates" / ".DS_Store").touch()
    (lake / "orders" / "candidates" / "Not a candidate").mkdir()

    code, output = run_tidemark(WIDE, "version list")
    assert code == 0
    assert "wide: join.interval.lower was -30 minutes, now -50 minutes" in " ".join(output.split())
    assert run_tidemark(WIDE, "version promote", "wide", "--user", "ada")[0] == 0

    newest = Ledger.from_pipeline(pipeline(**WIDE), str(lake)).rows.iloc[-1]
    output = json.loads(newest["promotion"])
    assert (output["promoted"], output["user"], newest["attempt"]) == ("wide", "ada", 3)

    check_repair_restores_one_copy(pipeline(**WIDE), lake)
    drop_candidate_with_kills(run_tidemark, lake / "orders" / "candidates" / "wide", monkeypatch)
    assert json.loads(run_tidemark(WIDE, "version list", "--json")[1]) == []
    assert "has no candidate wide (there are: none)" in run_tidemark(WIDE, "version drop", "wide", "--yes")[1]
    assert run_tidemark(WIDE, "tables verify", "--deep")[0] == 0
    assert read_emissions(pipeline()) == count_pairs(20, 40)

    for file in (lake / "orders" / "emissions").rglob("*.parquet"):
        file.unlink()
    code, output = run_tidemark(NARROW, "version rollback", "wide")
    assert code == 2
    assert "were vacuumed" in output


@pytest.mark.parametrize(
    ("live", "filled", "advice"),
    [
        (range(4), range(2), "Run tidemark run ARGUMENTS --to 2024-01-01T04:00Z."),
        (range(4), range(2, 4), "Run tidemark reprocess ARGUMENTS --from 2024-01-01T00:00Z --to 2024-01-01T02:00Z."),
        (range(1, 5), (3,), "Run tidemark reprocess ARGUMENTS --from 2024-01-01T00:00Z --to 2024-01-01T03:00Z."),
        (range(5), (0, 1, 3), "Run tidemark reprocess ARGUMENTS --from 2024-01-01T02:00Z --to 2024-01-01T03:00Z."),
    ],
)
def test_promote_candidate_without_live_slices_names_command_that_fills_it(pipeline, live, filled, advice):
    settings = pipeline()
    grid = Grid.from_config(settings.slices)

    def create_ledger(numbers):
        entries = {
            number: Entry(
                number, "run", 1, 1, serialize_settings(settings), (0, 0), Watermarks(), (0, 0), (0, 0), drained=False
            )
            for number in numbers
        }
        return replace(Ledger.empty(PipelineTables("lake/orders"), grid), entries=entries)

    with pytest.raises(UserError) as error:
        promotion._require_promotable(settings, "wide", create_ledger(filled), create_ledger(live))
    arguments = format_cli_arguments(to_candidate(settings, "wide"))
    assert str(error.value).endswith(advice.replace("ARGUMENTS", arguments))


@pytest.mark.parametrize(
    ("erased_from_candidate", "excluded_by_runs", "is_refused"),
    [
        ([], None, True),
        ([], '{"left": ["id = 8"]}', True),
        ([], '{"left": ["id = 7"]}', False),
        (["id = 7"], None, False),
    ],
)
def test_promote_candidate_with_erased_rows_is_refused(
    pipeline, monkeypatch, erased_from_candidate, excluded_by_runs, is_refused
):
    def create_ledger(root):
        entry = SimpleNamespace(excluded_predicates=excluded_by_runs)
        return SimpleNamespace(tables=root, entries={0: entry, 1: entry})

    predicates = {"live": ["id = 7"], "candidate": erased_from_candidate}
    records = {
        root: [SimpleNamespace(predicates={"left": text}, at="2024-01-01T00:00Z") for text in texts]
        for root, texts in predicates.items()
    }
    monkeypatch.setattr(promotion, "list_erasures", records.get)
    with pytest.raises(UserError, match="erased at 2024-01-01T00:00Z") if is_refused else nullcontext():
        promotion._require_erased(pipeline(), "wide", create_ledger("candidate"), create_ledger("live"))


def test_find_promotion_requires_rollback_in_reverse_order():
    def create_attempts(*promotions):
        values = [json.dumps(value) if value else None for value in promotions]
        return pd.DataFrame({"commit": range(1, len(values) + 1), "promotion": values})

    wide, long_ = {"promoted": "wide"}, {"promoted": "long"}
    assert promotion._find_promotion(create_attempts(None, wide, None, long_), "long") == 4
    assert promotion._find_promotion(create_attempts(None, wide, None, long_, {"rolled_back": "long"}), "wide") == 2
    assert promotion._find_promotion(create_attempts(None, wide, {"rolled_back": "wide"}), "wide") is None
    with pytest.raises(UserError, match="candidate long was promoted after wide. Roll that back first"):
        promotion._find_promotion(create_attempts(wide, long_), "wide")


def test_to_candidate_invalid_name_is_rejected(pipeline):
    assert format_version_name(to_candidate(pipeline(), "wide-2")) == "orders --candidate wide-2"
    assert to_candidate(pipeline(), None) == pipeline()
    for name in ("", "Wide", "a/b", "..", "a" * 51):
        with pytest.raises(UserError, match="is not a valid candidate name"):
            to_candidate(pipeline(), name)
