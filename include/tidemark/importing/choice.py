"""Model choices between ranked candidates, and who makes them: options, or a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.errors import UserError

_LISTED = 5
"""Candidates that a message or a comment lists."""


@dataclass(frozen=True)
class Candidate:
    """A possible value of a setting."""

    label: str
    """Text of the value for the option."""
    value: Any
    figures: str
    """Measured facts about the value, in one line."""
    rank: tuple[int, ...]
    """Greater is better. It decides in the order of `Choice.criteria`."""

    def __str__(self) -> str:
        return f"{self.label} ({self.figures})"


@dataclass(frozen=True)
class Choice:
    """A setting with its candidates."""

    subject: str
    """A noun phrase, such as `event time of the left input`."""
    option: str
    """Option that makes the choice."""
    criteria: str
    """Criteria of the ranking, the most important first."""
    candidates: tuple[Candidate, ...]
    """The best first."""
    can_default: bool = True
    """False if a person must choose even between candidates of different rank."""

    @classmethod
    def create(cls, subject: str, option: str, criteria: str, candidates: list[Candidate]) -> Choice:
        """Create a choice, with its candidates in the order of their rank."""
        ranked = sorted(candidates, key=lambda candidate: candidate.rank, reverse=True)
        return cls(subject, option, criteria, tuple(ranked))

    @property
    def default(self) -> Candidate | None:
        """The best candidate; None if another has the same rank."""
        first, *rest = self.candidates
        return None if not self.can_default or (rest and rest[0].rank == first.rank) else first

    def explain(self, chosen: Candidate) -> str:
        """Explain a choice in one line: the figures of the candidate, those of the others, and the ranking."""
        others = [str(candidate) for candidate in self.candidates if candidate is not chosen]
        hidden = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        listed = f"other candidates: {', '.join(others[:_LISTED])}{hidden}"
        reasons = [listed, f"criteria, the most important first: {self.criteria}"] if others else []
        return "; ".join([chosen.figures, *reasons])

    def describe_candidates(self) -> str:
        """List the best candidates with their figures, in one line."""
        more = len(self.candidates) - _LISTED
        return ", ".join(map(str, self.candidates[:_LISTED])) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Question:
    """A setting that only the user can know."""

    subject: str
    option: str
    example: str
    parse: Callable[[str], str]
    """Return the text in the form of a pipeline file, or raise a `UserError`."""
    hint: str = ""
    """Facts that help, as a sentence."""
    alternative: str = ""
    """Word to enter instead, with an option of the same name; empty for none."""


class DecisionMaker(Protocol):
    """Source of the decisions that figures leave open."""

    def choose(self, choice: Choice) -> Candidate:
        """Choose a candidate."""

    def answer(self, question: Question) -> str:
        """Enter a value, and return it in the form of a pipeline file."""


class Defaults:
    """Decisions without a terminal: the best candidate if it is the only best, else an error."""

    def choose(self, choice: Choice) -> Candidate:
        """Return the best candidate.

        Raises:
            UserError: Several are equally good.
        """
        if (default := choice.default) is None:
            raise UserError(
                f"the {choice.subject} is not clear. Pass {choice.option} with one of the candidates: "
                f"{choice.describe_candidates()}."
            )
        return default

    def answer(self, question: Question) -> str:
        """Refuse to guess.

        Raises:
            UserError: Always.
        """
        hint = f" {question.hint}" if question.hint else ""
        example = f"{question.example}, or --{question.alternative}" if question.alternative else question.example
        raise UserError(f"the {question.subject} is your decision. Pass {question.option}, such as {example}.{hint}")
