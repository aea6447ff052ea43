"""The tasks of a repair: when a plan needs Spark or a person, and what is passed to the job."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.providers.standard.operators import hitl
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskAwaitingInput

from tests.conftest import write_pipeline
from tests.dags.conftest import PLAN, TaskStateStore
from tidemark.airflow import Project, status_queries
from tidemark.airflow.operators import RunSlices
from tidemark.airflow.repair import ApproveRepair, PlanRepair, RepairSlices
from tidemark.errors import InputError


@pytest.fixture
def create_task(tmp_path):
    """Return a function that creates a task which submits a command."""
    write_pipeline(tmp_path / "orders.yaml")

    def create(operator, *command, name="orders"):
        file, project = tmp_path / f"{name}.yaml", Project(tmp_path)
        return operator(task_id="task", file=file, project=project, command=command, options=[], conn_id="spark")

    return create


@pytest.fixture
def submitted(monkeypatch):
    """Replace the submission of jobs; return the arguments of each job, and a plan that the next job writes."""
    jobs = SimpleNamespace(arguments=[], deploy_modes=[], plan=None, approved=[])

    def submit(task, _):
        jobs.arguments.append(task.application_args)
        jobs.deploy_modes.append(task._deploy_mode)
        file = Path(task.application_args[-1])
        if jobs.plan:
            file.write_text(json.dumps(jobs.plan))
        else:
            jobs.approved.append(json.loads(file.read_text()))

    monkeypatch.setattr(RunSlices, "execute", submit)
    return jobs


def plan_by_logs(monkeypatch, plan):
    """Replace the planner that reads table logs."""
    monkeypatch.setattr(status_queries, "plan_outdated_slices", lambda *_: plan)


def test_plan_from_table_logs_submits_no_job(monkeypatch, create_task, submitted):
    plan_by_logs(monkeypatch, PLAN)

    result = create_task(PlanRepair, "reprocess", "--outdated", "--dry-run").execute({})

    assert result["plan"] == PLAN
    assert result["markdown"].startswith("**orders: 2 outdated slices would run again**")
    assert len(result["approval_reasons"]) == 1
    assert submitted.arguments == []


def test_plan_that_needs_spark_is_submitted(monkeypatch, create_task, submitted):
    plan_by_logs(monkeypatch, None)
    submitted.plan = PLAN

    result = create_task(PlanRepair, "reprocess", "--outdated", "--dry-run").execute({})

    assert result["plan"] == PLAN
    [arguments] = submitted.arguments
    assert arguments[:3] == ["reprocess", "--outdated", "--dry-run"]
    assert arguments[-2] == "--plan-file"
    assert not Path(arguments[-1]).exists(), "a temporary file"
    assert submitted.deploy_modes == ["client"], "the driver has to be on the machine of the file"


def test_plan_without_outdated_slices_skips_later_tasks(monkeypatch, create_task):
    plan_by_logs(monkeypatch, PLAN | {"slices": 0, "notes": ["no committed slice is outdated"]})

    with pytest.raises(AirflowSkipException, match="no committed slice is outdated"):
        create_task(PlanRepair, "reprocess").execute({})


@pytest.mark.parametrize("file", ["orders", "first"])
def test_plan_of_chain_names_earlier_pipelines_with_outdated_slices(file, monkeypatch, tmp_path, create_task):
    write_pipeline(tmp_path / f"{file}.yaml", output_stream=True)
    keys = [{"left": "left_k", "right": "k"}]
    write_pipeline(tmp_path / "shipments.yaml", name="shipments", left={"pipeline": file}, join__keys=keys)
    plans = {"orders": PLAN, "shipments": PLAN | {"slices": 0, "notes": []}}
    monkeypatch.setattr(status_queries, "plan_outdated_slices", lambda pipeline, _: plans[pipeline.name])

    with pytest.raises(AirflowSkipException, match="orders has 2 outdated slices. Start orders__repair first"):
        create_task(PlanRepair, "reprocess", name="shipments").execute({})

    plans["orders"] = None
    with pytest.raises(AirflowSkipException, match="orders has perhaps outdated slices. Start orders__repair first"):
        create_task(PlanRepair, "reprocess", name="shipments").execute({})


def test_refused_plan_fails_without_retry(monkeypatch, create_task):
    def refuse(*_):
        raise InputError("rows are gone. Restore them.")

    monkeypatch.setattr(status_queries, "plan_outdated_slices", refuse)

    with pytest.raises(AirflowFailException, match="rows are gone. Restore them"):
        create_task(PlanRepair, "reprocess").execute({})


@pytest.mark.parametrize("reasons", [[], ["2 slices are too many"]])
def test_approve_task_asks_a_person_only_for_a_reason(monkeypatch, reasons):
    questions = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **question: questions.append(question))
    results = {"plan": {"plan": PLAN, "approval_reasons": reasons}}
    context = {
        "ti": SimpleNamespace(xcom_pull=lambda task_ids: results[task_ids]),
        "task_instance": SimpleNamespace(id=7),
        "task_state_store": TaskStateStore(),
    }
    notified = []
    task = ApproveRepair(
        task_id="approve", subject="orders: run outdated slices again?", default_args={"notifiers": [notified.append]}
    )

    if reasons:
        with pytest.raises(TaskAwaitingInput):
            task.execute(context)
    else:
        assert task.execute(context)["chosen_options"] == ["Approve"]

    assert [question["subject"] for question in questions] == ["orders: run outdated slices again?"] * len(reasons)
    assert notified == [context] * len(reasons)


def test_question_about_another_plan_in_one_run_is_refused(monkeypatch):
    """Airflow shows the text of a run's first question again after `plan` was cleared."""
    questions = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **question: questions.append(question))
    results = {"plan": {"plan": PLAN, "approval_reasons": ["2 slices are too many"]}}
    context = {
        "ti": SimpleNamespace(xcom_pull=lambda task_ids: results[task_ids]),
        "task_instance": SimpleNamespace(id=7),
        "task_state_store": TaskStateStore(),
    }

    def ask(body):
        task = ApproveRepair(task_id="approve", subject="orders: run outdated slices again?")
        task.body = body
        task.execute(context)

    for _ in range(2):  # the second time after `approve` was cleared
        with pytest.raises(TaskAwaitingInput):
            ask("| 2 slices |")
    with pytest.raises(AirflowFailException, match="Start a new run"):
        ask("| 3 slices |")

    assert [question["body"] for question in questions] == ["| 2 slices |"] * 2


def test_reprocess_task_passes_the_approved_plan_to_its_job(create_task, submitted):
    context = {"ti": SimpleNamespace(xcom_pull=lambda task_ids: {"plan": {"plan": PLAN}}[task_ids])}

    create_task(RepairSlices, "reprocess", "--outdated").execute(context)

    [arguments] = submitted.arguments
    assert arguments[:2] == ["reprocess", "--outdated"]
    assert "--dry-run" not in arguments
    assert submitted.approved == [PLAN]
    assert not Path(arguments[-1]).exists(), "a temporary file"
    assert submitted.deploy_modes == ["client"], "the driver has to be on the machine of the file"
