"""The provider as Airflow finds it, and what its settings change: deadlines, links, watched inputs, DAG bundles."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from airflow.sdk import Connection
from deltalake import write_deltalake

from tests.dags.conftest import PROJECT
from tidemark.airflow.connect_job import connect_address
from tidemark.airflow_provider.links import DataDocsLink, QuarantineLink, ReportLink, SparkHistoryLink
from tidemark.config.quality import DATA_DOCS_INDEX

LINKS = ("DataDocsLink", "ReportLink", "QuarantineLink", "SparkHistoryLink")
RULES = {
    "clicks": "{table: clicks, complete: commit,",
    "views": "{table: views, complete: {by: marker, table: marks, column: until},",
}


def run_airflow(environment, *arguments):
    command = [Path(sys.executable).with_name("airflow"), *arguments]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def run_script(environment, name, *arguments):
    """Run a script of this folder in another process, and return its last line's content."""
    command = [sys.executable, PROJECT / "tests/dags" / name, *arguments]
    process = subprocess.run(command, cwd="/", env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture
def watching_env(provider_env, pipeline_file, lake):
    """Write a pipeline with a deadline and watched inputs, tables of both inputs, and a page of Data Docs."""
    settings = "airflow: {deadline: 1 hour, deadline_from: interval_end, watch_inputs: true, poll_interval: 1 second}\n"
    file = pipeline_file("clicked_views.yaml", name="clicked_views", settings=settings) / "clicked_views.yaml"
    text = file.read_text()
    for table, rule in RULES.items():
        text = text.replace(f"{{table: {table},", rule)
        row = {"user": ["a"], "at": pa.array([datetime(2013, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))}
        write_deltalake(lake / table, pa.table(row))
    file.write_text(text)
    page = lake / "clicked_views" / DATA_DOCS_INDEX
    page.parent.mkdir(parents=True)
    page.touch()
    return provider_env | {
        "TIDEMARK_PIPELINES": str(file.parent),
        "TIDEMARK_LAKE": str(lake),
        "AIRFLOW__TIDEMARK__LAKE_URL": "https://files.example.com/lake/",
    }


def test_provider_is_listed_with_deadline_links_and_watchers(watching_env):
    run_airflow(watching_env, "db", "migrate")
    assert "tidemark" in {
        row["package_name"] for row in json.loads(run_airflow(watching_env, "providers", "list", "-o", "json"))
    }

    result = run_script(watching_env, "describe_provider.py")

    assert result["version"] == "0.1.0"
    links = sorted(f"tidemark.airflow_provider.links.{name}" for name in LINKS)
    assert result["links"] == links
    assert result["plugins"] == ["tidemark.airflow_provider.plugin.TidemarkPlugin"]
    assert result["deadlines"] == ["tidemark.airflow_provider.deadlines.DataIntervalEnd"]
    assert result["modules"] == [f"tidemark.airflow.{name}" for name in ("operators", "triggers", "table_watcher")]
    assert (result["lake_url"], result["spark_history_url"]) == ("https://files.example.com/lake/", "")

    assert result["deadlines_of_run"] == ["2013-01-01T02:00:00+00:00"], "an hour after the slice's end"
    assert result["links_of_run"] == ["Comparison report", "Data Docs", "Spark history"]
    docs = f"https://files.example.com/lake/clicked_views/{DATA_DOCS_INDEX}"
    links_with_address = [link for link in result["stored_links"] if link[-1]]
    assert links_with_address == [["report", "_link_DataDocsLink", docs]]

    assert result["watched"] == ["clicks", "marks", "views"]
    assert result["payload"] == {"table": "clicks", "version": 1}
    assert result["queued"] == ["clicked_views__landed"]


class Task:
    """Operator with Data Docs at a path, or without."""

    def __init__(self, page, quarantined_pipeline=None):
        self.page, self.quarantined_pipeline = page, quarantined_pipeline

    def find_data_docs(self):
        return self.page

    find_report = find_data_docs


def test_links_are_empty_without_address_or_page(monkeypatch):
    assert [link.get_link(Task("p"), ti_key=None) for link in (DataDocsLink(), SparkHistoryLink())] == ["", ""]
    monkeypatch.setenv("AIRFLOW__TIDEMARK__LAKE_URL", "https://files")
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SPARK_HISTORY_URL", "http://history:18080")
    assert DataDocsLink().get_link(Task(None), ti_key=None) == ""
    assert DataDocsLink().get_link(Task("p/index.html"), ti_key=None) == "https://files/p/index.html"
    assert (
        DataDocsLink().get_link(Task("50%/p #1/index.html"), ti_key=None) == "https://files/50%25/p%20%231/index.html"
    )
    assert ReportLink().get_link(Task(None), ti_key=None) == ""
    assert ReportLink().get_link(Task("p/report.html"), ti_key=None) == "https://files/p/report.html"
    assert SparkHistoryLink().get_link(Task(None), ti_key=None) == "http://history:18080"


def test_quarantine_link_needs_quarantined_rows_and_pages(monkeypatch):
    link = QuarantineLink()
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow/below/")
    assert link.get_link(Task(None), ti_key=None) == ""
    assert link.get_link(Task(None, "p"), ti_key=None) == "https://airflow/below/tidemark/pipelines/p"
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SLICE_PAGES", "False")
    assert link.get_link(Task(None, "p"), ti_key=None) == ""


@pytest.mark.parametrize(
    ("connection", "address"),
    [
        ({"conn_type": "spark", "host": "sc://h", "port": 15002}, "sc://h:15002"),
        ({"conn_type": "spark", "host": "spark://h", "port": 7077}, None),
        ({"conn_type": "spark_connect", "host": "h", "port": 15002, "password": "s3cret"}, "sc://h:15002"),
        ({"conn_type": "spark_connect", "host": "sc://h"}, "sc://h"),
        (
            {"conn_type": "spark_connect", "host": "h", "login": "a b", "extra": '{"use_ssl": true}'},
            "sc://h/;user_id=a%20b;use_ssl=true",
        ),
    ],
)
def test_connection_to_connect_server_has_address_without_token(connection, address):
    assert connect_address(Connection(conn_id="c", **connection)) == address


def test_git_bundle_has_pipeline_files_of_its_version(provider_env, pipeline_file, tmp_path):
    pytest.importorskip("airflow.providers.git.bundles.git", reason="apache-airflow-providers-git is not in the lock")
    repository = tmp_path / "repository"
    shutil.copytree(PROJECT / "dags", repository / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    pipelines = repository / "include" / "pipelines"
    shutil.copytree(pipeline_file("p.yaml", name="p"), pipelines)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for arguments in (("init", "--quiet", "-b", "main"), ("add", "."), (*author, "commit", "--quiet", "-m", "Add p")):
        subprocess.run(["git", "-C", repository, *arguments], check=True)
    kwargs = {"repo_url": str(repository), "tracking_ref": "main", "subdir": "dags"}
    bundle = {"name": "repository", "classpath": "airflow.providers.git.bundles.git.GitDagBundle", "kwargs": kwargs}
    names = {f"GIT_{role}_{part}": "a@example.com" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    env = (
        provider_env
        | names
        | {
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(tmp_path / "bundles"),
        }
    )
    run_airflow(env, "db", "migrate")

    states = run_script(env, "describe_git_bundle.py", repository, pipelines / "p.yaml")

    before, after, pinned = states
    assert [state["errors"] for state in states] == [{}, {}, {}]
    assert before["dags"] == after["dags"] == ["p__range", "p__repair", "p__reprocess", "p__slice"]
    assert before["version"] == pinned["version"] != after["version"]
    assert [state["owner"] for state in states] == ["tidemark", "later", "tidemark"]
    assert pinned["text"] == before["text"] != after["text"]
    assert not any(Path(state["file"]).is_relative_to(repository) for state in states), "of the bundle's own clone"


def test_deadline_after_interval_without_installed_provider_is_import_error(describe, pipeline_file, tmp_path):
    folder = pipeline_file("p.yaml", name="p", settings="airflow: {deadline: 1 hour, deadline_from: interval_end}\n")
    info = tmp_path / "site" / "tidemark-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidemark\nVersion: 0.1.0\n")

    result = describe(
        TIDEMARK_PIPELINES=folder, PYTHONPATH=os.pathsep.join([str(info.parent), str(PROJECT / "include")])
    )

    assert result["dags"] == {}
    [error] = result["errors"].values()
    assert "airflow.deadline_from: Airflow does not know Tidemark's deadlines" in error
