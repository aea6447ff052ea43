"""Locate a pipeline's own tables under the lake root."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs

from tidemark.config import Pipeline
from tidemark.config.candidate_version import (
    CANDIDATES_FOLDER,
    DROP_MARKER,
    format_cli_arguments,
    format_version_name,
    get_candidate_name,
    is_candidate_name,
    to_live,
)
from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.delta.filesystem import find_unwritable_folder, has_file, open_filesystem
from tidemark.delta.paths import is_within, resolve_path
from tidemark.delta.store_capabilities import check_store
from tidemark.errors import ForbiddenPathError, UserError, prefix_errors

_MISREAD_BY_DELTA_RS = re.compile(r"[][^|\\]|%[0-9A-Fa-f]{2}")
"""Characters in a path that delta-rs 1.6 interprets as part of a URI or decodes when it writes to a table."""


@dataclass(frozen=True)
class PipelineTables:
    """Paths of a pipeline's own tables and Data Docs, in one folder."""

    root: str
    """Absolute path or URI of the folder."""

    @classmethod
    def from_config(cls, pipeline: Pipeline, lake: str) -> PipelineTables:
        """Locate the tables of a pipeline in a lake.

        Raises:
            ForbiddenPathError: The operator does not allow the path of `output`; or `output` is a table, lies in one,
                or contains the lake root.
            UserError: The pipeline is a candidate version that is being deleted.
        """
        with prefix_errors(f"{pipeline.command_argument}: output"):
            root = _resolve_output(lake, pipeline.output)
        if (candidate := get_candidate_name(pipeline)) and has_file(root, DROP_MARKER):
            raise UserError(
                f"{format_version_name(pipeline)}: that candidate is being deleted. Finish the deletion with "
                f"tidemark version drop {format_cli_arguments(to_live(pipeline))} {candidate}."
            )
        return cls(root)

    def check_writable(self) -> None:
        """Check that delta-rs can write to this location, and that the store can prevent conflicting commits.

        Raises:
            ForbiddenPathError: Delta-rs misreads the path, or the store cannot prevent conflicting commits.
        """
        check_store(self.root)
        if (misread_match := _MISREAD_BY_DELTA_RS.search(self.root)) is not None:
            raise ForbiddenPathError(
                f"tables cannot be written to {self.root}: delta-rs misreads {misread_match[0]} in a path. Rename the "
                "folder in `output` or in the lake root."
            )

    def require_permission(self) -> None:
        """Check that this user can write to the folder, and to the tables and logs in it.

        Raises:
            ForbiddenPathError: A folder cannot be written to.
        """
        tables = (self.emissions, self.output_stream, self.late, self.checkpoint, self.ledger, self.quality)
        for folder in (self.root, *(f"{table}{subfolder}" for table in tables for subfolder in ("", "/_delta_log"))):
            if (unwritable := find_unwritable_folder(folder)) is None:
                continue
            reason = (
                f"this user has no permission to write to {unwritable}. Change its permissions"
                if Path(unwritable).is_dir()
                else f"{unwritable} is not a folder. Move it"
            )
            raise ForbiddenPathError(
                f"tables cannot be written to {self.root}: {reason}, or name another folder with `output` or --lake."
            )

    @property
    def emissions(self) -> str:
        """Path of the table of output rows."""
        return f"{self.root}/emissions"

    @property
    def output_stream(self) -> str:
        """Path of the table of emissions and watermarks in the order in which the streaming join emits them."""
        return f"{self.root}/{OUTPUT_STREAM}"

    @property
    def late(self) -> str:
        """Path of the table of late and rejected rows."""
        return f"{self.root}/late"

    @property
    def checkpoint(self) -> str:
        """Path of the table of rows carried from slice to slice."""
        return f"{self.root}/checkpoint"

    @property
    def ledger(self) -> str:
        """Path of the ledger, with one row per committed run of a slice."""
        return f"{self.root}/ledger"

    @property
    def agreement(self) -> str:
        """Path of the table of slices' agreement with streamed tables."""
        return f"{self.root}/agreement"

    @property
    def live_query(self) -> str:
        """Path of the folder of the live query's tables and checkpoint."""
        return f"{self.root}/live_query"

    @property
    def rejected_output(self) -> str:
        """Path of the table of output rows that the quality gate rejected."""
        return f"{self.root}/rejected_output"

    @property
    def rejection_results(self) -> str:
        """Path of the expectation results of rejected output."""
        return f"{self.root}/rejection_results"

    @property
    def quarantined(self) -> str:
        """Path of the table of output rows that violate an expectation and are not published."""
        return f"{self.root}/quarantined"

    @property
    def waivers(self) -> str:
        """Path of the table of waivers, which let a slice pass the quality gate despite failed expectations."""
        return f"{self.root}/waivers"

    @property
    def quality(self) -> str:
        """Path of the table of expectation results per slice."""
        return f"{self.root}/quality"

    @property
    def gx_folder(self) -> str:
        """Path of the folder of Great Expectations' results and Data Docs."""
        return f"{self.root}/gx"


def list_candidate_folders(live: PipelineTables) -> list[str]:
    """List candidate versions by name, also those without committed slices and those that are being deleted."""
    folder = pafs.FileSelector(CANDIDATES_FOLDER, allow_not_found=True)
    infos = open_filesystem(live.root).get_file_info(folder)
    return sorted(info.base_name for info in infos if not info.is_file and is_candidate_name(info.base_name))


def _resolve_output(lake: str, output: str) -> str:
    """Resolve the folder of a pipeline's tables.

    Raises:
        ForbiddenPathError: The path is not allowed, is a table, lies in one, or contains the lake root.
    """
    root = resolve_path(lake, output)
    folders = [] if "://" in root else [Path(root), *Path(root).parents]
    for folder in folders:
        if (folder / "_delta_log").is_dir():
            raise ForbiddenPathError(f"{output} is or lies in the table {folder}. Name a folder of its own.")
    if is_within(lake, root):
        raise ForbiddenPathError(f"{output} contains the lake root. Name a folder under {lake}.")
    return root
