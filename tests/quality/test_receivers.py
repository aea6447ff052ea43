"""Verdicts sent to servers of the test's own."""

import email
import json
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.quality.fake_receivers import mails, webhooks
from tidemark.config.notify import Receiver
from tidemark.config.slices import Slices
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.evaluation_scope import JobRows
from tidemark.quality.gate import validate_output
from tidemark.quality.gx import notifiers
from tidemark.quality.invariants import INVARIANTS
from tidemark.quality.notification import Notification, send_notification
from tidemark.timegrid.slices import Grid

GRID = Grid.from_config(Slices(every=timedelta(hours=1), start=datetime(2024, 1, 1, tzinfo=UTC)))


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Three slices of which the last two hold pairs that are out of bounds, judged; without Spark."""
    facts = pd.DataFrame(0, index=range(3), columns=list(INVARIANTS))
    facts.loc[1:, "pairs_out_of_bounds"] = 4
    tables = PipelineTables(str(tmp_path_factory.mktemp("orders")))
    verdict = validate_output(
        facts, JobRows(range(3), {}), SimpleNamespace(quality=[], notify=[], expose_row_values=False), tables, "run7"
    )
    return tables, verdict, Notification.from_result("orders", GRID, range(3), "run7", verdict)


@pytest.fixture
def told(judged, monkeypatch, caplog):
    """Tell some receivers, given as a pipeline file has them, by connections; the warnings."""

    def send(*given, **connections):
        for name, connection in connections.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
        tables, verdict, notice = judged
        caplog.clear()
        send_notification(notice, [Receiver.model_validate(one) for one in given], tables, verdict)
        return [one.getMessage() for one in caplog.records if one.name.startswith("tidemark")]

    return send


def by(way, **more):
    return {way: {"connection": "tidemark_x", **more}}


SENTENCES = ("orders: quality failed", "in 2 slices from 2024-01-01T01:00Z", "pairs_out_of_bounds", "index.html")


def test_slack_is_told_of_what_was_found_where_and_at_which_address(told):
    with webhooks() as (url, had):
        assert told(by("slack"), tidemark_x={"conn_type": "slackwebhook", "password": f"{url}/T/B/secret"}) == []
        # As Airflow's own connections of Slack have it.
        assert told(by("slack"), tidemark_x={"conn_type": "slackwebhook", "host": url, "password": "T/B/secret"}) == []
    assert [path for path, _, _ in had] == ["/T/B/secret"] * 2
    text = json.dumps(had[0][2])
    assert all(sentence in text for sentence in SENTENCES)


def test_teams_is_told(told):
    with webhooks() as (url, had):
        assert told(by("teams"), tidemark_x={"conn_type": "http", "password": f"{url}/hook"}) == []
    assert all(sentence in json.dumps(had[0][2]) for sentence in SENTENCES)


def test_a_webhook_gets_the_verdict_as_data_with_the_secret_in_a_header_alone(told):
    with webhooks() as (url, had):
        host, port = url.removeprefix("http://").split(":")
        connection = {"conn_type": "http", "host": host, "port": int(port), "password": "s3cret"}
        assert told(by("webhook"), tidemark_x=connection) == []
    [(path, headers, content)] = had
    assert (path, headers["Authorization"]) == ("/", "Bearer s3cret")
    assert "s3cret" not in json.dumps(content)
    [failure] = content["failures"]
    assert (content["outcome"], content["run"], content["slice_count"]) == ("failed", "run7", 3)
    assert (failure["slices"], failure["slice_count"]) == (["2024-01-01T01:00Z", "2024-01-01T02:00Z"], 2)


def test_a_mail_goes_to_everyone_named(told):
    with mails() as (port, had):
        extra = {"from_email": "gate@example.org", "disable_ssl": True, "disable_tls": True}
        connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": json.dumps(extra)}
        assert told(by("email", to=["a@example.org", "b@example.org"]), tidemark_x=connection) == []
    [(sender, to, text)] = had
    mail = email.message_from_string(text)
    [part] = mail.get_payload()
    assert "gate@example.org" in sender
    assert [one.partition(":")[2] for one in to] == ["<a@example.org>", "<b@example.org>"]
    assert mail["Subject"] == "orders: quality failed"
    assert all(sentence in part.get_payload(decode=True).decode() for sentence in SENTENCES[1:])


def test_who_is_told_when():
    def wants(when):
        one = Receiver.model_validate({**by("slack"), "when": when})
        return [one.accepts(outcome) for outcome in ("passed", "warned", "failed")]

    assert [wants(when) for when in ("failed", "warned", "always")] == [
        [False, False, True],
        [False, True, True],
        [True, True, True],
    ]


@pytest.mark.parametrize("way", ["slack", "teams", "webhook"])
def test_a_receiver_that_refuses_is_a_warning_without_the_address(told, way):
    with webhooks(status=403) as (url, _):
        [line] = told(by(way), tidemark_x={"conn_type": "http", "password": f"{url}/s3cret"})
    assert line.startswith(f"warning: {way} was not notified by connection tidemark_x that orders: quality failed. ")
    assert "s3cret" not in line
    [line] = told(by(way), tidemark_x={"conn_type": "http", "password": f"{url}/s3cret"})
    assert "s3cret" not in line


def test_a_receiver_that_never_answers_is_waited_for_no_longer_than_that(told, monkeypatch):
    monkeypatch.setattr(notifiers, "TIMEOUT_SECONDS", 0.3)
    with webhooks(silent=True) as (url, had):
        began = time.monotonic()
        lines = told(by("slack"), by("teams"), tidemark_x={"conn_type": "http", "host": url})
        assert time.monotonic() - began < 5
    assert len(had) == 2
    assert [line.partition("quality failed. ")[2] for line in lines] == ["No response within 0.3 s."] * 2


@pytest.mark.parametrize(
    ("connection", "says"),
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
def test_a_connection_that_does_not_serve_is_told_with_the_remedy(told, monkeypatch, connection, says):
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_X", connection)
    [line] = told(by("webhook"))
    assert says in line
    assert "s3cret" not in line
