"""The pages of slices in Airflow's UI: routes, permissions, escaping, and how slices are arranged and summarized."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Thread
from urllib.parse import quote

import pyarrow as pa
import pytest
import uvicorn
from airflow.api_fastapi import app as airflow_app
from airflow.models.dag import DagModel
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from fastapi.testclient import TestClient
from jwt import InvalidTokenError

from tests.dags.slice_lake import AGREEMENT, NOT_NULL, SliceLake
from tests.processes import find_free_ports, wait_for
from tidemark.airflow.web import slice_states
from tidemark.airflow.web.app import create_app, get_script
from tidemark.airflow.web.overview import count_ended, count_states, list_attention, list_due
from tidemark.airflow.web.repair_commands import list_commands
from tidemark.airflow.web.slice_grid import Layout, build_page
from tidemark.airflow.web.slice_states import SliceStates, SliceSummary, summarize_slices
from tidemark.airflow_provider.plugin import LazyApp, TidemarkPlugin
from tidemark.config import load_pipeline
from tidemark.delta.table import DeltaTableHandle
from tidemark.ledger.ledger_table import SCHEMA
from tidemark.quality.gx.expectations import get_expectation_name

SCRIPT = "<script>alert(1)</script>"
READABLE = [
    "/", "/pipelines/orders", "/pipelines/orders?show=late&page=2025-01", "/pipelines/orders?show=match",
    "/pipelines/orders/slices/2025-01-01T05:00Z", "/dags/orders__slice",
]  # fmt: skip
LAST = "2025-01-02T06:00Z"
"""Start of the last slice, which was rejected."""
STATIC = ["/slices.css", "/grid.js", "/links.js"]
MISSING = [
    "/pipelines/nothing",
    "/pipelines/nothing/slices/2025-01-01T05:00Z",
    "/no/such/path",
    "/docs",
    "/openapi.json",
]
ESCAPES = [
    "..",
    "../orders",
    "../../etc/passwd",
    "orders/../orders",
    "/etc/passwd",
    "orders\0",
    "%2e%2e",
    "orders.yaml",
]


@dataclass(frozen=True)
class User:
    """User who may read the DAGs whose ids begin with a name."""

    name: str


class PerDagAuthManager:
    """Auth manager whose tokens are names: each user may read the DAGs of the pipeline of that name, `admin` all."""

    async def get_user_from_token(self, token):
        if token == "invalid":
            raise InvalidTokenError
        return User(token)

    def is_authorized_dag(self, *, method, user, details, **_):
        return method == "GET" and (user.name == "admin" or details.id.startswith(f"{user.name}__"))


@pytest.fixture
def slices(tmp_path):
    """Return a lake with two days of slices in all states."""
    lake = SliceLake.create(tmp_path / "include" / "pipelines", tmp_path / "lake")
    lake.add(range(30), late=2)
    lake.add(range(5, 6), late=40, quality="quarantined", quarantined=1)
    lake.add(range(6, 7), quality="waived", applied_waivers=json.dumps([_create_waiver(SCRIPT)]))
    lake.add(range(7, 8), quality="warned")
    lake.add(range(8, 9), is_stale=True)
    lake.write()
    lake.write_details(5, SCRIPT)
    lake.write_agreement(range(10), only_batch=2, unexplained=1, causes=[(SCRIPT, 1)])
    lake.reject(30)
    return lake


def _create_waiver(reason):
    return {"expectation": NOT_NULL, "reason": reason, "user": "ann", "at": "2025-01-01T00:00Z"}


@pytest.fixture
def client(slices, monkeypatch):
    """Return a function that returns a client with a user's token; without a user, one without a token."""
    monkeypatch.setenv("TIDEMARK_LAKE", str(slices.lake))
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(slices.file.parent))
    monkeypatch.setattr(airflow_app._AuthManagerState, "instance", PerDagAuthManager())
    monkeypatch.setattr(DagModel, "get_team_name", staticmethod(lambda _: None))
    site = FastAPI(root_path="/below")
    site.mount("/tidemark", create_app())

    def create(user=None):
        headers = {"Authorization": f"Bearer {user}"} if user else {}
        return TestClient(site, base_url="http://testserver/below/tidemark", headers=headers, follow_redirects=False)

    return create


@pytest.mark.parametrize("path", [*READABLE, *STATIC, *MISSING])
def test_route_without_login_is_refused(client, path):
    assert client().get(path).status_code == 401
    assert client("invalid").get(path).status_code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_route_that_would_change_something_does_not_exist(client, method):
    assert client().request(method, "/pipelines/orders").status_code == 401
    assert client("admin").request(method, "/pipelines/orders").status_code in {404, 405}


@pytest.mark.parametrize("path", [*READABLE, *STATIC])
def test_route_with_permission_is_shown_with_strict_policy(client, path):
    response = client("orders").get(path)

    assert response.status_code == (307 if path.startswith("/dags") else 200)
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", [path for path in READABLE if path != "/"])
def test_pipeline_without_permission_is_refused(client, path):
    response = client("payments").get(path)

    assert response.status_code == 403
    assert "2025" not in response.text


def test_pipeline_list_has_only_readable_pipelines(client):
    assert "/pipelines/orders" in client("orders").get("/").text
    response = client("payments").get("/")
    assert response.status_code == 200
    assert "orders" not in response.text


def test_missing_pipeline_is_not_distinguishable_without_permission(client):
    answers = [client("payments").get(f"/pipelines/{name}") for name in ("orders", "nothing")]

    assert [answer.status_code for answer in answers] == [403, 403]
    assert answers[0].text == answers[1].text
    assert client("admin").get("/pipelines/nothing").status_code == 404


@pytest.mark.parametrize("name", ESCAPES)
def test_pipeline_name_cannot_leave_the_pipelines_folder(client, slices, name):
    secret = slices.file.parents[1] / "orders.yaml"
    secret.write_text(slices.file.read_text().replace("name: orders", "name: secret"))

    encoded = "".join(f"%{byte:02X}" for byte in name.encode())
    for path in (f"/pipelines/{encoded}", f"/pipelines/{encoded}/slices/2025-01-01T05:00Z", f"/dags/{encoded}__slice"):
        response = client("admin").get(path)
        assert response.status_code in {200, 307, 404}, "200 or 307 for the list of pipelines"
        assert "2025-01-01T05:00Z" not in response.text
        assert "/pipelines/orders" not in response.headers.get("Location", "")
        assert "secret" not in response.text


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("slices/2025-01-01T05:30Z", 404),
        ("slices/2024-12-31T23:00Z", 404),
        ("slices/2025-01-03T00:00Z", 404),
        ("slices/now", 404),
        ("slices/9999-12-31T23:30Z", 404),
        ("slices/2025-01-01T05:00Z/more", 404),
        ("?page=2024-12", 404),
        ("?page=2025-99", 404),
        ("?page=9999-12", 404),
        (f"?page={SCRIPT}", 400),
        ("?show=rows", 400),
    ],
)
def test_address_without_slices_is_an_error_page(client, path, code):
    response = client("admin").get(f"/pipelines/orders{'' if path.startswith('?') else '/'}{path}")

    assert response.status_code == code
    assert "<h1>" in response.text
    assert SCRIPT not in response.text


def test_values_of_tables_are_escaped(client):
    details = client("admin").get("/pipelines/orders/slices/2025-01-01T05:00Z").text
    assert details.count("&lt;script&gt;") == 3, "a key, the reason of a waiver, a cause"
    waived = client("admin").get("/pipelines/orders/slices/2025-01-01T06:00Z").text
    assert "&lt;script&gt;" in waived
    unknown = client("admin").get(f"/dags/{quote('<script>')}").text
    assert "&lt;script&gt;" in unknown
    assert not any("<script>" in page for page in (details, waived, unknown))


def test_grid_page_has_a_linked_cell_for_each_slice(client):
    page = client("orders").get("/pipelines/orders").text

    cells = dict(re.findall(r'class="(state-\w+)" href="/below/tidemark/pipelines/orders/slices/([^"]+)"', page)[::-1])
    assert page.count("/slices/2025-01-0") >= 48
    assert cells["state-quarantined"] == "2025-01-01T05:00Z"
    assert cells["state-waived"] == "2025-01-01T06:00Z"
    assert cells["state-warned"] == "2025-01-01T07:00Z"
    assert cells["state-stale"] == "2025-01-01T08:00Z"
    assert cells["state-rejected"] == "2025-01-02T06:00Z"
    assert cells["state-due"] == "2025-01-02T07:00Z"
    assert "2025-01-01T05:00Z: quarantined, 2.00% late, rows differ without a cause" in page
    assert "http" not in re.sub(r'href="[^"]*"', "", page), "no external resource"
    assert "style=" not in page


def test_slice_page_has_counts_reasons_results_and_commands(client, monkeypatch, slices):
    docs = slices.lake / "orders" / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html"
    monkeypatch.setenv("AIRFLOW__TIDEMARK__LAKE_URL", "https://files")
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SPARK_HISTORY_URL", "http://history:18080")
    (slices.lake / "orders" / "report.html").touch()

    page = client("orders").get("/pipelines/orders/slices/2025-01-01T05:00Z").text

    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "read 1,000 1,000" in text
    assert "left late 2 1 1 min 01 s" in text
    assert "left null_event_time 1 0" in text
    assert "quarantined 0.25 at most 0.01" in text
    assert "tidemark quarantine release orders --slice 2025-01-01T05:00Z" in text
    assert "tidemark compare run orders --from 2025-01-01T05:00Z --to 2025-01-01T06:00Z" in text
    assert 'href="https://files/orders/report.html"' in page
    assert 'href="http://history:18080"' in page
    assert not docs.exists()
    assert "Data Docs" not in page


def test_link_to_a_report_is_a_valid_address(client, monkeypatch, slices):
    monkeypatch.setenv("AIRFLOW__TIDEMARK__LAKE_URL", "https://files")
    other = SliceLake.create(slices.file.parent, slices.lake, "payments")
    other.file.write_text(f"{other.file.read_text()}output: 'paid #1'\n")
    other.add(range(1))
    other.write()
    (slices.lake / "paid #1" / "report.html").touch()

    page = client("payments").get("/pipelines/payments/slices/2025-01-01T00:00Z").text

    assert 'href="https://files/paid%20%231/report.html"' in page


@pytest.mark.parametrize(
    ("start", "command"),
    [
        ("2025-01-01T08:00Z", "tidemark run orders --to 2025-01-01T09:00Z"),
        ("2025-01-02T06:00Z", "tidemark quality waive orders --slice 2025-01-02T06:00Z --expectation"),
        ("2025-01-02T07:00Z", "tidemark plan orders --to 2025-01-02T08:00Z"),
        ("2025-01-01T00:00Z", "tidemark reprocess orders --from 2025-01-01T00:00Z --to 2025-01-01T01:00Z"),
    ],
)
def test_slice_page_has_the_command_that_repairs_it(client, start, command):
    assert command in client("orders").get(f"/pipelines/orders/slices/{start}").text


def add_pipeline(slices, *consequences):
    """Add a pipeline with a stale slice at 00:00, and with an expectation for each value of `on_failure`."""
    other = SliceLake.create(slices.file.parent, slices.lake, "payments")
    columns = ("right_user", "left_user")
    types = [f"expect_column_values_to_not_be_null, column: {column}" for column in columns]
    rules = [f"{{type: {name}, on_failure: {value}}}" for name, value in zip(types, consequences, strict=False)]
    text = other.file.read_text()
    other.file.write_text(re.sub("quality: .*", f"quality: [{', '.join(rules)}]", text))
    other.add(range(31), quarantined=0)
    other.add(range(1, 2), is_stale=True)
    return other


def list_linked_dags(page):
    """List the DAGs that a page links to, in the frame's parent."""
    return re.findall(r'<a href="/below/dags/(\w+)" target="_parent">', page)


@pytest.mark.parametrize(
    ("consequences", "state", "dags"),
    [
        (["stop"], "stale", ["payments__repair", "payments__reprocess"]),
        (["stop"], "rejected", ["payments__reprocess", "payments__waive"]),
        (["quarantine"], "rejected", ["payments__reprocess", "payments__waive"]),
        (["quarantine"], "quarantined", ["payments__release", "payments__reprocess"]),
        (["stop"], "quarantined", ["payments__reprocess"]),
        (
            ["stop", "quarantine"],
            "rejected and quarantined",
            [f"payments__{kind}" for kind in ("reprocess", "waive", "release")],
        ),
        (["warn"], "rejected", ["payments__reprocess"]),
    ],
)
def test_slice_page_links_to_the_dags_that_the_pipeline_has(client, slices, consequences, state, dags):
    other = add_pipeline(slices, *consequences)
    if "quarantined" in state:
        other.add(range(1, 2), quality="quarantined", quarantined=1)
    other.write()
    if "rejected" in state:
        other.reject(1)

    pages = [client("payments").get(f"/pipelines/payments{path}").text for path in ("/slices/2025-01-01T01:00Z", "")]

    assert [list_linked_dags(page) for page in pages] == [dags, dags]
    assert all('<script src="/below/tidemark/links.js"' in page for page in pages)
    assert ("The rejected rows cannot be released" in pages[0]) == ("rejected" in state)


AIRFLOW_FRAME = '<iframe src="/page" sandbox="allow-scripts allow-same-origin allow-forms allow-downloads"></iframe>'
"""The frame of Airflow 3.3, which may not navigate the page around it."""


def test_link_to_a_dag_leaves_the_frame_of_airflow(browser):
    link = '<a href="/dag" target="_parent">to the DAG</a><script src="/links.js"></script>'
    site = FastAPI()
    for path, text in {"/": AIRFLOW_FRAME, "/page": link, "/dag": "a DAG"}.items():
        site.get(path, response_class=HTMLResponse)(lambda text=text: text)
    site.get("/links.js")(lambda: get_script("links"))

    with serve(site) as address:
        browser.open(address)
        browser.driver.switch_to.frame(0)
        browser.driver.find_element("tag name", "a").click()
        browser.driver.switch_to.default_content()

        wait_for(lambda: browser.driver.current_url == f"{address}/dag", 10, "the page was not opened")


@contextmanager
def serve(site):
    """Serve an application on loopback; yield its address."""
    [port] = find_free_ports(1)
    server = uvicorn.Server(uvicorn.Config(site, port=int(port), log_level="warning"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, 30, "the server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def test_rejected_slice_that_is_committed_has_to_be_reprocessed(client, slices):
    other = SliceLake.create(slices.file.parent, slices.lake, "payments")
    other.add(range(31))
    other.write()
    other.reject(30)

    page, listed = (client("payments").get(f"/pipelines/payments{path}").text for path in (f"/slices/{LAST}", ""))

    for text in (page, listed):
        assert "tidemark reprocess payments --from 2025-01-02T06:00Z --to 2025-01-02T07:00Z" in text
        assert "tidemark run payments --to 2025-01-02T07:00Z" not in text


@pytest.mark.parametrize("per", ["day", "job"])
def test_rejection_by_expectation_on_more_than_a_slice_has_no_waiver(slices, per):
    slices.file.write_text(slices.file.read_text().replace("right_user}", f"right_user, per: {per}}}"))
    pipeline = load_pipeline(slices.file)
    failed = get_expectation_name(pipeline.quality[0])

    commands = list(list_commands(pipeline, SliceSummary("rejected"), LAST, "2025-01-02T07:00Z", [failed]))

    assert failed == f"{NOT_NULL} per {per}"
    assert [command.command.split()[1] for command in commands] == ["quality", "run"]
    assert not any("waive" in command.command for command in commands)


def test_slices_before_the_first_committed_one_are_skipped(client, slices):
    later = SliceLake.create(slices.file.parent, slices.lake, "payments")
    later.add(range(24, 30))
    later.write()
    summaries = summarize_slices(later.pipeline, str(later.lake))

    page = client("payments").get("/pipelines/payments/slices/2025-01-01T05:00Z").text

    assert count_states(summaries, 34) == {"committed": 6, "due": 4, "skipped": 24}
    assert list(list_due(summaries, 34)) == [range(30, 34)]
    assert "Skipped" in page
    assert "<pre>" not in page, "no command runs it"


def test_dag_page_redirects_to_its_pipeline(client):
    response = client("orders").get("/dags/orders__compare")
    assert response.headers["Location"] == "/below/tidemark/pipelines/orders"
    assert "not a DAG of a Tidemark pipeline" in client("admin").get("/dags/other").text


def test_pipeline_without_tables_has_due_slices(client, slices):
    SliceLake.create(slices.file.parent, slices.lake, "payments")

    page = client("payments").get("/pipelines/payments")

    assert page.status_code == 200
    assert "48 slices due" in page.text
    assert client("payments").get("/pipelines/payments/slices/2025-01-01T00:00Z").status_code == 200


def test_pipeline_that_begins_later_has_no_grid(client, slices):
    future = SliceLake.create(slices.file.parent, slices.lake, "payments", end="2999-01-02T00:00:00Z")
    future.file.write_text(future.file.read_text().replace("2025-01-01", "2999-01-01"))

    assert "No slice has ended yet" in client("payments").get("/pipelines/payments").text


def test_tables_of_another_pipeline_are_not_shown(client, slices):
    other = SliceLake.create(slices.file.parent, slices.lake, "payments")
    other.file.write_text(other.file.read_text() + "output: orders\n")

    page = client("payments").get("/pipelines/payments")

    assert page.status_code == 500
    assert "belongs to pipeline orders" in page.text
    assert "belongs to pipeline orders" in client("payments").get("/").text


def test_damaged_table_is_a_problem_of_its_pipeline_only(client, slices):
    other = SliceLake.create(slices.file.parent, slices.lake, "payments")
    other.add(range(1))
    other.write()
    for file in (slices.lake / "payments").rglob("*.parquet"):
        file.write_bytes(b"?" * file.stat().st_size)

    page = client("payments").get("/pipelines/payments")

    assert (page.status_code, "The API server cannot read the tables." in page.text) == (500, True)
    listed = client("admin").get("/")
    assert listed.status_code == 200
    assert "/pipelines/orders" in listed.text
    assert "The API server cannot read its tables." in listed.text


def test_invalid_file_does_not_hide_other_pipelines(client, slices):
    (slices.file.parent / "broken.yaml").write_text("name: [")

    assert client("orders").get("/pipelines/orders").status_code == 200
    assert "/pipelines/orders" in client("orders").get("/").text


def test_summary_is_read_again_after_a_commit_only(slices):
    states, lake = SliceStates(), str(slices.lake)
    first = states.read(slices.pipeline, lake)
    assert states.read(slices.pipeline, lake) is first

    agreement = {"slice": slices.grid.datetime_of(20), "compared_with": "streamed", "run": "run 20", "same": 1}
    counts = dict.fromkeys(("only_batch", "only_stream", "unexplained", "pending"), 0)
    row = agreement | counts | {"causes": []}
    DeltaTableHandle.open(slices.tables.agreement).append(pa.Table.from_pylist([row], AGREEMENT), 2)

    assert states.read(slices.pipeline, lake).summaries[20].match == "equal"


def test_summaries_of_many_pipelines_are_read_once(slices, monkeypatch):
    calls = []
    monkeypatch.setattr(slice_states, "summarize_slices", lambda pipeline, _: calls.append(pipeline.name))
    pipelines = [slices.pipeline.model_copy(update={"name": f"p{number}"}) for number in range(100)]
    states = SliceStates()

    for _ in range(2):
        for pipeline in pipelines:
            states.read(pipeline, str(slices.lake))

    assert len(calls) == 100
    states.read(pipelines[0].model_copy(update={"expose_row_values": False}), str(slices.lake))
    assert len(calls) == 101, "the file has changed"


def test_reading_changes_no_table(slices):
    before = {path: path.stat().st_mtime_ns for path in slices.lake.rglob("*")}
    summarize_slices(slices.pipeline, str(slices.lake))
    assert {path: path.stat().st_mtime_ns for path in slices.lake.rglob("*")} == before


def test_match_of_slice_that_ran_again_is_recomputed(slices):
    row = {**slices.rows[3], "run": "another run", "attempt": 2, "commit": 99}
    DeltaTableHandle.open(slices.tables.ledger).append(pa.Table.from_pylist([row], SCHEMA), 99)

    summaries = summarize_slices(slices.pipeline, str(slices.lake)).summaries

    assert {number: summaries[number].match for number in (0, 1, 3, 12)} == {
        0: "unexplained", 1: "equal", 3: "recomputed", 12: None,
    }  # fmt: skip


def test_due_slices_are_those_after_the_last(slices):
    summaries = summarize_slices(slices.pipeline, str(slices.lake))
    ended = count_ended(slices.pipeline, datetime(2025, 1, 2, 10, 30, tzinfo=UTC))
    assert ended == 34
    assert list(list_due(summaries, ended)) == [range(31, 34)]
    assert [(item.state, item.slices) for item in list_attention(summaries, ended)] == [
        ("rejected", 1), ("stale", 1), ("quarantined", 1), ("due", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("every", "end", "page", "rows", "columns"),
    [
        ("30 seconds", "2025-01-01T00:05:00Z", "2025-01-01T00", 5, 2),
        ("1 minute", "2025-01-01T02:00:00Z", "2025-01-01", 2, 60),
        ("30 minutes", "2025-02-01T00:00:00Z", "2025-01", 31, 48),
        ("7 hours", "2025-01-03T01:00:00Z", "2025-01", 2, 4),
        ("1 day", "2026-03-01T00:00:00Z", "2025", 12, 31),
        ("7 days", "2025-02-19T00:00:00Z", "2025", 2, 5),
    ],
)
def test_grid_of_any_slice_length_has_each_slice_once(tmp_path, every, end, page, rows, columns):
    lake = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake", every=every, end=end)
    summaries = summarize_slices(lake.pipeline, str(lake.lake))
    ended = count_ended(lake.pipeline, datetime(2100, 1, 1, tzinfo=UTC))

    first = build_page(summaries, ended)

    assert (first.key, len(first.rows), first.columns) == (page, rows, columns)
    pages = [first, *(build_page(summaries, ended, link.key) for link in first.siblings if not link.is_current)]
    numbers = sorted(cell.number for page in pages for row in page.rows for cell in row.cells)
    assert numbers == list(range(ended)), "no page has other siblings in these cases"
    places = [(id(row), cell.column) for page in pages for row in page.rows for cell in row.cells]
    assert len(places) == len(set(places))


def test_grid_begins_with_the_page_of_the_last_slice(slices):
    summaries = summarize_slices(slices.pipeline, str(slices.lake))
    page = build_page(summaries, 24 * 365 * 3)

    assert page.key == "2025-01"
    assert (page.earlier, page.later) == (None, "2026-01")
    later = build_page(summaries, 24 * 365 * 3, "2026-01")
    assert (later.earlier, later.later) == ("2025-12", "2027-01")


@pytest.mark.parametrize(
    ("every", "key"),
    [("1 day", "9999"), ("1 hour", "9999-12"), ("1 minute", "9999-12-31"), ("1 second", "9999-12-31T23")],
)
def test_last_page_of_the_calendar_has_no_slices(tmp_path, every, key):
    lake = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake", every=every)

    assert build_page(summarize_slices(lake.pipeline, str(lake.lake)), 24, key) is None


def test_grid_of_local_days_has_months_as_rows(tmp_path):
    lake = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake", every="1 day", end="2025-12-31T23:00:00Z")
    text = lake.file.read_text().replace('start: "2025-01-01T00:00:00Z"', 'start: "2024-12-31T23:00:00Z"')
    lake.file.write_text(text.replace("slices: {", "slices: {time_zone: Europe/Berlin, "))
    page = build_page(summarize_slices(lake.pipeline, str(lake.lake)), 365, "2025")

    assert [len(row.cells) for row in page.rows] == [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    assert page.rows[9].cells[25].column == 26, "the day with 25 hours"


@pytest.mark.parametrize("minutes", [1, 29, 30, 60, 1440])
def test_layout_has_at_most_1500_slices_on_a_page(minutes):
    layout, lengths = (
        Layout.from_slice_length(timedelta(minutes=minutes)),
        {"day": 1440, "month": 44640, "year": 527040},
    )
    assert lengths[layout.page] / minutes <= 1500


def test_plugin_has_pages_unless_they_are_switched_off(monkeypatch):
    TidemarkPlugin.on_load()
    [app] = TidemarkPlugin.fastapi_apps
    assert isinstance(app["app"], LazyApp)
    assert app["url_prefix"] == "/tidemark"
    assert {view["destination"]: view["href"] for view in TidemarkPlugin.external_views} == {
        "nav": "tidemark/", "dag": "tidemark/dags/{DAG_ID}",
    }  # fmt: skip

    monkeypatch.setenv("AIRFLOW__TIDEMARK__SLICE_PAGES", "False")
    TidemarkPlugin.on_load()
    assert (TidemarkPlugin.fastapi_apps, TidemarkPlugin.external_views) == ([], [])


@pytest.mark.process
def test_plugin_imports_neither_delta_nor_fastapi_before_a_request():
    script = (
        "import sys; from tidemark.airflow_provider.plugin import TidemarkPlugin; TidemarkPlugin.on_load();"
        "print([name for name in ('deltalake', 'pyspark', 'pandas', 'tidemark.airflow') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[]"
