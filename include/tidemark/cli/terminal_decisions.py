"""Ask a person at a terminal for the decisions that figures leave open."""

from __future__ import annotations

import sys

import typer
from rich.text import Text

from tidemark.cli.common import err
from tidemark.cli.rich_table import create_table
from tidemark.errors import UserError
from tidemark.importing.choice import Candidate, Choice, Question

_SHOWN = 15
"""Candidates of a table."""


def is_terminal() -> bool:
    """Return True if a person can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class TerminalDecisions:
    """Decisions of a person. Questions are printed to standard error, so that the output can be redirected."""

    def choose(self, choice: Choice) -> Candidate:
        """Show the candidates with their figures, and read the number of one."""
        table = create_table(["", "candidate", "figures"], title=f"Choose the {choice.subject}")
        shown = choice.candidates[:_SHOWN]
        for number, candidate in enumerate(shown, 1):
            table.add_row(str(number), Text(candidate.label), Text(candidate.figures))
        err.print(table)
        if hidden := len(choice.candidates) - len(shown):
            err.print(f"{hidden} more: pass {choice.option}", highlight=False, markup=False)
        err.print(f"Ranked by: {choice.criteria}.", highlight=False, markup=False)
        while True:
            answer: int = typer.prompt("Number", type=int, default=1 if choice.default else None, err=True)
            if 1 <= answer <= len(shown):
                return shown[answer - 1]

    def answer(self, question: Question) -> str:
        """Show the facts that help, and read a value."""
        if question.hint:
            err.print(question.hint, highlight=False, markup=False)
        example = f"{question.example}, or {question.alternative}" if question.alternative else question.example
        while True:
            text: str = typer.prompt(f"{question.subject}, such as {example}", err=True)
            try:
                return text if text == question.alternative else question.parse(text)
            except UserError as error:
                err.print(str(error), highlight=False, markup=False)
