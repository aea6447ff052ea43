"""Measure Tidemark and other implementations in turns; print a table and save the figures as JSON.

Usage: python -m benchmarks [--rows 4000000] [--rounds 3] [--case NAME]... [--also NAME]... [--peer NAME]...
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace

from rich.console import Console

from benchmarks.cases import create_cases
from benchmarks.environment import describe_environment
from benchmarks.peers import PEERS
from benchmarks.results import Results, Run
from benchmarks.runner import run_in_turns
from benchmarks.table import create_table, format_run

FILE_WIDTH = 140
"""Width of the table in a file, in characters."""


def main() -> None:
    """Measure the selected cases, and save the results after each run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows per input (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=600, help="seconds a run may take (default: %(default)s)")
    parser.add_argument("--case", action="append", metavar="NAME", help="measure this case; --list shows all")
    parser.add_argument(
        "--also", action="append", metavar="NAME", default=[], help="measure this case too, which is not a default"
    )
    parser.add_argument("--peer", action="append", metavar="NAME", choices=list(PEERS), help="measure this peer only")
    parser.add_argument("--output", default="full", metavar="NAME", help="benchmarks/results/NAME.json (default: full)")
    parser.add_argument("--keep", action="store_true", help="keep earlier results of NAME for other cases and peers")
    parser.add_argument("--list", action="store_true", help="show the cases and the peers without measuring")
    arguments = parser.parse_args()
    cases = create_cases(arguments.rows)
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    if arguments.list:
        print_cases(console, arguments.rows)
        return
    if unknown := {*(arguments.case or ()), *arguments.also} - cases.keys():
        parser.error(f"there is no case {', '.join(sorted(unknown))}. --list shows all cases.")
    names = arguments.case or [name for name, case in cases.items() if not case.on_request_only]
    selected = [cases[name] for name in (*names, *arguments.also)]
    if arguments.peer:
        selected = [
            replace(case, peers=tuple(name for name in case.peers if name in arguments.peer)) for case in selected
        ]
    environment, runs, selected_pairs = (
        describe_environment(),
        list[Run](),
        {(case.name, name) for case in selected for name in case.peers},
    )
    rounds = arguments.rounds
    if arguments.keep:
        earlier = Results.load(arguments.output)
        if (earlier.rows, earlier.limit) != (arguments.rows, arguments.limit):
            options = f"--rows {earlier.rows} --limit {earlier.limit:.0f}"
            parser.error(f"{arguments.output} was measured with {options}. Pass the same, or leave out --keep.")
        runs = [run for run in earlier.runs if (run.case, run.peer) not in selected_pairs]
        rounds = max(rounds, earlier.rounds)
        environment["commit"] = ", ".join(
            dict.fromkeys([*earlier.environment["commit"].split(", "), environment["commit"]])
        )
    included = selected_pairs | {(run.case, run.peer) for run in runs}
    results = Results(
        environment,
        arguments.rows,
        rounds,
        arguments.limit,
        {
            name: {"description": case.description, "shape": asdict(case.shape)}
            for name, case in cases.items()
            if any(name == included_case for included_case, _ in included)
        },
        {
            name: peer.description
            for name, peer in PEERS.items()
            if any(name == included_peer for _, included_peer in included)
        },
        runs,
    )

    def report(run: Run) -> None:
        runs.append(run)
        results.save(arguments.output)
        console.print(format_run(run), highlight=False, soft_wrap=True)

    run_in_turns(selected, arguments.rounds, arguments.limit, report)
    console.print(create_table(results))
    console.print(f"Saved to benchmarks/results/{arguments.output}.json")
    if disagreements := results.find_disagreements():
        sys.exit("\n".join(f"different output in case {text}" for text in disagreements))


def print_cases(console: Console, rows: int) -> None:
    """Print the cases with their peers and descriptions."""
    for case in create_cases(rows).values():
        note = " (not a default)" if case.on_request_only else ""
        console.print(
            f"{case.name:12} {case.description}{note}: {'; '.join(case.peers)}", highlight=False, soft_wrap=True
        )
    for peer in PEERS.values():
        console.print(f"  {peer.name:28} {peer.description}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
