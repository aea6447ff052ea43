"""Run what `tidemark init` writes: the late rows are those that it has measured."""

import json
import re

import pytest

from tests.importing.test_init import BOUNDS, arrived, create_rows, event, write_table
from tests.spark.sample_lake import read_rows
from tidemark.cli.app import main

NUMBER = {"order": lambda number, *_: {"the id": number}, "placed.at": event, "Received At": arrived}
TEXT = {"Order-Id": lambda number, *_: str(number), "shipped ms": lambda _, time, __: int(time.timestamp() * 1000)}
TEXT |= {"loaded": arrived}


@pytest.mark.parametrize("dialect", ["flink-datastream", "flink-sql"])
def test_run_of_a_proposed_pipeline_has_the_measured_late_rows(dialect, spark, lake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(lake, "left rows", create_rows(1, **NUMBER))
    write_table(lake, "right rows", create_rows(2, **TEXT))
    options = ["--dialect", dialect, "--left-delay", "0 s", "--right-delay", "15 s", "--name", "proposed"]
    assert main(["init", "left rows", "right rows", "--lake", str(lake), *BOUNDS, *options]) == 0
    capsys.readouterr()

    assert main(["plan", "proposed.yaml", "--lake", str(lake), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slices"] >= 2
    assert main(["run", "proposed.yaml", "--lake", str(lake), "--drain"]) == 0

    late = [json.loads(row) for row in read_rows(lake / "proposed" / "late").elements()]
    shares = re.findall(
        r"([\d.]+) % late for the lower watermark", re.sub(r"\s+# ", " ", (tmp_path / "proposed.yaml").read_text())
    )
    assert len(late) > 5
    assert [float(share) for share in shares] == [
        pytest.approx(100 * sum(row["side"] == side for row in late) / 240, rel=0.05) for side in ("left", "right")
    ]
    assert sum(read_rows(lake / "proposed" / "emissions").values()) > 0
