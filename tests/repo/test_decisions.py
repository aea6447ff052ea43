"""Decision records are complete and indexed, and relative links between pages lead somewhere."""

import re
from pathlib import Path

import pytest

from tests.repo.references import PAGES, ROOT, missing_links

DECISIONS = ROOT / "docs" / "decisions"
RECORDS = sorted(DECISIONS.glob("[0-9]*.md"))
SECTIONS = ["Status", "Date", "Context", "Decision", "Consequences"]
MAX_COLUMNS = 120


def read_sections(record: Path) -> dict[str, str]:
    """Return the text of each section of a record by its heading, in order."""
    _, *parts = re.split(r"^## (.+)\n", record.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))


def read_index() -> list[tuple[int, str, str, str]]:
    """Return number, title, file and status of each entry of the index, in order."""
    text = (DECISIONS / "README.md").read_text()
    entries = re.findall(r"^(\d+)\. \*\*\[(.+)\]\((.+)\)\*\*, (.+)\.\n   \S", text, re.MULTILINE)
    return [(int(number), title, file, status) for number, title, file, status in entries]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem[:4])
def test_record_has_the_five_sections(record):
    sections = read_sections(record)

    assert list(sections) == SECTIONS
    assert all(sections.values())
    assert re.fullmatch(r"Accepted|Superseded by \d+", sections["Status"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", sections["Date"])


def test_index_lists_each_record_with_its_title_and_status():
    titles = [re.match(r"# (\d+)\. (.+)\n", record.read_text()).groups() for record in RECORDS]
    statuses = [read_sections(record)["Status"] for record in RECORDS]

    expected = [
        (int(number), title, record.name, status)
        for (number, title), record, status in zip(titles, RECORDS, statuses, strict=True)
    ]
    assert read_index() == expected
    assert [number for number, *_ in expected] == list(range(1, len(RECORDS) + 1))
    assert [record.name[:4] for record in RECORDS] == [f"{number:04}" for number, *_ in expected]


@pytest.mark.parametrize("page", [*RECORDS, DECISIONS / "README.md", ROOT / "docs" / "performance-notes.md"])
def test_page_has_no_long_lines(page):
    assert [line for line in page.read_text().splitlines() if len(line) > MAX_COLUMNS] == []


def test_relative_links_of_all_pages_lead_to_a_file_and_heading():
    broken = [f"{page.relative_to(ROOT)}: {link}" for page in PAGES for link in missing_links(page)]

    assert broken == [], "\n".join(broken)


def test_missing_links_finds_files_headings_and_reference_links_that_do_not_exist(tmp_path):
    (tmp_path / "other.md").write_text(
        "# Other\n\n```\n# no heading\n```\n\n## A `plain` heading, twice\n\n## Twice\n\n## Twice\n"
    )
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md#a-plain-heading-twice) [b](other.md#twice-1) [c](#page) [d](https://example.org/x)\n"
        "[e](nothing.md) ![f](nothing.png) [g](other.md#no-heading) [h](#gone) [i](other.md#twice-2) [j][ref]\n"
        "`[k](code.md)`\n\n```\n[l](code.md)\n```\n\n[ref]: gone.md\n"
    )

    assert missing_links(page) == [
        "nothing.md",
        "nothing.png",
        "other.md#no-heading",
        "#gone",
        "other.md#twice-2",
        "gone.md",
    ]
