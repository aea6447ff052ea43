"""Code is written in plain words: limits on filler names and on docstrings that hide their subject."""

from pathlib import Path

import pytest

from tests.repo.language import measure

ROOT = Path(__file__).parents[2]
LIMITS = {
    "filler names %": 0.3,
    "fronted docstrings %": 1,
    "told per 10,000": 2,
    "beside per 10,000": 1,
    "behind, not of lateness": 0,
}
PLACES = {
    "filler names %": "fillers",
    "fronted docstrings %": "fronted",
    "told per 10,000": "told",
    "beside per 10,000": "beside",
    "behind, not of lateness": "behind",
}


@pytest.fixture(scope="module")
def language():
    return measure(sorted((ROOT / "include").rglob("*.py")), ROOT)


@pytest.mark.parametrize("figure", LIMITS)
def test_language_of_the_package_stays_within_limit(language, figure):
    value = language.figures()[figure]

    assert value <= LIMITS[figure], "\n".join(getattr(language, PLACES[figure]))


def test_function_docstrings_of_the_package_begin_with_a_verb(language):
    assert language.figures()["docstrings with a verb %"] >= 95, "\n".join(language.not_verbs)


def test_measure_counts_each_kind_of_place(tmp_path):
    (tmp_path / "module.py").write_text(
        '"""What it holds."""\n'
        "# the log tells of it, beside the table\n"
        "def load(found):\n"
        '    """Rows behind the file."""\n'
        "def read():\n"
        '    """Read rows behind the watermark.\n\n'
        "    Returns:\n"
        "        The rows that `told` names.\n"
        '    """\n'
    )

    language = measure([tmp_path / "module.py"], tmp_path)

    assert language.fillers == ["module.py:3: found"]
    assert language.fronted == ["module.py:1: What it holds."]
    assert language.not_verbs == ["module.py:3: load: Rows behind the file."]
    assert language.told == language.beside == ["module.py:2: the log tells of it, beside the table"]
    assert language.behind == ["module.py:3: Rows behind the file."]
    assert (language.verbs, language.functions, language.sections, language.public) == (1, 2, 1, 2)
