"""Ask a person at a terminal for the decisions that figures leave open."""

from __future__ import annotations

import sys

import typer

from tidemark.cli.common import err
from tidemark.cli.rich_table import create_table
from tidemark.errors import UserError
from tidemark.importing.choice import Candidate, Choice, Entry


def is_terminal() -> bool:
    """Return True if a person can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class TerminalDecisions:
    """Decisions of a person. Questions are printed to standard error, so that the output can be redirected."""

    def choose(self, choice: Choice) -> Candidate:
        """Show the candidates with their figures, and read the number of one."""
        table = create_table(["", choice.option.removeprefix("--"), "figures"], title=f"Choose the {choice.subject}")
        for number, candidate in enumerate(choice.candidates, 1):
            table.add_row(str(number), candidate.label, candidate.figures)
        err.print(table)
        err.print(f"Ranked by: {choice.criteria}.", highlight=False, markup=False)
        while True:
            answer: int = typer.prompt("Number", type=int, default=1 if choice.default else None, err=True)
            if 1 <= answer <= len(choice.candidates):
                return choice.candidates[answer - 1]

    def enter(self, entry: Entry) -> str:
        """Show the facts that help, and read a value."""
        if entry.hint:
            err.print(entry.hint, highlight=False, markup=False)
        while True:
            text: str = typer.prompt(f"{entry.subject} ({entry.option}), such as {entry.example}", err=True)
            try:
                return entry.parse(text)
            except UserError as error:
                err.print(str(error), highlight=False, markup=False)
