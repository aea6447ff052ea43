"""Integrity check: compare ledger, tables and data files, and report corruption or external changes.

Writes nothing and needs no JVM. docs/retention.md lists the kinds of damage.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from deltalake.exceptions import DeltaError

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant, from_micros
from tidemark.delta.commit_history import is_data_change
from tidemark.delta.paths import resolve_path
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.snapshot import MAINTENANCE_KEY, TXN_VERSION_KEY
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import InputError
from tidemark.formatting import to_single_line
from tidemark.integrity.committed_files import (
    ExpectedRows,
    list_all_files,
    list_expected_rows,
    read_committed_files,
)
from tidemark.integrity.file_checks import (
    NO_SLICE,
    DamagedFile,
    FileDamage,
    RowCounts,
    check_files,
    count_rows_by_slice,
    find_copies,
)
from tidemark.ledger.config_fingerprint import remove_later_restarts
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import find_stale_slices
from tidemark.tables.run_files import list_slices_by_file, parse_merge_commit
from tidemark.tables.table_changes import LEDGER_MANAGED_TABLES, OPTIONAL_TABLES
from tidemark.timegrid.slices import Grid, group_consecutive

Damage = (
    FileDamage
    | Literal[
        "duplicate rows", "missing rows", "unexpected rows", "missing ledger row", "missing table",
        "table ahead of ledger", "table lags ledger", "external commit", "state mismatch", "watermark regression",
        "missing input version", "unreadable log",
    ]
)  # fmt: skip


_SCHEMA_OPERATIONS = re.compile(r"CREATE TABLE|ADD COLUMN|SET TBLPROPERTIES")
"""Operations of Tidemark without its keys in `commitInfo`. They change no row."""
_UNMARKED_WRITE_OPERATIONS = {"WRITE", "Manual Update", "UPDATE"}
"""Operations of Tidemark's commits without its keys: commits by Spark, and commits by reference of early versions."""
MAX_CHECKS = 50
"""Maximum number of checks while slices are committed."""


@dataclass(frozen=True)
class IntegrityIssue:
    """A difference between what was committed and what is stored."""

    damage: Damage
    table: str
    """`ledger`, the name of a table that follows it, or an input table."""
    detail: str
    file: str | None = None
    slices: tuple[tuple[str, str], ...] = ()
    """Affected slices as ranges: start of the first slice, end of the last."""


@dataclass(frozen=True)
class IntegrityReport:
    """Result of an integrity check of a pipeline's tables."""

    pipeline: str
    slices: int
    files: int
    """Number of checked files."""
    bytes: int
    issues: tuple[IntegrityIssue, ...]

    @property
    def damages(self) -> tuple[IntegrityIssue, ...]:
        """Issues without external commits, which are harmless if all rows are right."""
        return tuple(issue for issue in self.issues if issue.damage != "external commit")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-ready dictionary."""
        return asdict(self) | {"is_consistent": not self.damages}


def check_integrity(
    pipeline: Pipeline, lake: str, *, deep: bool = False, on_file: Callable[[str], object] = lambda _: None
) -> IntegrityReport:
    """Check that a pipeline's ledger, its tables and their files agree.

    Slices that are committed during the check can look damaged. The check is repeated until the ledger stays the same
    throughout, at most `MAX_CHECKS` times.

    Args:
        pipeline: The pipeline.
        lake: Folder or URI of the pipeline's tables.
        deep: Also read every page of every file, and verify its checksum.
        on_file: Called with the name of the table before each file is checked.

    Raises:
        UserError: The ledger belongs to another pipeline, or another version of Tidemark wrote it.
        SliceOrderError: The committed slices are of another grid.
    """
    tables = PipelineTables.from_config(pipeline, lake)
    try:
        for _ in range(MAX_CHECKS):
            before = DeltaTableHandle.open(tables.ledger)
            report = _check_once(pipeline, lake, before, deep=deep, on_file=on_file)
            now = DeltaTableHandle.open(tables.ledger)
            if not report.damages or (now and now.version) == (before and before.version):
                break
    except DeltaError:
        if issues := tuple(_find_unreadable_logs(tables)):
            return IntegrityReport(pipeline.name, 0, 0, 0, issues)
        raise
    return report


def _find_unreadable_logs(tables: PipelineTables) -> Iterator[IntegrityIssue]:
    """Yield an issue for each table whose log delta-rs cannot read. Nothing else can be checked then."""
    for name in ("ledger", *LEDGER_MANAGED_TABLES):
        try:
            DeltaTableHandle.open(getattr(tables, name))
        except DeltaError as error:
            yield IntegrityIssue("unreadable log", name, to_single_line(str(error)))


def _check_once(
    pipeline: Pipeline,
    lake: str,
    ledger_table: DeltaTableHandle | None,
    *,
    deep: bool,
    on_file: Callable[[str], object],
) -> IntegrityReport:
    tables, grid = PipelineTables.from_config(pipeline, lake), Grid.from_config(pipeline.slices)
    if ledger_table is None:
        existing = [name for name in LEDGER_MANAGED_TABLES if DeltaTableHandle.open(getattr(tables, name))]
        issues = [
            IntegrityIssue("missing table", "ledger", f"{tables.ledger} is gone, and {', '.join(existing)} are there")
        ]
        return IntegrityReport(pipeline.name, 0, 0, 0, tuple(issues if existing else ()))
    ledger_files = check_files(ledger_table, deep=deep, on_file=partial(on_file, "ledger"))
    issues = [_create_file_issue("ledger", grid, {}, damaged_file) for damaged_file in ledger_files.damaged]
    issues += [_create_commit_issue("ledger", commit) for commit in _find_external_commits(ledger_table)]
    files, size = ledger_files.checked, ledger_files.bytes
    if ledger_files.damaged:
        return IntegrityReport(pipeline.name, 0, files, size, tuple(issues))
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    issues += [*_check_slice_chain(ledger), *_check_input_versions(pipeline, lake, ledger)]
    commits = read_committed_files(ledger)
    for name in LEDGER_MANAGED_TABLES:
        table, expected = DeltaTableHandle.open(getattr(tables, name)), list_expected_rows(ledger, commits, name)
        if table is None:
            issues += _find_missing_table(ledger, name, expected)
            continue
        checked = check_files(table, deep=deep, on_file=partial(on_file, name))
        files, size = files + checked.checked, size + checked.bytes
        slices_by_path = list_slices_by_file(table, name, grid)
        issues += [_create_file_issue(name, grid, slices_by_path, damaged_file) for damaged_file in checked.damaged]
        external_commits = list(_find_external_commits(table))
        issues += [_create_commit_issue(name, commit) for commit in external_commits]
        issues += _check_table_version(name, table, ledger)
        originals = {file.path for file in list_all_files(commits, name)}
        copies = dict(find_copies(table, name, grid, checked.paths, originals))
        issues += [
            _create_file_issue(
                name, grid, slices_by_path, DamagedFile(copy, "duplicate reference", f"it has the rows of {first}")
            )
            for first, copy in copies.items()
        ]
        excluded_paths = [damaged_file.path for damaged_file in checked.damaged] + [*copies, *copies.values()]
        reported_slices = {number for path in excluded_paths for number in slices_by_path.get(path) or ()}
        if table.txn_version >= ledger.last_commit:
            rows = count_rows_by_slice(table, name, ledger, checked.paths)
            # A VACUUM by Delta changes no data, so it removes no checkpoint.
            may_expire = name == "checkpoint" and not any(
                is_data_change(table.path, int(commit["version"])) for commit in external_commits
            )
            issues += _check_row_counts(ledger, name, expected, rows, reported_slices, may_expire=may_expire)
    return IntegrityReport(pipeline.name, len(ledger.entries), files, size, tuple(issues))


def _create_file_issue(
    name: str, grid: Grid, slices_by_path: dict[str, range | None], damaged_file: DamagedFile
) -> IntegrityIssue:
    return IntegrityIssue(
        damaged_file.damage,
        name,
        damaged_file.detail,
        damaged_file.path,
        _name_ranges(grid, slices_by_path.get(damaged_file.path) or ()),
    )


def _name_ranges(grid: Grid, numbers: Any) -> tuple[tuple[str, str], ...]:
    return tuple((grid.label(slices.start), grid.label(slices.stop)) for slices in group_consecutive(numbers))


def _find_external_commits(log: DeltaTableHandle) -> Iterator[dict[str, Any]]:
    """Yield each commit in the log that Tidemark did not make, oldest first."""
    for commit in reversed(log.table.history()):
        version, operation = int(commit["version"]), str(commit.get("operation"))
        if TXN_VERSION_KEY in commit or MAINTENANCE_KEY in commit or _SCHEMA_OPERATIONS.match(operation):
            continue
        if operation in _UNMARKED_WRITE_OPERATIONS and not is_data_change(log.path, version):
            continue
        yield commit


def _create_commit_issue(name: str, commit: Mapping[str, Any]) -> IntegrityIssue:
    committed_at = format_instant(from_micros(int(commit["timestamp"]) * 1000))
    detail = f"version {commit['version']}: {commit.get('operation')} at {committed_at}"
    return IntegrityIssue("external commit", name, detail)


def _find_missing_table(ledger: Ledger, name: str, expected: Iterable[ExpectedRows]) -> Iterator[IntegrityIssue]:
    missing = [number for part in expected if part.rows for number in part.slices]
    if missing:
        path = getattr(ledger.tables, name)
        yield IntegrityIssue("missing table", name, f"{path} is gone", slices=_name_ranges(ledger.grid, missing))


def _check_table_version(name: str, log: DeltaTableHandle, ledger: Ledger) -> Iterator[IntegrityIssue]:
    applied, last = log.txn_version, ledger.last_commit
    if applied > last:
        yield IntegrityIssue(
            "table ahead of ledger", name, f"it has applied commit {applied}, but the ledger ends with {last}"
        )
    elif applied < last and (applied or name not in OPTIONAL_TABLES):
        yield IntegrityIssue(
            "table lags ledger", name, f"it has applied commit {applied} of {last}. The next command applies the others"
        )


def _check_slice_chain(ledger: Ledger) -> Iterator[IntegrityIssue]:
    """Yield issues between consecutive slices: state, missing predecessors, watermarks."""
    for number, why in find_stale_slices(ledger).items():
        if why == "changed state":
            detail = "it has continued a state that the slice before it does not end with"
            yield IntegrityIssue("state mismatch", "ledger", detail, slices=_name_ranges(ledger.grid, [number]))
    for number, entry in ledger.entries.items():
        if entry.carried_in_fingerprint is not None and ledger.entry(number - 1) is None:
            detail = f"slice {ledger.grid.label(number)} has continued one that the ledger does not have"
            yield IntegrityIssue("missing ledger row", "ledger", detail, slices=_name_ranges(ledger.grid, [number - 1]))
    for before, entry in pairwise(ledger.entries.values()):
        restarted = remove_later_restarts(entry.settings, ledger.grid, before.number) != entry.settings
        follows = (
            entry.number == before.number + 1 and entry.carried_in_fingerprint == before.fingerprint and not restarted
        )
        for side in SIDES:
            was, now = getattr(before.watermarks, side), getattr(entry.watermarks, side)
            if follows and now < was:
                detail = f"the {side} watermark is {was - now:,} ms earlier than that of the slice before"
                yield IntegrityIssue(
                    "watermark regression", "ledger", detail, slices=_name_ranges(ledger.grid, [entry.number])
                )


def _check_input_versions(pipeline: Pipeline, lake: str, ledger: Ledger) -> Iterator[IntegrityIssue]:
    """Yield issues of inputs whose version is older than a version that slices read."""
    for index, side in enumerate(SIDES):
        name = getattr(pipeline, side).table
        log = None
        with suppress(DeltaError, InputError):
            log = DeltaTableHandle.open(resolve_path(lake, name))
        if log is None:
            continue  # a table of the catalog, or one that delta-rs does not read
        ahead = [number for number, entry in ledger.entries.items() if entry.versions[index] > log.version]
        if ahead:
            newest = max(ledger.entries[number].versions[index] for number in ahead)
            detail = f"version {newest} was read, and the table ends with {log.version}"
            yield IntegrityIssue("missing input version", name, detail, slices=_name_ranges(ledger.grid, ahead))


def _check_row_counts(
    ledger: Ledger,
    name: str,
    expected: Iterable[ExpectedRows],
    rows: RowCounts,
    reported_slices: set[int],
    *,
    may_expire: bool,
) -> Iterator[IntegrityIssue]:
    """Yield issues of slices with more or fewer rows than committed, or with rows of another run.

    If rows `may_expire`, like checkpoints, a slice may have none, except the last slice, which the next one continues.
    """
    if may_expire:
        last = max(ledger.entries, default=None)
        reported_slices = reported_slices | {
            number for number in ledger.entries if number != last and number not in rows
        }
    groups: dict[tuple[Damage, str], list[int]] = {}
    unexpected = set[int]()
    for number in sorted(rows.keys() - reported_slices):
        if detail := _describe_other_runs(ledger, number, rows[number]):
            groups.setdefault(("unexpected rows", detail), []).append(number)
            unexpected.add(number)
    for part in expected:
        stored = sum(rows.get(number, Counter())[part.run] for number in part.slices)
        if stored != part.rows and reported_slices.isdisjoint(part.slices) and unexpected.isdisjoint(part.slices):
            damage: Damage = "duplicate rows" if stored > part.rows else "missing rows"
            detail = f"{stored:,} rows where {part.rows:,} were committed"
            groups.setdefault((damage, detail), []).extend(part.slices)
    for (damage, detail), numbers in groups.items():
        slices = [number for number in numbers if number != NO_SLICE]
        yield IntegrityIssue(damage, name, detail, slices=_name_ranges(ledger.grid, slices))


def _describe_other_runs(ledger: Ledger, number: int, rows_by_run: Counter[str]) -> str | None:
    """Describe a slice's rows of other runs than the committed one; None without any."""
    entry = ledger.entry(number)
    other_runs = sorted(set(rows_by_run) - ({entry.run} if entry else set()))
    if not other_runs:
        return None
    were_committed = all(run in ledger.runs or parse_merge_commit(run) is not None for run in other_runs)
    origin = "replaced" if were_committed else "uncommitted"
    return f"{sum(rows_by_run[run] for run in other_runs):,} rows of {origin} runs: {', '.join(other_runs)}"
