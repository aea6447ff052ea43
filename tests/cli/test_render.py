"""Tests of results as shown on a terminal."""

import re
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace

import pytest
from rich.console import Console

from tidemark.checkpoints.summary import BufferSummary, CheckpointSummary
from tidemark.checkpoints.verification import CheckpointVerification
from tidemark.cli import quarantine, versions
from tidemark.cli.common import GlobalOptions, print_result, set_global_options
from tidemark.cli.integrity import render_issues
from tidemark.cli.render_checkpoints import render_summary, render_verification
from tidemark.cli.render_comparison import (
    render_comparison,
    render_dialects,
    render_row_histories,
    render_setting_diff,
    render_what_if,
)
from tidemark.cli.render_plan import render_plan, render_reprocess_changes
from tidemark.cli.render_status import render_status
from tidemark.cli.status_summary import SideStatus, Status
from tidemark.cli.vacuum import render_vacuum
from tidemark.comparison import Comparison, DialectComparison
from tidemark.comparison.dialect_diff import RULES, DialectDifference, DialectResult
from tidemark.comparison.result import Agreement, Cause, check_budget
from tidemark.comparison.row_history import RowHistory
from tidemark.comparison.what_if import Outcome, WhatIf
from tidemark.config import Budget
from tidemark.config.diff import SettingChange
from tidemark.delta.log_files import RemovedFiles
from tidemark.integrity.check import IntegrityIssue, IntegrityReport
from tidemark.ledger.emission_diff import EmissionChange
from tidemark.maintenance.recovery_horizon import RecoveryHorizon
from tidemark.maintenance.vacuum import VacuumResult
from tidemark.planning.deleted_inputs import DeletedInputs
from tidemark.quality.quarantine import QuarantinedGroup
from tidemark.timegrid.slices import Grid
from tidemark.versions.candidates import CandidateVersion

START, END = "2013-01-01T00:00Z", "2013-12-31T23:00Z"
LONG = "departures_of_all_airports_joined_with_weather_observations"
"""Name that is longer than its share of 80 columns."""
LARGE = 12_345_678_901
COLUMN = f"left_{LONG}"
RANGES = (START, END)
ORDERS = SimpleNamespace(name=LONG, command_argument="orders", output="orders")


def create_status(name, **more):
    side = SideStatus("t", *[LARGE] * 5, lateness={"p50": 1, "max": LARGE}, reasons={"null_key": LARGE}, watermark=END)
    return Status(
        pipeline=name, cli_arguments="orders", clock="event-time", left=side, right=side, slices=LARGE, jobs=LARGE,
        first=START, end=END, emissions=LARGE, quality={"passed": LARGE, "warned": LARGE},
        tables={"ledger": {"files": 9, "bytes": LARGE}}, oldest_versions={"emissions": LARGE, "late": LARGE},
        failed_expectations=[f"{LONG} is null"], **more,
    )  # fmt: skip


def create_outcome(value):
    return Outcome(value, LARGE, LARGE, {"left": LARGE, "right": 0}, float(LARGE), LARGE, float(LARGE), float(LARGE))


def create_comparison():
    row = {COLUMN: LONG, "_number": 1}
    causes = tuple(
        Cause(name, table, LARGE, ({**row, "_changed": [COLUMN]},))
        for name in ("changed value", "padded before its partner arrived", "unexplained")
        for table in ("batch", "stream")
    )
    agreement = Agreement(START, "r", LARGE, LARGE, LARGE, LARGE, 0, {}, changed=LARGE - 1)
    return Comparison(LONG, LONG, LONG, START, END, LARGE, causes, (agreement,), (), 0.1, leading_columns=(COLUMN,))


TABLES = {
    "setting diff": render_setting_diff(
        [SettingChange("join.min_cleanup_interval", "30 minutes", LONG, "slices since")]
    ),
    "reprocess": render_reprocess_changes(
        Grid(0, 3_600_000_000), [SimpleNamespace(changes={1: EmissionChange(LARGE, LARGE, LARGE)})]
    ),
    "status": render_status(create_status("orders")),
    "status of a chain": render_status(
        create_status("orders", upstreams={"left": {"pipeline": LONG, "end": END, "stale": START}})
    ),
    "status of many": render_status(*(create_status(name) for name in (LONG, "flights_weather", "orders"))),
    "what-if": render_what_if(
        WhatIf(
            LONG, "left.watermark_delay", START, END,
            tuple(map(create_outcome, ("0 seconds", "10 days 23 hours 59 minutes 59 seconds"))), create_outcome(None),
            "0 seconds", ("rows are counted before quarantine",),
        )
    ),
    "compare": render_comparison(create_comparison()),
    "dialects": render_dialects(
        DialectComparison(
            LONG, START, END,
            (DialectResult("flink-datastream", LARGE, LARGE, None), DialectResult("spark", None, 0, LONG)),
            tuple(DialectDifference("flink-datastream", "flink-sql", rule, LARGE, {COLUMN: LONG}) for rule in RULES),
            (COLUMN,),
        )
    ),
    "quarantine": quarantine.render_groups(
        ORDERS, [QuarantinedGroup(START, f"{LONG} is null", LARGE, "r", ({COLUMN: LONG},))]
    ),
    "versions": versions.render_candidates(ORDERS, [CandidateVersion(LONG[:50], LARGE, START, END, "", LARGE, LARGE)]),
    "checkpoint show": render_summary(
        CheckpointSummary(
            LONG, END, "0123456789abcdef" * 2, 1, LARGE, "f" * 64, True, {"combined": END},
            BufferSummary(LARGE, LARGE, START, END), BufferSummary(LARGE, LARGE, START, END), [],
        )
    ),
    "checkpoint verify": render_verification(
        CheckpointVerification(LONG, END, START, LARGE, LARGE, "f" * 64, "e" * 64, True, [START] * 12, LARGE, LARGE, [])
    ),
    "vacuum": render_vacuum(
        VacuumResult(
            LONG, *[RemovedFiles(("a",), LARGE)] * 5, LARGE, RecoveryHorizon({}, None, START, None, ()), dry_run=True
        )
    ),
    "verify": render_issues(
        IntegrityReport(
            LONG, LARGE, LARGE, LARGE,
            (IntegrityIssue("missing file", LONG, f"{LONG} is not there", f"run=1/{LONG}.parquet", (RANGES,)),),
        )
    ),
}  # fmt: skip
"""Each table of the command, with long names and large figures."""


def test_render_status_names_late_rows_that_were_processed():
    status = create_status("orders")
    left = replace(status.left, late=0, late_but_processed=7)

    output = print_at(80, render_status(replace(status, left=left)))

    assert re.search(r"left rows late +│ +0 │\n│ +│ +7 late_but_processed │", output)


@pytest.mark.parametrize(("stops_next_run", "color"), [(True, 31), (False, 33)])
def test_render_status_shows_deleted_inputs_in_red_if_the_next_run_stops(stops_next_run, color):
    status = replace(create_status("orders"), deleted_inputs=DeletedInputs("rows are gone", stops_next_run))
    console = Console(force_terminal=True, color_system="standard", width=80)

    with console.capture() as capture:
        console.print(render_status(status))

    assert f"\x1b[{color}morders: rows are gone\x1b[0m" in capture.get()


def test_render_status_says_that_filtered_rows_are_not_read():
    status = create_status("orders")
    left = replace(status.left, read=7, where="v > 0", filtered=None)

    output = print_at(80, render_status(replace(status, left=left)))

    assert re.search(r"left rows read +│ +7 │\n│ +│ +that meet `where` │", output)


def test_render_verification_distinguishes_an_earlier_slice():
    verified = CheckpointVerification("orders", END, START, 9, 1, "f", "f", True, [], 0, 0, [])
    earlier = replace(verified, differing_slices=[START])

    texts = [print_at(80, render_verification(each)) for each in (verified, earlier, replace(earlier, fingerprint="e"))]

    assert "the same\n" in texts[0]
    assert "the checkpoint is the same, but the state after 1 earlier slice differs\n" in texts[1]
    assert "the checkpoint differs from the rebuilt state\n" in texts[2]
    assert re.search(rf"slices whose state differs +│ {START}", texts[1])


def test_render_what_if_marks_the_current_value_and_has_notes():
    output = print_at(80, TABLES["what-if"])

    assert output.count("current") == 1
    assert output.rstrip().endswith("note: rows are counted before quarantine")


def test_render_comparison_example_has_keys_times_and_changed_columns():
    row = {"left_k": "a", "left_happened": "10:00", "left_gate": 7, "left_v": 1.5, "_left": 42, "_number": 1}
    examples = {
        "changed value": {"_changed": ["left_v"], "_detail": "left_v"},
        "unexplained": {"_input": "left", "_lateness_ms": 720_000, "_detail": "and yet in the stream"},
    }
    causes = tuple(Cause(name, "batch", 1, ({**row, **columns},)) for name, columns in examples.items())
    leading_columns = ("left_k", "left_happened")
    comparison = Comparison("p", "t", None, "", "", 9, causes, (), (), 0.1, leading_columns=leading_columns)

    output = print_wide(render_comparison(comparison))

    assert "1: left_k a, left_happened 10:00, left_v 1.5: left_v" in output
    assert (
        "1: left_k a, left_happened 10:00: left row 12 min 00 s behind the watermark, and yet in the stream" in output
    )
    assert "gate" not in output


def test_render_comparison_shows_all_examples_and_both_values_of_a_changed_row():
    values = {"batch": ("old", "wide"), "stream": ("new", "long")}
    numbers = iter(range(1, 5))
    causes = tuple(
        Cause("changed value", missing_in, 2, tuple(
            {"left_k": key, "v": value, "_changed": ["v"], "_number": next(numbers), "_detail": "v"}
            for key, value in zip("ab", values[missing_in], strict=True)
        ))
        for missing_in in ("batch", "stream")
    )  # fmt: skip
    agreement = (Agreement(START, "r", 0, 2, 2, 0, 0, {}, changed=2),)
    comparison = Comparison("p", "t", None, "", "", 0, causes, agreement, (), 0.1, leading_columns=("left_k",))

    output = print_wide(render_comparison(comparison))

    assert re.findall(r"\d in \w+: left_k \w, v \w+: v", output) == [
        "3 in batch: left_k a, v new: v",
        "1 in stream: left_k a, v old: v",
        "4 in batch: left_k b, v long: v",
        "2 in stream: left_k b, v wide: v",
    ]
    assert output.count("changed value") == 1
    assert [cause.missing_in for cause in comparison.causes] == ["batch", "stream"], "JSON has both sides"


def test_render_comparison_counts_a_changed_row_once():
    causes = [("changed value", "stream", 2), ("changed value", "batch", 2), ("unexplained", "stream", 2)]
    causes += [("unexplained", "batch", 1), ("pending", "stream", 9)]
    comparison = Comparison(
        "p", "t", None, "", "", 95,
        tuple(Cause(*cause, ()) for cause in causes),
        (Agreement(START, "r", 95, 4, 3, 3, 9, {}, changed=2),), (), 0.1,
    )  # fmt: skip

    output = print_wide(render_comparison(comparison))
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in output.splitlines()]

    assert [cells[2:] for cells in rows if len(cells) == 4 and cells[3].isdigit()] == [
        ["in both", "2"],
        ["batch", "2"],
        ["stream", "1"],
        ["batch", "9"],
    ]
    assert (
        "95 rows are the same (95.00%), 5 differ: 2 changed, 2 missing in the stream, 1 extra in the stream" in output
    )
    totals = {name: comparison.to_dict()[name] for name in ("differences", "changed", "missing", "extra")}
    assert totals == {"differences": 5, "changed": 2, "missing": 2, "extra": 1}
    assert check_budget(Budget(differing=4), comparison.agreement) == (
        "3 of 100 rows unexplained, 3 more than the budget of 0",
        "5 of 100 rows differing, 1 more than the budget of 4",
    )


def test_render_comparison_of_versions_names_candidate_and_live():
    causes = tuple(Cause("late in the stream", table, 1, ()) for table in ("stream", "batch"))
    comparison = Comparison("p", "p/emissions", None, "", "", 9, causes, (), (), 0.1, labels=("candidate", "live"))

    output = print_wide(render_comparison(comparison))

    assert "late in the live version" in output
    assert re.search(r"│ candidate +│ +1 │", output)
    assert re.search(r"│ +live +│ +1 │", output)
    assert not re.search("stream|batch", output)


def test_render_comparison_of_versions_leaves_values_as_they_are():
    example = {"left_k": "the stream", "_detail": "missing in the stream", "_number": 1}
    cause = Cause("unexplained", "stream", 1, (example,))
    comparison = Comparison(
        "p", "p/emissions", None, "", "", 9, (cause,), (), (), 0.1, leading_columns=("left_k",),
        labels=("candidate", "live"),
    )  # fmt: skip

    assert "1: left_k the stream: missing in the live version" in print_wide(render_comparison(comparison))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a", "left_k a,"),
        ("a ", "left_k 'a ',"),
        ("a\t", "left_k 'a\\t',"),
        ("a\u00a0b", "left_k 'a\\xa0b',"),
        ("a\u200b", "left_k 'a\\u200b',"),
        ("a\nb", "left_k 'a\\nb',"),
        ("", "left_k '',"),
    ],
)
def test_render_row_quotes_strings_that_look_like_others(value, shown):
    row = {"left_k": value, "left_happened": "2024-01-01T10:00:00.000001Z"}
    cause = Cause("unexplained", "batch", 1, ({**row, "_number": 1},))
    comparison = Comparison("p", "t", None, "", "", 9, (cause,), (), (), 0.1, leading_columns=tuple(row))

    assert f"{shown} left_happened 2024-01-01T10:00:00.000001Z" in print_wide(render_comparison(comparison))
    assert f"{shown} left_happened" in print_wide(render_row_histories([RowHistory("orders", "left", row, ())]))


def print_wide(renderable):
    """Print to a console of 200 columns; return the text."""
    console = Console(width=200, record=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def create_vacuum_result(recovery_horizon):
    """Create the result of a dry run that would remove files of three kinds."""
    return VacuumResult(
        "p",
        uncommitted_files=RemovedFiles(("a",), 5),
        replaced_files=RemovedFiles(("b", "c"), 2000),
        log_files=RemovedFiles(),
        data_docs=RemovedFiles(),
        checkpoints=RemovedFiles(("checkpoint/d",), 3000),
        recent_files=1,
        recovery_horizon=recovery_horizon,
        dry_run=True,
    )


def test_render_vacuum_lists_kinds_of_files_and_recovery_horizon():
    horizon = RecoveryHorizon({"emissions": 12, "late": 0}, "2024-01-09", "2024-01-01", "2024-01-02", ("left",))

    output = print_wide(render_vacuum(create_vacuum_result(horizon)))

    lines = [" ".join(line.split()) for line in output.replace("│", " ").splitlines()]
    assert {"uncommitted 1 5 bytes", "replaced 2 2.0 kB"} <= set(lines)
    assert not any(line.startswith("logs") for line in lines)
    assert lines[-5:] == [
        "1 other file may belong to an active run",
        "expired checkpoints: 1 file (3.0 kB), which count as replaced from then on",
        "oldest versions that can then be read: emissions 12, late 0",
        "reprocess can begin at any slice from 2024-01-09 on; for an earlier slice it begins at 2024-01-01",
        "checkpoint verify replays from 2024-01-02 on, as far as left can be read",
    ]


def test_render_vacuum_without_replayable_slice_explains_why():
    horizon = RecoveryHorizon({}, None, "2024-01-01", None, ())

    output = print_wide(render_vacuum(create_vacuum_result(horizon)))

    assert "reprocess of any slice begins at 2024-01-01" in output
    assert "checkpoint verify can replay no slice, because the input versions that slices read are gone" in output


def test_render_shows_sql_with_brackets_as_it_is():
    condition = "url rlike '[/?#]' or url rlike '[a-z]'"
    described = {
        "pipeline": "orders", "clock": "event-time", "explanation": condition, "continues": None,
        "slice_ranges": [{"reason": "new settings", "explanation": condition, "from": START, "to": END, "slices": 1}],
        "inputs": {"left": {"table": "lake/[a]/orders", "version": 1, "rows": 1}},
    }  # fmt: skip
    plan = SimpleNamespace(
        to_dict=lambda: described, slice_count=0, already_committed=0, jobs=(), atomic=False, slices_left_outdated=(),
        input_completeness=(), drain_after=None, notes=(f"note of {condition}",), spark_queries=(f"why {condition}",),
    )  # fmt: skip
    candidate = CandidateVersion("wide", 1, START, END, f"join.condition {condition}", 1, 1)

    output = print_wide(render_plan(plan))
    described["slice_ranges"] = []
    without_slices = print_wide(render_plan(plan))

    for text in (f"{condition} (", f"note of {condition}", f"why {condition}", "lake/[a]/orders"):
        assert text in output
    assert re.search(rf"why +│ {re.escape(condition)}", without_slices)
    assert f"wide: join.condition {condition}" in print_wide(versions.render_candidates(ORDERS, [candidate]))


@pytest.mark.parametrize("name", TABLES)
def test_table_fits_80_columns_without_cutting_a_value(name):
    narrow, wide = print_at(80, TABLES[name]), print_at(1000, TABLES[name])

    assert "\N{HORIZONTAL ELLIPSIS}" not in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    assert read_cells(narrow) == read_cells(wide)
    figures = re.compile(r"\d[\d,]*(?:\.\d+)?(?![\w-])|\d{4}-\d\d-\d\dT\d\d:\d\dZ")
    assert set(figures.findall(wide)) <= set(figures.findall(narrow)), "a figure is broken over two lines"


def print_at(width, renderable):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def read_cells(output):
    """Return the text of each column between two horizontal rules, without spaces, as a set."""
    cells = set()
    for is_row, lines in groupby(output.splitlines(), key=lambda line: line[:1] in ("│", "┃")):
        if is_row:
            columns = zip(*(re.split("[│┃]", line)[1:-1] for line in lines), strict=True)
            cells |= {"".join("".join(parts).split()) for parts in columns}
    return cells


def test_render_chain_names_the_pipeline_of_rows_and_causes():
    row = {"left_k": "a", "_number": 1, "_input": "right", "_lateness_ms": 180_000, "_pipeline": "orders_payments"}
    cause = Cause("late in the batch", "batch", 1, (row,))
    comparison = Comparison("p", "t", None, "", "", 9, (cause,), (), (), 0.1, leading_columns=("left_k",))
    histories = [RowHistory(name, "left", {"k": "a"}, ()) for name in ("orders_payments", "orders_shipments")]

    shown = "left_k a: in orders_payments: right row 3 min 00 s behind the watermark"
    assert shown in print_wide(render_comparison(comparison))
    assert "left row of orders_shipments: k a" in print_wide(render_row_histories(histories))
    assert "left row k a" in print_wide(render_row_histories(histories[:1]))


def test_print_result_reads_markup_of_tables_and_not_of_text(capsys):
    set_global_options(GlobalOptions())
    print_result({}, lambda: render_status(create_status("orders")))
    print_result({}, lambda: "url rlike '[/?#]'")

    shown = capsys.readouterr().out
    assert "rows emitted" in shown
    assert "[bold]" not in shown
    assert "[dim]" not in shown
    assert shown.endswith("url rlike '[/?#]'\n")
