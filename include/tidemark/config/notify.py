"""Who is told of a job's verdict; where that is, and its secret, are in connections of the operator's."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tidemark.config.base import Settings

Way = Literal["slack", "teams", "webhook", "email"]
WAYS: tuple[Way, ...] = ("slack", "teams", "webhook", "email")


class Connection(Settings):
    """A connection of Airflow's, or the environment variable in which Airflow has one."""

    connection: str = Field(pattern=r"^tidemark_\w+$")
    """Its name, which begins with tidemark_: other connections are not open to pipeline files."""


class MailConnection(Connection):
    """The mail server, and who gets the mail."""

    to: list[str] = Field(min_length=1, json_schema_extra={"examples": [["data@example.org"]]})
    """Addresses."""

    @model_validator(mode="after")
    def _addresses(self) -> Self:
        for one in self.to:
            if not one.isprintable() or one.count("@") != 1 or set(one) & set(" ,;<>"):
                raise ValueError(f"to: {one!r} is no address; write it as data@example.org")
        return self


class Receiver(Settings):
    """Somebody who is told of verdicts, in one way: `{slack: {connection: tidemark_slack}, when: failed}`."""

    slack: Connection | None = None
    """An incoming webhook of Slack; connection of type slackwebhook or http."""
    teams: Connection | None = None
    """An incoming webhook of Microsoft Teams; connection of type http."""
    webhook: Connection | None = None
    """Any address that takes the verdict as JSON by POST; connection of type http."""
    email: MailConnection | None = None
    """A mail; connection of type smtp."""
    when: Literal["failed", "warned", "always"] = "failed"
    """`failed`: a slice is kept from being published; `warned`: that, or an expectation did not hold; `always`."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if len([way for way in WAYS if getattr(self, way)]) != 1:
            raise ValueError(f"name one of {', '.join(WAYS)}; further ones are entries of their own")
        return self

    @property
    def way(self) -> Way:
        """How it is told."""
        return next(way for way in WAYS if getattr(self, way))

    @property
    def connection(self) -> str:
        """The connection's name."""
        found: Connection = getattr(self, self.way)
        return found.connection

    def wants(self, outcome: str) -> bool:
        """Whether it is told of a verdict that came out so."""
        return {"failed": outcome == "failed", "warned": outcome != "passed", "always": True}[self.when]


def variable(connection: str) -> str:
    """The environment variable that holds a connection, as Airflow has it.

    >>> variable("tidemark_slack")
    'AIRFLOW_CONN_TIDEMARK_SLACK'
    """
    return f"AIRFLOW_CONN_{connection.upper()}"
