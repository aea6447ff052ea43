"""Settings of notifications about validation results; addresses and secrets are in the operator's connections."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from tidemark.config.base import Settings

Channel = Literal["slack", "teams", "webhook", "email", "pagerduty", "opsgenie", "sns"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)


class Connection(Settings):
    """Airflow connection, or its AIRFLOW_CONN_* environment variable."""

    connection: str = Field(pattern=r"^tidemark_\w+$")
    """Connection name. It must begin with tidemark_, so that pipeline files cannot use other connections."""


class MailConnection(Connection):
    """Mail server and recipients."""

    to: list[str] = Field(min_length=1, json_schema_extra={"examples": [["data@example.org"]]})
    """Recipient addresses."""

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        for address in self.to:
            if not address.isprintable() or address.count("@") != 1 or set(address) & set(" ,;<>"):
                raise ValueError(f"to: {address!r} is not a mail address. Write it as data@example.org.")
        return self


class TopicConnection(Connection):
    """Account of Amazon Web Services, and a topic in it."""

    topic: str = Field(pattern=r"^arn:[\w-]+:sns:[\w-]+:\d+:[\w-]+$")
    """ARN of the topic, such as arn:aws:sns:eu-central-1:123456789012:quality."""


class Receiver(Settings):
    """Receiver of validation results on one channel: `{slack: {connection: tidemark_slack}, when: failed}`."""

    slack: Connection | None = None
    """Slack incoming webhook. Connection type slackwebhook or http."""
    teams: Connection | None = None
    """Microsoft Teams incoming webhook. Connection type http."""
    webhook: Connection | None = None
    """HTTP endpoint that receives validation results as JSON by POST. Connection type http."""
    email: MailConnection | None = None
    """Mail. Connection type smtp."""
    pagerduty: Connection | None = None
    """PagerDuty. The connection's password is the integration key. Connection type pagerduty_events or http."""
    opsgenie: Connection | None = None
    """Opsgenie. The connection's password is the API key. Connection type opsgenie or http."""
    sns: TopicConnection | None = None
    """Amazon SNS, with the package boto3. Connection type aws."""
    when: Literal["failed", "warned", "always"] = "failed"
    """Results that are sent. `failed`: slices that were not published. `warned`: also slices with a failed expectation
    of lower severity. `always`: all results."""

    @model_validator(mode="after")
    def _check_channel(self) -> Self:
        if len([channel for channel in CHANNELS if getattr(self, channel)]) != 1:
            raise ValueError(f"Set exactly one of {', '.join(CHANNELS)}. Add further channels as entries of their own.")
        return self

    @property
    def channel(self) -> Channel:
        """The channel that is set."""
        return next(channel for channel in CHANNELS if getattr(self, channel))

    @property
    def connection(self) -> str:
        """Name of the channel's connection."""
        connection: Connection = getattr(self, self.channel)
        return connection.connection

    def accepts(self, outcome: str) -> bool:
        """Return True if results with this outcome (passed, warned, failed) are sent to the receiver."""
        return {"failed": outcome == "failed", "warned": outcome != "passed", "always": True}[self.when]


def get_connection_variable(connection: str) -> str:
    """Return the environment variable from which Airflow reads a connection.

    >>> get_connection_variable("tidemark_slack")
    'AIRFLOW_CONN_TIDEMARK_SLACK'
    """
    return f"AIRFLOW_CONN_{connection.upper()}"
