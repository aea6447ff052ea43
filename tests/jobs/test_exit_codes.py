"""What a submitted job ends with."""

import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.mark.parametrize("job", ["run_slices.py", "compare_slices.py", "reprocess_slices.py"])
def test_a_mistake_of_the_users_is_none_of_pythons(job, tmp_path):
    ended = subprocess.run(
        [sys.executable, JOBS / job, "no_such", "--lake", tmp_path], capture_output=True, text=True, check=False
    )
    assert "there is no pipeline no_such" in ended.stderr
    assert ended.returncode == 64
