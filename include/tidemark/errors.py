"""The few ways in which Tidemark refuses or fails, each with the command's exit code.

Messages are one line: what is wrong, where, and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


def nearest(name: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """The remedy for a name that does not exist: the one that was meant, or all that there are.

    >>> nearest("hapened", ["k", "happened"], "it has")
    'did you mean happened?'
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else f"{otherwise} {', '.join(known) or 'none'}"


class TidemarkError(Exception):
    """Base of every error that Tidemark raises on purpose."""

    exit_code: ClassVar[int] = 3


class CheckFailedError(TidemarkError):
    """A check failed: quality or conservation, whose slices were not published; conformance; a comparison's budget."""

    exit_code = 1


class UserError(TidemarkError):
    """The user can mend this: settings, arguments, or the state of a table."""

    exit_code = 2


class PipelineFileError(UserError):
    """A pipeline file that cannot be read or does not validate."""


class PlaceError(UserError):
    """A table, an output or a checkpoint that would lie where the operator allows none."""


class InputError(UserError):
    """An input table that is missing, has the wrong columns, or is not append-only."""


class SliceOrderError(UserError):
    """A slice that may not run now: no predecessor, other settings, a gap, not on a boundary."""


class IncompleteError(UserError):
    """Slices whose inputs are not complete yet, by the rules of the pipeline file."""


class OlderFormatError(UserError):
    """Tables that an earlier version of Tidemark wrote."""

    def __init__(self, root: str) -> None:
        """Name the pipeline's folder."""
        super().__init__(
            f"{root} has tables of a format from before a plain read gave their answer; the next tidemark run takes "
            "them over, or tidemark upgrade"
        )


class StoppedError(TidemarkError):
    """Someone asked the command to stop (SIGTERM, Ctrl-C). What is committed counts; the same command goes on."""

    exit_code = 143


class FaultError(TidemarkError):
    """The machine's fault: no Java, no jars, a full disk. Nothing was published."""


_SPARK = ("delta", "deltalake", "great_expectations", "numpy", "pandas", "py4j", "pyarrow", "pyspark")
_EXTRAS = dict.fromkeys(_SPARK, "spark") | dict.fromkeys(("altair", "jinja2", "vl_convert"), "report")
_EXTRAS |= dict.fromkeys(("google", "grpc", "zstandard"), "connect")
"""Which extra brings a package."""


def lacking(error: ModuleNotFoundError) -> UserError | None:
    """The mistake behind a package that is missing: an extra was not installed; None where no extra brings it.

    >>> str(lacking(ModuleNotFoundError(name="altair.vegalite")))
    "altair is not installed; pip install 'tidemark[report]'"
    """
    package = str(error.name).partition(".")[0]
    extra = _EXTRAS.get(package)
    return UserError(f"{package} is not installed; pip install 'tidemark[{extra}]'") if extra else None


_SUBMITTED = {
    CheckFailedError.exit_code: 65,  # EX_DATAERR of sysexits.h
    UserError.exit_code: 64,  # EX_USAGE
    FaultError.exit_code: 75,  # EX_TEMPFAIL
}


def submitted_code(exit_code: int) -> int:
    """The exit code of a submitted job for that of its command: 1 and 2 are Python's and spark-submit's own as well.

    >>> submitted_code(CheckFailedError.exit_code), submitted_code(0)
    (65, 0)
    """
    return _SUBMITTED.get(exit_code, exit_code)
