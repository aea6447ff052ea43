"""Docstrings and docs refer to modules, names, files, options and targets that exist."""

from tests.repo.references import (
    docstring_references,
    document_references,
    missing_errors,
    missing_files,
    missing_names,
)


def test_docstring_references_all_exist():
    broken = [": ".join(reference) for reference in docstring_references()]

    assert broken == [], "\n".join(broken)


def test_document_references_all_exist():
    broken = [": ".join(reference) for reference in document_references()]

    assert broken == [], "\n".join(broken)


def test_missing_names_finds_each_kind_of_broken_reference():
    text = (
        "`config.pipeline.Pipeline`, `Pipeline.no_field`, `joins.nowhere`, `config.pipeline.Nothing`, `spark.sql.ansi`"
    )

    assert missing_names(text) == ["Pipeline.no_field", "joins.nowhere", "config.pipeline.Nothing"]


def test_missing_files_finds_paths_below_our_folders():
    text = "see joins/base.py, joins/nothing.py, tests/repo/nothing.py, other/project.py"

    assert missing_files(text) == ["joins/nothing.py", "tests/repo/nothing.py"]


def test_missing_errors_finds_exceptions_that_do_not_exist():
    text = "Raises:\n    UserError: A reason.\n    OldError: Another.\n    ValueError: A third."

    assert missing_errors(text) == ["OldError"]
