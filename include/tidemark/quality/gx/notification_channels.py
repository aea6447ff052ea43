"""Send notifications to chats, alert services, webhooks and mail by Great Expectations' actions.

Addresses and secrets are read from connections in the environment. Imports Great Expectations, which takes seconds.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from threading import Thread
from typing import Any

from great_expectations.checkpoint.actions import (
    ActionContext,
    EmailAction,
    MicrosoftTeamsNotificationAction,
    OpsgenieAlertAction,
    SlackNotificationAction,
    ValidationAction,
)
from great_expectations.checkpoint.checkpoint import Checkpoint, CheckpointResult
from great_expectations.core import ExpectationSuiteValidationResult, RunIdentifier

from tidemark.config.notify import Channel, Receiver, get_connection_variable
from tidemark.quality.gx.notification_actions import (
    PAGERDUTY_URL,
    MailText,
    OpsgenieText,
    PagerdutyAction,
    SlackText,
    SnsAction,
    TeamsText,
    WebhookAction,
)
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
    "pagerduty": ("pagerduty_events", *_HTTP),
    "opsgenie": ("opsgenie", *_HTTP),
    "sns": ("aws",),
}
"""Allowed connection types by channel."""


class _ConnectionError(Exception):
    """Connection that cannot be used. The message contains none of its values but its name and type."""


def send(notification: Notification, receivers: list[Receiver], context: Any, result_id: Any) -> None:
    """Send a notification to all receivers in parallel, and log a warning for each that fails or times out.

    Args:
        notification: What to send.
        receivers: Whom to send it to.
        context: Data context of Great Expectations' project.
        result_id: Identifier of a stored result, which Great Expectations' actions require.
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
        _ConnectionError: It is missing, no JSON, or of another type.
    """
    name = get_connection_variable(receiver.connection)
    allowed_types = _CONNECTION_TYPES[receiver.channel]
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
        renderer=SlackText(notification),
    )


def _create_teams_action(_: Receiver, connection: Mapping[str, Any], notification: Notification) -> ValidationAction:
    return MicrosoftTeamsNotificationAction(
        name="quality",
        teams_webhook=_build_webhook_url(connection),
        notify_on="all",
        renderer=TeamsText(notification),
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
        renderer=MailText(notification),
    )


def _create_pagerduty_action(
    _: Receiver, connection: Mapping[str, Any], notification: Notification
) -> ValidationAction:
    url = _parse_address({**connection, "password": None})[0] if connection.get("host") else PAGERDUTY_URL
    return PagerdutyAction.create(url, _require_password(connection, "the integration key"), notification)


def _create_opsgenie_action(_: Receiver, connection: Mapping[str, Any], notification: Notification) -> ValidationAction:
    extra = connection["extra"]
    return OpsgenieAlertAction(
        name="quality",
        api_key=_require_password(connection, "the API key"),
        region=extra.get("region"),
        priority=extra.get("priority", "P3"),
        notify_on="all",
        renderer=OpsgenieText(notification),
    )


def _create_sns_action(
    receiver: Receiver, connection: Mapping[str, Any], notification: Notification
) -> ValidationAction:
    if find_spec("boto3") is None:
        raise _ConnectionError("The package boto3 is not installed. Install it where the driver runs.")
    assert receiver.sns, "the channel is sns"
    extra = connection["extra"]
    session = {
        "aws_access_key_id": connection.get("login") or None,
        "aws_secret_access_key": connection.get("password") or None,
        "region_name": extra.get("region_name") or receiver.sns.topic.split(":")[3],
    }
    return SnsAction(
        name="quality",
        sns_topic_arn=receiver.sns.topic,
        sns_message_subject=notification.title,
        session=session,
        endpoint_url=extra.get("endpoint_url"),
        lines=notification.lines,
    )


def _require_password(connection: Mapping[str, Any], what: str) -> str:
    if password := connection.get("password"):
        return str(password)
    raise _ConnectionError(f"The connection has no password. Set it to {what}.")


_CREATE_ACTION: Mapping[Channel, Callable[[Receiver, Mapping[str, Any], Notification], ValidationAction]] = {
    "slack": _create_slack_action,
    "teams": _create_teams_action,
    "webhook": _create_webhook_action,
    "email": _create_email_action,
    "pagerduty": _create_pagerduty_action,
    "opsgenie": _create_opsgenie_action,
    "sns": _create_sns_action,
}


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
