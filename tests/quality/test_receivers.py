"""Tests of notifications, sent to servers that the tests run."""

import email
import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.quality.fake_receivers import mails, webhooks
from tidemark.config.notify import Receiver
from tidemark.config.slices import Slices
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.evaluation_scope import ValidationRows
from tidemark.quality.gx import notification_channels
from tidemark.quality.gx.notification_actions import PagerdutyAction
from tidemark.quality.invariants import INVARIANTS
from tidemark.quality.notification import Notification, send_notification
from tidemark.quality.validation import validate_output
from tidemark.timegrid.slices import Grid

GRID = Grid.from_config(Slices(every=timedelta(hours=1), start=datetime(2024, 1, 1, tzinfo=UTC)))


@pytest.fixture(scope="module")
def failed_validation(tmp_path_factory):
    """Validate three slices, of which the last two have pairs out of bounds, without Spark."""
    invariants = pd.DataFrame(0, index=range(3), columns=list(INVARIANTS))
    invariants.loc[1:, "pairs_out_of_bounds"] = 4
    pipeline = SimpleNamespace(quality=[], notify=[], expose_row_values=False)
    tables = PipelineTables(str(tmp_path_factory.mktemp("orders")))
    result = validate_output(invariants, ValidationRows(range(3), {}), pipeline, tables, "run7")
    return tables, result, Notification.from_result("orders", GRID, range(3), "run7", result)


@pytest.fixture
def notify(failed_validation, monkeypatch, caplog):
    """Return a function that notifies receivers, given as in a pipeline file, and returns the warnings."""

    def send(*receivers, **connections):
        for name, connection in connections.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
        tables, result, notification = failed_validation
        caplog.clear()
        send_notification(notification, [Receiver.model_validate(item) for item in receivers], tables, result)
        return [record.getMessage() for record in caplog.records if record.name.startswith("tidemark")]

    return send


def create_receiver(channel, **settings):
    return {channel: {"connection": "tidemark_x", **settings}}


SENTENCES = ("orders: quality failed", "in 2 slices from 2024-01-01T01:00Z", "pairs_out_of_bounds", "index.html")


def test_send_notification_to_slack_names_failure_slices_and_page(notify):
    slack = create_receiver("slack")

    with webhooks() as (url, requests):
        assert notify(slack, tidemark_x={"conn_type": "slackwebhook", "password": f"{url}/T/B/secret"}) == []
        # The form of Airflow's own Slack connections.
        assert notify(slack, tidemark_x={"conn_type": "slackwebhook", "host": url, "password": "T/B/secret"}) == []

    assert [path for path, _, _ in requests] == ["/T/B/secret"] * 2
    text = json.dumps(requests[0][2])
    assert all(sentence in text for sentence in SENTENCES)


def test_send_notification_to_teams_names_failure_slices_and_page(notify):
    with webhooks() as (url, requests):
        assert notify(create_receiver("teams"), tidemark_x={"conn_type": "http", "password": f"{url}/hook"}) == []

    assert all(sentence in json.dumps(requests[0][2]) for sentence in SENTENCES)


def test_send_notification_to_webhook_has_secret_only_in_header(notify):
    with webhooks() as (url, requests):
        host, port = url.removeprefix("http://").split(":")
        connection = {"conn_type": "http", "host": host, "port": int(port), "password": "s3cret"}
        assert notify(create_receiver("webhook"), tidemark_x=connection) == []

    [(path, headers, content)] = requests
    assert (path, headers["Authorization"]) == ("/", "Bearer s3cret")
    assert "s3cret" not in json.dumps(content)
    [failure] = content["failures"]
    assert (content["outcome"], content["run"], content["slice_count"]) == ("failed", "run7", 3)
    assert (failure["slices"], failure["slice_count"]) == (["2024-01-01T01:00Z", "2024-01-01T02:00Z"], 2)


def test_send_notification_by_mail_reaches_all_recipients(notify):
    receiver = create_receiver("email", to=["a@example.org", "b@example.org"])

    with mails() as (port, received):
        extra = {"from_email": "gate@example.org", "disable_ssl": True, "disable_tls": True}
        connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": json.dumps(extra)}
        assert notify(receiver, tidemark_x=connection) == []

    [(sender, recipients, text)] = received
    mail = email.message_from_string(text)
    [part] = mail.get_payload()
    assert "gate@example.org" in sender
    assert [recipient.partition(":")[2] for recipient in recipients] == ["<a@example.org>", "<b@example.org>"]
    assert mail["Subject"] == "orders: quality failed"
    assert all(sentence in part.get_payload(decode=True).decode() for sentence in SENTENCES[1:])


def test_send_notification_to_pagerduty_triggers_an_incident(notify):
    with webhooks(status=202) as (url, requests):
        connection = {"conn_type": "http", "host": f"{url}/v2/enqueue", "password": "r0uting"}
        assert notify(create_receiver("pagerduty"), tidemark_x=connection) == []

    [(path, _, event)] = requests
    assert path == "/v2/enqueue"
    assert (event["routing_key"], event["event_action"], event["dedup_key"]) == (
        "r0uting",
        "trigger",
        "tidemark/orders",
    )
    assert (event["payload"]["summary"], event["payload"]["severity"]) == ("orders: quality failed", "critical")
    assert all(sentence in json.dumps(event["payload"]["custom_details"]) for sentence in SENTENCES[2:])


def test_send_notification_to_pagerduty_resolves_the_incident_once_all_passed(failed_validation):
    _, _, notification = failed_validation
    with webhooks(status=202) as (url, requests):
        action = PagerdutyAction.create(url, "key", replace(notification, outcome="passed", failures=()))
        assert action._run_pypd_alert("orders", "unused", success=True) == {"pagerduty_alert_result": True}

    [(_, _, event)] = requests
    assert (event["event_action"], event["payload"]["severity"]) == ("resolve", "info")


@pytest.mark.parametrize("region", [None, "eu"])
def test_send_notification_to_opsgenie_has_the_failures_as_description(notify, monkeypatch, region):
    requests = []

    def post(_, url, **request):
        requests.append((url, request))
        return SimpleNamespace(raise_for_status=lambda: None)

    monkeypatch.setattr("requests.Session.post", post)
    connection = {"conn_type": "opsgenie", "password": "s3cret", "extra": {"region": region, "priority": "P1"}}
    assert notify(create_receiver("opsgenie"), tidemark_x=connection) == []

    [(url, request)] = requests
    assert url == ("https://api.eu.opsgenie.com/v2/alerts" if region else "https://api.opsgenie.com/v2/alerts")
    assert request["headers"] == {"Authorization": "GenieKey s3cret"}
    assert request["json"]["priority"] == "P1"
    assert all(sentence in request["json"]["description"] for sentence in SENTENCES)


TOPIC = "arn:aws:sns:eu-central-1:123456789012:quality"


def test_send_notification_to_sns_publishes_lines_to_the_topic(notify, monkeypatch):
    messages, sessions = [], []

    class Session:
        def __init__(self, **arguments):
            sessions.append(arguments)

        def client(self, name, endpoint_url):
            assert (name, endpoint_url) == ("sns", "http://localhost:1")
            return SimpleNamespace(publish=lambda **message: messages.append(message) or {"MessageId": "1"})

    monkeypatch.setitem(sys.modules, "boto3", SimpleNamespace(Session=Session))
    monkeypatch.setattr(notification_channels, "find_spec", lambda name: name)
    extra = {"endpoint_url": "http://localhost:1"}
    connection = {"conn_type": "aws", "login": "key", "password": "s3cret", "extra": extra}
    assert notify(create_receiver("sns", topic=TOPIC), tidemark_x=connection) == []

    assert sessions == [{"aws_access_key_id": "key", "aws_secret_access_key": "s3cret", "region_name": "eu-central-1"}]
    [message] = messages
    assert (message["TopicArn"], message["Subject"]) == (TOPIC, "orders: quality failed")
    assert all(sentence in message["Message"] for sentence in SENTENCES[1:])


@pytest.mark.parametrize(
    ("channel", "settings", "conn_type", "message"),
    [
        ("pagerduty", {}, "http", "The connection has no password. Set it to the integration key."),
        ("opsgenie", {}, "opsgenie", "The connection has no password. Set it to the API key."),
        ("sns", {"topic": TOPIC}, "aws", "The package boto3 is not installed. Install it where the driver runs."),
    ],
)
def test_send_notification_to_alert_service_without_requirement_warns(notify, channel, settings, conn_type, message):
    if channel == "sns" and find_spec("boto3"):
        pytest.skip("boto3 is installed")
    [line] = notify(create_receiver(channel, **settings), tidemark_x={"conn_type": conn_type})
    assert line.endswith(message)


@pytest.mark.parametrize(
    ("when", "accepted"),
    [
        ("failed", [False, False, True]),
        ("warned", [False, True, True]),
        ("always", [True, True, True]),
    ],
)
def test_receiver_accepts_outcomes_by_when(when, accepted):
    receiver = Receiver.model_validate({**create_receiver("slack"), "when": when})

    assert [receiver.accepts(outcome) for outcome in ("passed", "warned", "failed")] == accepted


@pytest.mark.parametrize("channel", ["slack", "teams", "webhook"])
def test_send_notification_refused_request_warns_without_secret(notify, channel):
    with webhooks(status=403) as (url, _):
        [line] = notify(create_receiver(channel), tidemark_x={"conn_type": "http", "password": f"{url}/s3cret"})

    assert line.startswith(
        f"warning: {channel} was not notified by connection tidemark_x that orders: quality failed. "
    )
    assert "s3cret" not in line

    [line] = notify(create_receiver(channel), tidemark_x={"conn_type": "http", "password": f"{url}/s3cret"})
    assert "s3cret" not in line


def test_send_notification_silent_receiver_times_out(notify, monkeypatch):
    monkeypatch.setattr(notification_channels, "TIMEOUT_SECONDS", 0.3)
    receivers = create_receiver("slack"), create_receiver("teams")

    with webhooks(silent=True) as (url, requests):
        started = time.monotonic()
        lines = notify(*receivers, tidemark_x={"conn_type": "http", "host": url})
        assert time.monotonic() - started < 5

    assert len(requests) == 2
    assert [line.partition("quality failed. ")[2] for line in lines] == ["No response within 0.3 s."] * 2


@pytest.mark.parametrize(
    ("connection", "expected_message"),
    [
        (None, "The connection does not exist. Add it in Airflow, or set AIRFLOW_CONN_TIDEMARK_X="),
        ("https://hooks.example.org/s3cret", "AIRFLOW_CONN_TIDEMARK_X is not valid JSON. Write it as"),
        (
            '{"conn_type": "postgres", "host": "s3cret"}',
            "The connection has type postgres. Use http or https for webhook.",
        ),
        ('{"conn_type": "http"}', "The connection has no host."),
    ],
)
def test_send_notification_invalid_connection_warns_with_remedy(notify, monkeypatch, connection, expected_message):
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_X", connection)

    [line] = notify(create_receiver("webhook"))

    assert expected_message in line
    assert "s3cret" not in line
