"""Names that users have in their files and tables, where the code has come to call the thing otherwise."""

import pandas as pd

from tests.conftest import write_pipeline
from tidemark.commits import ledger
from tidemark.commits.digest import digests
from tidemark.comparison import Comparison, agreement
from tidemark.settings import load_reference
from tidemark.watermarks.buckets import Watermarks


def test_the_reference_of_a_comparison_is_told_by_in_a_file_and_story_in_what_is_kept(tmp_path):
    write_pipeline(tmp_path / "stream.yaml", name="stream")
    told = write_pipeline(tmp_path / "orders.yaml", compare={"with": "streamed", "told_by": "stream"})
    assert told.compare.told_by.endswith("stream")
    assert load_reference(tmp_path / "orders.yaml").name == "stream"
    assert [column.split()[0] for column in agreement.SCHEMA.split(",")][:3] == ["slice", "compared_with", "story"]
    facts = {"start": "", "end": "", "same": 0, "causes": (), "agreement": (), "notes": (), "seconds": 0.0}
    assert Comparison("orders", "streamed", "stream", **facts).describe()["story"] == "stream"


def test_the_last_clean_up_is_swept_in_the_ledger_and_in_digests():
    """Slices are stale where a digest differs: the words in it are for ever."""
    names = {"left_last_cleanup": "left_swept", "right_last_cleanup": "right_swept"}
    assert names.items() <= ledger.MARKS.items()
    assert {f"{name}_ms" for name in names.values()} <= set(ledger.SCHEMA.names)
    held = pd.DataFrame([(0, 1, 1, 5)], columns=["since", "until", "high", "low"])
    marks = Watermarks(left=7, right=9, left_last_cleanup=5, right_last_cleanup=-3)
    assert digests(held, {0: marks}) == {0: "c8ec6b6b29e8a32a9d13370a31b8b27e"}, "as before the names were changed"
