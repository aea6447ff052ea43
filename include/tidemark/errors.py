"""Errors that Tidemark raises on purpose, each with the exit code of the command.

A message is one line of plain sentences: what happened and where, then what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar


def suggest_name(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """Suggest the candidate closest to a name that does not exist, or list all candidates.

    Args:
        name: The name that was not found.
        candidates: The names that exist.
        cutoff: Minimum similarity of a suggestion, from 0 to 1 (`difflib.get_close_matches`).

    Returns:
        A sentence for an error message.

    >>> suggest_name("hapened", ["k", "happened"])
    'Did you mean happened?'
    >>> suggest_name("x", ["k", "happened"])
    'Available: k, happened.'
    """
    names = list(candidates)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"Did you mean {matches[0]}?" if matches else f"Available: {', '.join(names) or 'none'}."


class TidemarkError(Exception):
    """Base class of all errors that Tidemark raises on purpose."""

    exit_code: ClassVar[int] = 3


class CheckFailedError(TidemarkError):
    """A check failed: quality or row conservation (nothing was published), conformance, or a comparison's budget."""

    exit_code = 1


class UserError(TidemarkError):
    """Invalid settings, arguments or table state, which the user can correct."""

    exit_code = 2


class PipelineFileError(UserError):
    """A pipeline file cannot be read or is invalid."""


class ForbiddenPathError(UserError):
    """A table, an output or a checkpoint lies where the operator does not allow it."""


class ImportRefusedError(UserError):
    """A join of a streaming job cannot be expressed as a pipeline with the same rows."""


class InputError(UserError):
    """An input table is missing, has the wrong columns, or lost rows that slices have read."""


class MissingFilesError(InputError):
    """Files of an earlier version of an input were vacuumed."""


class SliceOrderError(UserError):
    """A slice cannot run now: missing predecessor, different settings, a gap, or not on a slice boundary."""


class LedgerConflictError(SliceOrderError):
    """Another process has committed first, so nothing was published. The same command can succeed."""

    exit_code = 3


class IncompleteInputError(UserError):
    """Inputs of the slices are not complete yet by the pipeline file's `complete` rules."""


class StoppedError(TidemarkError):
    """The command was stopped by SIGTERM or Ctrl-C. Committed slices remain; the same command continues the run."""

    exit_code = 143


class FaultError(TidemarkError):
    """An infrastructure fault, such as a missing JVM or jar or a full disk. Nothing was published."""


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Begin the messages of user errors in the block with where they are, such as a file and a field."""
    try:
        yield
    except (ForbiddenPathError, ImportRefusedError, InputError, PipelineFileError) as error:
        raise type(error)(f"{prefix}: {error}") from None


_SPARK = ("delta", "deltalake", "great_expectations", "numpy", "pandas", "py4j", "pyarrow", "pyspark")
_EXTRAS = dict.fromkeys(_SPARK, "spark") | dict.fromkeys(("altair", "jinja2", "vl_convert"), "report")
_EXTRAS |= dict.fromkeys(("google", "grpc", "zstandard"), "connect")
"""The pip extra that provides each package."""


def missing_extra_error(error: ModuleNotFoundError) -> UserError | None:
    """Return an error that names the pip extra providing the missing package, or None if no extra provides it.

    >>> str(missing_extra_error(ModuleNotFoundError(name="altair.vegalite")))
    'altair is not installed. Install Tidemark with the extra [report].'
    """
    package = str(error.name).partition(".")[0]
    extra = _EXTRAS.get(package)
    return UserError(f"{package} is not installed. Install Tidemark with the extra [{extra}].") if extra else None


_SUBMIT_EXIT_CODES = {
    CheckFailedError.exit_code: 65,  # EX_DATAERR of sysexits.h
    UserError.exit_code: 64,  # EX_USAGE
    FaultError.exit_code: 75,  # EX_TEMPFAIL
}


def to_submit_exit_code(exit_code: int) -> int:
    """Convert a command's exit code to the exit code of its submitted Spark job.

    Python and spark-submit exit with 1 and 2 themselves, so a submitted job uses the codes of sysexits.h.

    >>> to_submit_exit_code(CheckFailedError.exit_code), to_submit_exit_code(0)
    (65, 0)
    """
    return _SUBMIT_EXIT_CODES.get(exit_code, exit_code)
