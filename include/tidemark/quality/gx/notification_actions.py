"""Define the actions and texts of notifications, on top of Great Expectations' own.

Imports Great Expectations, which takes seconds.
"""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import Any, Literal

import requests
from great_expectations.checkpoint.actions import (
    ActionContext,
    PagerdutyAlertAction,
    SNSNotificationAction,
    ValidationAction,
)
from great_expectations.checkpoint.checkpoint import CheckpointResult
from great_expectations.render.renderer.email_renderer import EmailRenderer
from great_expectations.render.renderer.microsoft_teams_renderer import MicrosoftTeamsRenderer
from great_expectations.render.renderer.opsgenie_renderer import OpsgenieRenderer
from great_expectations.render.renderer.slack_renderer import SlackRenderer
from typing_extensions import override

from tidemark.quality.notification import Notification

REQUEST_SECONDS = 5.0
"""Time that a request may take."""
PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
_PAGERDUTY_SEVERITIES: dict[str, Literal["critical", "warning", "info"]] = {"failed": "critical", "passed": "info"}


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
            self.url, json=self.content, headers=headers, timeout=REQUEST_SECONDS, allow_redirects=False
        )
        return {"webhook_result": _is_success(response)}


class PagerdutyAction(PagerdutyAlertAction):
    """Action that triggers or resolves an incident of PagerDuty by its Events API.

    Great Expectations' own needs the package `pypd`, which is not maintained.
    """

    type: Literal["tidemark_pagerduty"] = "tidemark_pagerduty"  # type: ignore[assignment]
    url: str = PAGERDUTY_URL
    content: dict[str, Any]

    @classmethod
    def create(cls, url: str, routing_key: str, notification: Notification) -> PagerdutyAction:
        """Create the action. A job without failures resolves the incident of an earlier one."""
        severity = _PAGERDUTY_SEVERITIES.get(notification.outcome, "warning")
        return cls(
            name="quality",
            url=url,
            api_key="",
            routing_key=routing_key,
            notify_on="all",
            severity=severity,
            content=notification.to_dict(),
        )

    @override
    def _run_pypd_alert(self, dedup_key: str, message: str, success: bool, max_severity: Any = None) -> dict[str, Any]:
        outcome, pipeline = self.content["outcome"], self.content["pipeline"]
        event: dict[str, Any] = {
            "routing_key": self.routing_key,
            "dedup_key": f"tidemark/{dedup_key}",
            "event_action": "resolve" if outcome == "passed" else "trigger",
            "payload": {
                "summary": f"{pipeline}: quality {outcome}",
                "severity": self.severity,
                "source": f"tidemark/{pipeline}",
                "custom_details": self.content,
            },
        }
        response = requests.post(self.url, json=event, timeout=REQUEST_SECONDS, allow_redirects=False)
        return {"pagerduty_alert_result": _is_success(response)}


class SnsAction(SNSNotificationAction):
    """Action that publishes a message to a topic of Amazon SNS. Great Expectations' own sends JSON that SNS refuses."""

    type: Literal["tidemark_sns"] = "tidemark_sns"  # type: ignore[assignment]
    session: dict[str, Any]
    """Arguments of a session of boto3."""
    endpoint_url: str | None = None
    lines: list[str]

    @override
    def _send_sns_notification(self, sns_subject: str, validation_results: str, **_: Any) -> str:
        boto3: Any = import_module("boto3")  # not a dependency, see `notification_channels`
        client = boto3.Session(**self.session).client("sns", endpoint_url=self.endpoint_url)
        # Subjects are limited to 100 characters of ASCII.
        subject = sns_subject.encode("ascii", "replace").decode()[:100]
        message = "\n".join(self.lines)
        return str(client.publish(TopicArn=self.sns_topic_arn, Subject=subject, Message=message)["MessageId"])


class OpsgenieText(OpsgenieRenderer):
    """Description of an alert of Opsgenie."""

    def __init__(self, notification: Notification) -> None:
        super().__init__()
        self.notification = notification

    @override
    def render(self, *_: Any, **__: Any) -> str:
        return "\n".join([self.notification.title, *self.notification.lines])


class SlackText(SlackRenderer):
    """Blocks of a message of Slack."""

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


class TeamsText(MicrosoftTeamsRenderer):
    """Card of a message of Microsoft Teams."""

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


class MailText(EmailRenderer):
    """Subject and HTML of a mail."""

    def __init__(self, notification: Notification) -> None:
        super().__init__()
        self.notification = notification

    @override
    def render(self, checkpoint_result: CheckpointResult) -> tuple[str, str]:
        return self.notification.title, "".join(f"<p>{escape(line)}</p>" for line in self.notification.lines)


def _is_success(response: requests.Response) -> bool:
    return 200 <= response.status_code < 300  # noqa: PLR2004 - HTTP's codes of success
