"""A verdict sent to those who are to know of it, by Great Expectations' own actions.

What is sent is a `Notice`; where it goes, and the secret, stand in the environment alone. Imports Great Expectations,
which takes seconds.
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

from tidemark.config.notify import Receiver, Way, variable
from tidemark.quality.notification import Notice

PATIENCE = 5.0
"""Seconds that a job waits for all receivers together."""
_LOG = logging.getLogger(__name__)
# They quote addresses, which are secrets, and what a receiver has answered.
logging.getLogger("great_expectations.checkpoint.actions").disabled = True

_HTTP = ("http", "https")
_KINDS: Mapping[Way, tuple[str, ...]] = {
    "slack": ("slackwebhook", *_HTTP),
    "teams": _HTTP,
    "webhook": _HTTP,
    "email": ("smtp", "email"),
}
"""Types of connections, by what goes over them."""


class _UnfitError(Exception):
    """A connection that does not serve; the text tells no more of it than its name."""


def send(notice: Notice, receivers: list[Receiver], context: Any, stored: Any) -> None:
    """Tell each receiver, side by side; who cannot be told within `PATIENCE` is named in a warning.

    `context` is Great Expectations' project, and `stored` identifies one of its results.
    """
    result, told = _as_result(notice, stored), {}

    def tell(number: int, receiver: Receiver) -> None:
        told[number] = _told(receiver, notice, result, context)

    threads = {n: Thread(target=tell, args=(n, one), daemon=True) for n, one in enumerate(receivers)}
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + PATIENCE
    for number, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if trouble := told.get(number, f"no answer within {PATIENCE:g} s"):
            way, name = receivers[number].way, receivers[number].connection
            _LOG.warning("warning: %s by connection %s was not told that %s: %s", way, name, notice.title, trouble)


def _told(receiver: Receiver, notice: Notice, result: CheckpointResult, context: Any) -> str:
    """What went wrong; empty where it was told."""
    try:
        action = _ACTIONS[receiver.way](receiver, _connection(receiver), notice)
        action._data_context = context  # noqa: SLF001 - as a checkpoint does with its actions
        answer = action.run(result, ActionContext())
    except _UnfitError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - texts of errors quote addresses
        return f"it could not be sent ({type(error).__name__})"
    return "" if all(answer.values()) else "it refused the message, or does not answer"


def _connection(receiver: Receiver) -> dict[str, Any]:
    """The connection as the environment has it, `extra` read."""
    name, kinds = variable(receiver.connection), _KINDS[receiver.way]
    example = f'{{"conn_type": "{kinds[0]}", "host": ...}}'
    try:
        found = json.loads(os.environ[name])
        extra = found.get("extra") or {}
        found["extra"] = json.loads(extra) if isinstance(extra, str) else extra
        kind = found["conn_type"]
    except KeyError:
        raise _UnfitError(f"there is no such connection; add it in Airflow, or set {name}='{example}'") from None
    except (ValueError, AttributeError):
        raise _UnfitError(f"{name} is not JSON such as {example}") from None
    if kind not in kinds:
        raise _UnfitError(f"the connection's type is {kind}, and {receiver.way} takes {' or '.join(kinds)}")
    return dict(found)


def _address(connection: Mapping[str, Any]) -> tuple[str, str | None]:
    """Where to post, and the password where that is no part of it.

    A webhook's address may be the password, as a whole or behind the host; else it is made of host, port and schema.
    """
    host, password = str(connection.get("host") or ""), connection.get("password")
    if password and str(password).startswith(("https://", "http://")):
        return str(password), None
    if not host:
        raise _UnfitError("the connection names no host")
    scheme = connection.get("schema") or ("http" if connection["conn_type"] == "http" else "https")
    url = host if "://" in host else f"{scheme}://{host}"
    if port := connection.get("port"):
        head, _, path = url.removeprefix(f"{url.partition('://')[0]}://").partition("/")
        url = f"{url.partition('://')[0]}://{head}:{port}" + (f"/{path}" if path else "")
    return url, password


def _webhook_of(connection: Mapping[str, Any]) -> str:
    url, token = _address(connection)
    return f"{url.rstrip('/')}/{token.lstrip('/')}" if token else url


def _slack(_: Receiver, connection: Mapping[str, Any], notice: Notice) -> ValidationAction:
    return SlackNotificationAction(
        name="quality", slack_webhook=_webhook_of(connection), notify_on="all", renderer=_SlackText(notice)
    )


def _teams(_: Receiver, connection: Mapping[str, Any], notice: Notice) -> ValidationAction:
    return MicrosoftTeamsNotificationAction(
        name="quality", teams_webhook=_webhook_of(connection), notify_on="all", renderer=_TeamsText(notice)
    )


def _webhook(_: Receiver, connection: Mapping[str, Any], notice: Notice) -> ValidationAction:
    url, token = _address(connection)
    return WebhookAction(name="quality", url=url, token=token, content=notice.describe())


def _email(receiver: Receiver, connection: Mapping[str, Any], notice: Notice) -> ValidationAction:
    extra, mail = connection["extra"], receiver.email
    login, password = connection.get("login") or None, connection.get("password") or None
    sender = extra.get("from_email") or login
    if not (mail and connection.get("host") and sender):
        raise _UnfitError("the connection needs a host, and a login or extra.from_email to send as")
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
        renderer=_MailText(notice),
    )


_ACTIONS: Mapping[Way, Callable[[Receiver, Mapping[str, Any], Notice], ValidationAction]] = {
    "slack": _slack,
    "teams": _teams,
    "webhook": _webhook,
    "email": _email,
}


class WebhookAction(ValidationAction):
    """Posts JSON: Great Expectations' own such action posts it as a form."""

    type: Literal["tidemark_webhook"] = "tidemark_webhook"
    url: str
    token: str | None = None
    """Sent as a bearer's."""
    content: dict[str, Any]

    @override
    def run(self, checkpoint_result: CheckpointResult, action_context: ActionContext | None = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        answer = requests.post(self.url, json=self.content, headers=headers, timeout=PATIENCE, allow_redirects=False)
        return {"webhook_result": 200 <= answer.status_code < 300}  # noqa: PLR2004 - HTTP's own for success


class _SlackText(SlackRenderer):
    def __init__(self, notice: Notice) -> None:
        super().__init__()
        self.notice = notice

    @override
    def render(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        # Slack takes <...> for links and mentions.
        texts = (line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in self.notice.lines)
        return [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]

    @override
    def concatenate_text_blocks(
        self, action_name: str, text_blocks: list[dict[str, Any]], *_: Any, **__: Any
    ) -> dict[str, Any]:
        header = {"type": "header", "text": {"type": "plain_text", "text": self.notice.title[:150]}}
        return {"text": self.notice.title, "blocks": [header, *text_blocks]}


class _TeamsText(MicrosoftTeamsRenderer):
    def __init__(self, notice: Notice) -> None:
        super().__init__()
        self.notice = notice

    @override
    def render(self, *_: Any, **__: Any) -> dict[str, Any]:
        # Of rich text nothing is taken for a link.
        weighed = ((self.notice.title, "bolder"), *((line, "default") for line in self.notice.lines))
        blocks = [
            {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": line, "weight": weight}]}
            for line, weight in weighed
        ]
        return self._build_payload(blocks=blocks, data_docs_pages=None)


class _MailText(EmailRenderer):
    def __init__(self, notice: Notice) -> None:
        super().__init__()
        self.notice = notice

    @override
    def render(self, checkpoint_result: CheckpointResult) -> tuple[str, str]:
        return self.notice.title, "".join(f"<p>{escape(line)}</p>" for line in self.notice.lines)


def _as_result(notice: Notice, stored: Any) -> CheckpointResult:
    """The verdict as the actions take it."""
    failed = notice.outcome == "failed"
    of_suite = ExpectationSuiteValidationResult(success=not failed, results=[], suite_name=notice.pipeline)
    checkpoint = Checkpoint.construct(name=notice.pipeline, validation_definitions=[], actions=[])
    return CheckpointResult.construct(
        run_id=RunIdentifier(run_name=notice.run),
        run_results={stored: of_suite},
        checkpoint_config=checkpoint,
        success=not failed,
    )
