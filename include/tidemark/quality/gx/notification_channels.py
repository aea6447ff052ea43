"""Send notifications to Slack, Microsoft Teams, webhooks and mail by Great Expectations' actions.

Addresses and secrets are read from connections in the environment. Imports Great Expectations, which takes seconds.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from html import escape
from threading import Thread
from typing import Any, Literal

import requests
from great_expectations.checkpoint.actions import (
    ActionContext,
    EmailAction,
    MicrosoftTeamsNotificationAction,
    SlackNotificationAction,
    ValidationAction,
)
from great_expectations.checkpoint.checkpoint import Checkpoint, CheckpointResult
from great_expectations.core import ExpectationSuiteValidationResult, RunIdentifier
from great_expectations.render.renderer.email_renderer import EmailRenderer
from great_expectations.render.renderer.microsoft_teams_renderer import MicrosoftTeamsRenderer
from great_expectations.render.renderer.slack_renderer import SlackRenderer
from typing_extensions import override

from tidemark.config.notify import Channel, Receiver, get_connection_variable
from tidemark.quality.notification import Notification

TIMEOUT_SECONDS = 5.0
"""Time that a job waits for all receivers together."""
_LOG = logging.getLogger(__name__)
# Its messages quote addresses, which are secrets, and responses.
logging.getLogger("great_expectations.checkpoint.actions").disabled = True

_HTTP = ("http", "https")
_CONNECTION_TYPES: Mapping[Channel, tuple[str, ...]] = {
    "slack": ("slackwebhook", *_HTTP),
    "teams": _HTTP,
    "webhook": _HTTP,
    "email": ("smtp", "email"),
}
"""Allowed connection types by channel."""


class _ConnectionError(Exception):
    """Connection that cannot be used. The message contains none of its values but its name and type."""


def send(notification: Notification, receivers: list[Receiver], context: Any, result_id: Any) -> None:
    """Send a notification to all receivers in parallel, and log a warning for each that fails or times out.

    Args:
        notification: what to send.
        receivers: whom to send it to.
        context: data context of Great Expectations' project.
        result_id: identifier of a stored result, which Great Expectations' actions require.
    """
    result = _create_checkpoint_result(notification, result_id)
    errors: dict[int, str] = {}

    def send_to(number: int, receiver: Receiver) -> None:
        errors[number] = _send_to_receiver(receiver, notification, result, context)

    threads = {n: Thread(target=send_to, args=(n, receiver), daemon=True) for n, receiver in enumerate(receivers)}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    for number, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if error := errors.get(number, f"No response within {TIMEOUT_SECONDS:g} s."):
            channel, name = receivers[number].channel, receivers[number].connection
            _LOG.warning(
                "warning: %s was not notified by connection %s that %s. %s", channel, name, notification.title, error
            )


def _send_to_receiver(receiver: Receiver, notification: Notification, result: CheckpointResult, context: Any) -> str:
    """Send a notification; return the error, or an empty string on success."""
    try:
        action = _CREATE_ACTION[receiver.channel](receiver, _read_connection(receiver), notification)
        action._data_context = context  # noqa: SLF001 - as a checkpoint does with its actions
        response = action.run(result, ActionContext())
    except _ConnectionError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - messages of exceptions quote addresses
        return f"Sending failed with {type(error).__name__}."
    return "" if all(response.values()) else "The receiver refused the message or did not respond."


def _read_connection(receiver: Receiver) -> dict[str, Any]:
    """Read the receiver's connection from the environment, with `extra` parsed.

    Raises:
        _ConnectionError: it is missing, no JSON, or of another type.
    """
    name, allowed_types = get_connection_variable(receiver.connection), _CONNECTION_TYPES[receiver.channel]
    example = f'{{"conn_type": "{allowed_types[0]}", "host": ...}}'
    try:
        connection = json.loads(os.environ[name])
        extra = connection.get("extra") or {}
        connection["extra"] = json.loads(extra) if isinstance(extra, str) else extra
        connection_type = connection["conn_type"]
    except KeyError:
        raise _ConnectionError(
            f"The connection does not exist. Add it in Airflow, or set {name}='{example}'."
        ) from None
    except (ValueError, AttributeError):
        raise _ConnectionError(f"{name} is not valid JSON. Write it as {example}.") from None
    if connection_type not in allowed_types:
        raise _ConnectionError(
            f"The connection has type {connection_type}. Use {' or '.join(allowed_types)} for {receiver.channel}."
        )
    return dict(connection)


def _parse_address(connection: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the URL to post to, and the password unless it is part of the URL.

    The password may be the complete URL, or its path after the host. Otherwise the URL consists of host, port and
    schema.
    """
    host, password = str(connection.get("host") or ""), connection.get("password")
    if password and str(password).startswith(("https://", "http://")):
        return str(password), None
    if not host:
        raise _ConnectionError("The connection has no host. Set it, or a complete URL as password.")
    scheme = connection.get("schema") or ("http" if connection["conn_type"] == "http" else "https")
    url = host if "://" in host else f"{scheme}://{host}"
    if port := connection.get("port"):
        head, _, path = url.removeprefix(f"{url.partition('://')[0]}://").partition("/")
        url = f"{url.partition('://')[0]}://{head}:{port}" + (f"/{path}" if path else "")
    return url, password


def _build_webhook_url(connection: Mapping[str, Any]) -> str:
    url, token = _parse_address(connection)
    return f"{url.rstrip('/')}/{token.lstrip('/')}" if token else url


def _create_slack_action(_: Receiver, connection: Mapping[str, Any], notification: Notification) -> ValidationAction:
    return SlackNotificationAction(
        name="quality",
        slack_webhook=_build_webhook_url(connection),
        notify_on="all",
        renderer=_SlackRenderer(notification),
    )


def _create_teams_action(_: Receiver, connection: Mapping[str, Any], notification: Notification) -> ValidationAction:
    return MicrosoftTeamsNotificationAction(
        name="quality",
        teams_webhook=_build_webhook_url(connection),
        notify_on="all",
        renderer=_TeamsRenderer(notification),
    )


def _create_webhook_action(_: Receiver, connection: Mapping[str, Any], notification: Notification) -> ValidationAction:
    url, token = _parse_address(connection)
    return WebhookAction(name="quality", url=url, token=token, content=notification.to_dict())


def _create_email_action(
    receiver: Receiver, connection: Mapping[str, Any], notification: Notification
) -> ValidationAction:
    extra, mail = connection["extra"], receiver.email
    login, password = connection.get("login") or None, connection.get("password") or None
    sender = extra.get("from_email") or login
    if not (mail and connection.get("host") and sender):
        raise _ConnectionError("The connection lacks a host or a sender. Set host, and login or extra.from_email.")
    ssl = not extra.get("disable_ssl")
    return EmailAction(
        name="quality",
        smtp_address=connection["host"],
        smtp_port=str(connection.get("port") or (465 if ssl else 587)),
        receiver_emails=",".join(mail.to),
        sender_login=login,
        sender_password=password,
        sender_alias=sender,
        use_ssl=ssl,
        use_tls=not ssl and not extra.get("disable_tls"),
        notify_on="all",
        renderer=_MailRenderer(notification),
    )


_CREATE_ACTION: Mapping[Channel, Callable[[Receiver, Mapping[str, Any], Notification], ValidationAction]] = {
    "slack": _create_slack_action,
    "teams": _create_teams_action,
    "webhook": _create_webhook_action,
    "email": _create_email_action,
}


class WebhookAction(ValidationAction):
    """Action that posts JSON. Great Expectations' own webhook action posts a form."""

    type: Literal["tidemark_webhook"] = "tidemark_webhook"
    url: str
    token: str | None = None
    """Bearer token."""
    content: dict[str, Any]

    @override
    def run(self, checkpoint_result: CheckpointResult, action_context: ActionContext | None = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        response = requests.post(
            self.url, json=self.content, headers=headers, timeout=TIMEOUT_SECONDS, allow_redirects=False
        )
        return {"webhook_result": 200 <= response.status_code < 300}  # noqa: PLR2004 - HTTP's codes of success


class _SlackRenderer(SlackRenderer):
    def __init__(self, notification: Notification) -> None:
        super().__init__()
        self.notification = notification

    @override
    def render(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        # Slack reads <...> as links and mentions.
        texts = (
            line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in self.notification.lines
        )
        return [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]

    @override
    def concatenate_text_blocks(
        self, action_name: str, text_blocks: list[dict[str, Any]], *_: Any, **__: Any
    ) -> dict[str, Any]:
        header = {"type": "header", "text": {"type": "plain_text", "text": self.notification.title[:150]}}
        return {"text": self.notification.title, "blocks": [header, *text_blocks]}


class _TeamsRenderer(MicrosoftTeamsRenderer):
    def __init__(self, notification: Notification) -> None:
        super().__init__()
        self.notification = notification

    @override
    def render(self, *_: Any, **__: Any) -> dict[str, Any]:
        # In rich text blocks Teams detects no links.
        weighted_lines = (
            (self.notification.title, "bolder"),
            *((line, "default") for line in self.notification.lines),
        )
        blocks = [
            {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": line, "weight": weight}]}
            for line, weight in weighted_lines
        ]
        return self._build_payload(blocks=blocks, data_docs_pages=None)


class _MailRenderer(EmailRenderer):
    def __init__(self, notification: Notification) -> None:
        super().__init__()
        self.notification = notification

    @override
    def render(self, checkpoint_result: CheckpointResult) -> tuple[str, str]:
        return self.notification.title, "".join(f"<p>{escape(line)}</p>" for line in self.notification.lines)


def _create_checkpoint_result(notification: Notification, result_id: Any) -> CheckpointResult:
    """Create the result that Great Expectations' actions require."""
    passed = notification.outcome != "failed"
    suite_result = ExpectationSuiteValidationResult(success=passed, results=[], suite_name=notification.pipeline)
    checkpoint = Checkpoint.construct(name=notification.pipeline, validation_definitions=[], actions=[])
    return CheckpointResult.construct(
        run_id=RunIdentifier(run_name=notification.run),
        run_results={result_id: suite_result},
        checkpoint_config=checkpoint,
        success=passed,
    )
