"""Reference pages are up to date and complete, link to headings that exist, and have no long lines."""

import re
import subprocess
import sys

import pytest

from tests.conftest import PROJECT
from tests.repo.references import PAGES, heading_anchors

DOCS = PROJECT / "docs"
MAX_COLUMNS = 120
NAMES = ("cli", "environment", "guarantees", "index", "pipeline-file", "quickstart", "renamed", "tutorial")
NARROW_PAGES = [PROJECT / "README.md", *(DOCS / f"{name}.md" for name in NAMES)]
CODE = ("bin", "benchmarks", "dags", "deploy", "include", "jobs", "tests")
READ_VARIABLE = re.compile(
    r'environ(?:\.get\(|\[)"(TIDEMARK_\w+)"|\$\{?(TIDEMARK_\w+)|^\w+ = "(TIDEMARK_\w+)"$', re.MULTILINE
)
"""Environment variables that Python reads, shell scripts and Compose files expand, or a constant names."""


def test_generated_pages_are_up_to_date():
    command = [sys.executable, PROJECT / "bin" / "write-reference", "--check"]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("page", NARROW_PAGES, ids=lambda page: page.stem)
def test_page_has_no_long_lines(page):
    assert page in PAGES
    assert [line for line in page.read_text().splitlines() if len(line) > MAX_COLUMNS] == []


def test_html_links_of_pipeline_file_lead_to_headings():
    page = DOCS / "pipeline-file.md"
    targets = set(re.findall(r'href="#([^"]+)"', page.read_text()))

    assert targets
    assert targets <= heading_anchors(page)


def test_environment_page_has_every_variable_of_the_code():
    paths = [path for folder in CODE for path in (PROJECT / folder).rglob("*") if path.suffix in {"", ".py", ".yaml"}]
    texts = [path.read_text() for path in [*paths, PROJECT / "docker-compose.yml"] if path.is_file()]
    variables = {name for text in texts for names in READ_VARIABLE.findall(text) for name in names if name}
    documented = set(re.findall(r"`(TIDEMARK_\w+)`", (DOCS / "environment.md").read_text()))

    assert {"TIDEMARK_LAKE", "TIDEMARK_IMAGE", "TIDEMARK_EXAMPLES", "TIDEMARK_ALLOWED_ROOTS"} <= variables
    assert variables - documented == set()
