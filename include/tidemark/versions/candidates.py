"""The shadows of a pipeline: which there are, and how one goes. A shadow has the tables of a pipeline of its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.fs as pafs

from tidemark.config import Pipeline
from tidemark.config.candidate_version import DROPPED, FOLDER, shadow_of, under
from tidemark.delta.filesystem import file_system, files_under, is_file, remove, write_text
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import SliceOrderError, UserError
from tidemark.ledger.config_fingerprint import settings_apart, settings_of, settings_up_to
from tidemark.ledger.ledger import Entry, Ledger
from tidemark.tables.table_changes import logs_of
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class Shadow:
    """A version of a pipeline beside the one that is served."""

    name: str
    slices: int
    start: str
    end: str
    """Exclusive."""
    settings: str
    """Those that it has otherwise than what is served, in words; empty for none."""
    files: int
    bytes: int

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def shadows(pipeline: Pipeline, lake: str) -> list[Shadow]:
    """The shadows of a pipeline that have slices, by name."""
    served = Ledger.of(pipeline, lake)
    files, folder = file_system(served.tables.root), pafs.FileSelector(FOLDER, allow_not_found=True)
    names = sorted(info.base_name for info in files.get_file_info(folder))
    listed = [name for name in names if not is_file(f"{served.tables.root}/{FOLDER}/{name}", DROPPED)]
    found = (_look(Ledger.of(shadow_of(pipeline, name), lake), name, served) for name in listed)
    return [one for one in found if one is not None]


def shadow_ledger(pipeline: Pipeline, lake: str, name: str) -> Ledger:
    """The ledger of a shadow.

    Raises:
        UserError: there is no such shadow.
    """
    ledger = Ledger.of(shadow_of(pipeline, name), lake)
    if ledger.last is None:
        raise _unknown(pipeline, lake, name)
    return ledger


def as_served(pipeline: Pipeline, lake: str) -> Pipeline:
    """The pipeline under the settings that the last slice which is served has run under.

    Raises:
        SliceOrderError: nothing is served.
        PipelineFileError: an earlier version has stored them, whose settings this one does not read.
    """
    last = Ledger.of(pipeline, lake).last
    if last is None:
        raise SliceOrderError(f"{pipeline.name} serves no slice; run it first, with tidemark run")
    return under(pipeline, settings_of(last.settings))


def drop(pipeline: Pipeline, lake: str, name: str) -> int:
    """Remove a shadow with all of its files, giving their bytes; what was promoted stays, in files of its own.

    Raises:
        UserError: there is no such shadow.
    """
    shadow_of(pipeline, name)  # sees that it is a name, and no way to another folder
    root = f"{PipelineTables.of(pipeline, lake).root}/{FOLDER}/{name}"
    files = files_under(file_system(root))
    if not any(files.values()):
        raise _unknown(pipeline, lake, name)
    # Until it is gone nobody takes what is left for a shadow, and killed on the way, the same command goes on.
    write_text(f"{root}/{DROPPED}", f"by tidemark shadows {pipeline.name} --drop {name}\n")
    for path in [*(path for path in files if path != DROPPED), DROPPED]:
        remove(root, path)
    return sum(files.values())


def _unknown(pipeline: Pipeline, lake: str, name: str) -> UserError:
    known = ", ".join(one.name for one in shadows(pipeline, lake)) or "none"
    command = f"tidemark run {pipeline.name} --shadow {name}"
    return UserError(f"{pipeline.name} has no shadow {name} (there are: {known}); {command} fills one")


def _apart(served: Entry, mine: Entry, grid: Grid) -> str:
    """In which settings a shadow is not what is served, as far as both have come."""
    both = min(served.number, mine.number)
    was, now = (settings_up_to(one.settings, grid, both) for one in (served, mine))
    return settings_apart(was, now)


def _look(ledger: Ledger, name: str, served: Ledger) -> Shadow | None:
    if ledger.last is None:
        return None
    logs = logs_of(ledger.tables).values()
    return Shadow(
        name,
        len(ledger.entries),
        ledger.grid.name(next(iter(ledger.entries))),
        ledger.grid.name(ledger.last.number + 1),
        _apart(served.last, ledger.last, ledger.grid) if served.last else "",
        sum(len(log.files) for log in logs),
        sum(int(log.files["size"].sum()) for log in logs),
    )
