"""The generated pages of docs/ are up to date, link to headings that exist, and have no long lines."""

import re
import subprocess
import sys

import pytest

from tests.conftest import PROJECT
from tests.repo.references import PAGES, heading_anchors

DOCS = PROJECT / "docs"
MAX_COLUMNS = 120
PAGES_OF_HERE = [DOCS / f"{name}.md" for name in ("cli", "pipeline-file")]


def test_generated_pages_are_up_to_date():
    command = [sys.executable, PROJECT / "bin" / "write-reference", "--check"]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("page", PAGES_OF_HERE, ids=lambda page: page.stem)
def test_page_has_no_long_lines(page):
    assert page in PAGES
    assert [line for line in page.read_text().splitlines() if len(line) > MAX_COLUMNS] == []


def test_html_links_of_pipeline_file_lead_to_headings():
    page = DOCS / "pipeline-file.md"
    targets = set(re.findall(r'href="#([^"]+)"', page.read_text()))

    assert targets
    assert targets <= heading_anchors(page)
