"""Run what `tidemark init` writes: the late rows are those that it has measured."""

import json
import re
from collections import Counter

import pytest

from tests.importing.test_init import BOUNDS, arrived, create_rows, event, write_table
from tests.spark.sample_lake import read_rows
from tidemark.cli.app import main
from tidemark.config.sides import SIDES

NUMBER = {"order": lambda number, *_: {"the id": number}, "placed.at": event, "Received At": arrived}
TEXT = {
    "Order-Id": lambda number, *_: None if number % 50 == 7 else str(number),
    "shipped ms": lambda _, time, __: int(time.timestamp() * 1000),
}
TEXT |= {"loaded": arrived}


@pytest.mark.parametrize("dialect", ["flink-datastream", "flink-sql", "spark"])
def test_run_of_a_proposed_pipeline_has_the_measured_late_rows(dialect, spark, lake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(lake, "left rows", create_rows(1, **NUMBER))
    write_table(lake, "right rows", create_rows(2, **TEXT))
    settings = ["name=proposed", "left.watermark_delay=0", "right.watermark_delay=15 s", "slices.every=10 minutes"]
    options = ["--dialect", dialect, *(text for setting in settings for text in ("--set", setting))]
    assert main(["init", "left rows", "right rows", "--lake", str(lake), *BOUNDS, *options]) == 0
    capsys.readouterr()

    assert main(["plan", "proposed.yaml", "--lake", str(lake), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slices"] >= 2
    assert main(["run", "proposed.yaml", "--lake", str(lake), "--drain"]) == 0

    reasons = Counter(
        (row["side"], row["reason"].partition("_")[0])
        for row in map(json.loads, read_rows(lake / "proposed" / "late").elements())
    )
    text = re.sub(r"\s+# ", " ", (tmp_path / "proposed.yaml").read_text())
    counts = [int(count) for count in re.findall(r"with both delays (\d+) of", text)]
    assert min(reasons["left", "late"], reasons["right", "late"]) >= (1 if dialect == "spark" else 4)
    assert counts == [reasons[side, "late"] for side in SIDES]
    assert sum(read_rows(lake / "proposed" / "emissions").values()) > 0
