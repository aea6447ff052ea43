"""Tidemark beside other ways to do the same work, measured in turns: one table, and the figures kept as JSON.

Usage: python -m benchmarks [--rows 4000000] [--rounds 3] [--case NAME]... [--also NAME]... [--peer NAME]...
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace

from rich.console import Console

from benchmarks.cases import cases
from benchmarks.environment import environment
from benchmarks.peers import PEERS
from benchmarks.results import Results, Run
from benchmarks.runner import run_in_turns
from benchmarks.table import line, table

FILE_WIDTH = 140
"""Of the table where nobody's terminal has a width."""


def main() -> None:
    """Measure what is asked for; what is known is kept after each run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4_000_000, help="of an input (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--limit", type=float, default=600, help="seconds a run may take (default: %(default)s)")
    parser.add_argument("--case", action="append", metavar="NAME", help="this case, of those that --list shows")
    parser.add_argument("--also", action="append", metavar="NAME", default=[], help="and this one, which few ask for")
    parser.add_argument("--peer", action="append", metavar="NAME", choices=list(PEERS), help="this peer")
    parser.add_argument("--into", default="full", metavar="NAME", help="benchmarks/results/NAME.json (default: full)")
    parser.add_argument("--keep", action="store_true", help="what NAME has of other cases and peers, measured before")
    parser.add_argument("--list", action="store_true", help="show the cases and the peers, and measure nothing")
    arguments = parser.parse_args()
    known = cases(arguments.rows)
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    if arguments.list:
        show(console, arguments.rows)
        return
    if unknown := {*(arguments.case or ()), *arguments.also} - known.keys():
        parser.error(f"there is no case {', '.join(sorted(unknown))}; --list shows those that there are")
    names = arguments.case or [name for name, case in known.items() if not case.asked]
    chosen = [known[name] for name in (*names, *arguments.also)]
    if arguments.peer:
        chosen = [replace(case, peers=tuple(name for name in case.peers if name in arguments.peer)) for case in chosen]
    facts, runs, anew = environment(), list[Run](), {(case.name, name) for case in chosen for name in case.peers}
    rounds = arguments.rounds
    if arguments.keep:
        earlier = Results.load(arguments.into)
        if (earlier.rows, earlier.limit) != (arguments.rows, arguments.limit):
            as_then = f"--rows {earlier.rows} --limit {earlier.limit:.0f}"
            parser.error(f"{arguments.into} was measured with {as_then}; give the same, or leave out --keep")
        runs = [run for run in earlier.runs if (run.case, run.peer) not in anew]
        rounds = max(rounds, earlier.rounds)
        facts["commit"] = ", ".join(dict.fromkeys([*earlier.environment["commit"].split(", "), facts["commit"]]))
    shown = anew | {(run.case, run.peer) for run in runs}
    results = Results(
        facts,
        arguments.rows,
        rounds,
        arguments.limit,
        {
            name: {"told": case.told, "shape": asdict(case.shape)}
            for name, case in known.items()
            if any(name == its for its, _ in shown)
        },
        {name: peer.told for name, peer in PEERS.items() if any(name == its for _, its in shown)},
        runs,
    )

    def told(run: Run) -> None:
        runs.append(run)
        results.save(arguments.into)
        console.print(line(run), highlight=False, soft_wrap=True)

    run_in_turns(chosen, arguments.rounds, arguments.limit, told)
    console.print(table(results))
    console.print(f"Kept in benchmarks/results/{arguments.into}.json")
    if wrong := results.disagreements():
        sys.exit("\n".join(f"not the same answer in case {one}" for one in wrong))


def show(console: Console, rows: int) -> None:
    """The cases with their peers, and what each is."""
    for case in cases(rows).values():
        asked = " (only if asked for)" if case.asked else ""
        console.print(f"{case.name:12} {case.told}{asked}: {'; '.join(case.peers)}", highlight=False, soft_wrap=True)
    for peer in PEERS.values():
        console.print(f"  {peer.name:28} {peer.told}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
