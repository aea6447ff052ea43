"""The tasks of a release and of a waiver: what a person is asked, and what their answer does."""

from types import SimpleNamespace

import pytest
from airflow.providers.standard.exceptions import HITLTriggerEventError
from airflow.providers.standard.operators import hitl
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskAwaitingInput

from tests.dags.conftest import TaskStateStore
from tests.dags.slice_lake import LATE, NOT_NULL, SliceLake
from tidemark.airflow import Project, withheld_slices
from tidemark.airflow.approval import ApproveSlices
from tidemark.airflow.operators import RunSlices
from tidemark.airflow.quality_tasks import (
    PlanReleases,
    PlanWaivers,
    ReleaseRows,
    ReprocessWaivedSlices,
    RunWaivedSlices,
    WaiveExpectations,
)
from tidemark.ledger.ledger import Ledger
from tidemark.quality.waivers import list_pending_waivers

FIFTH, SIXTH = "2025-01-01T05:00Z", "2025-01-01T06:00Z"
FAILURE = '[{"expectation": "%s", "severity": "critical", "detail": "25%% are null", "on_failure": "quarantine"}]'
ADA = {"id": "7", "name": "Ada"}


@pytest.fixture
def slices(tmp_path):
    """Return a lake with hours up to 05:00, the last of which has a row in quarantine."""
    lake = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake")
    lake.add(range(5))
    lake.add(range(5, 6), quality="quarantined", quarantined=1, quality_results=FAILURE % NOT_NULL)
    lake.write()
    for table in ("emissions", "late", "checkpoint"):
        lake.write_table(table, [], LATE)
    return lake


@pytest.fixture
def create_task(slices, monkeypatch):
    """Return a function that creates a task of the lake's pipeline."""
    monkeypatch.setenv("TIDEMARK_LAKE", str(slices.lake))
    project = Project(slices.file.parent)
    return lambda operator, **options: operator(task_id="task", file=slices.file, project=project, **options)


@pytest.fixture
def submitted(monkeypatch):
    """Replace the submission of jobs; return the arguments of each job."""
    arguments = []
    monkeypatch.setattr(RunSlices, "execute", lambda task, _: arguments.append(task.application_args))
    return arguments


@pytest.fixture
def questions(monkeypatch):
    """Return the questions that Airflow stores."""
    asked = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **question: asked.append(question))
    return asked


def create_context(plan, answer=None):
    """Return the context of a task after the tasks `plan` and `approve`."""
    results = {"plan": plan, "approve": answer}
    ti = SimpleNamespace(id=7, xcom_pull=lambda task_ids: results[task_ids])
    return {"ti": ti, "task_instance": ti, "task_state_store": TaskStateStore()}


def answer(option="Approve", user=ADA, **fields):
    """Return the answer of a person."""
    return {"chosen_options": [option], "responded_by_user": user, "params_input": fields}


def read_waivers(slices):
    return list_pending_waivers(Ledger.from_pipeline(slices.pipeline, str(slices.lake)))


def test_release_plan_shows_rows_in_quarantine(slices, create_task):
    with pytest.raises(AirflowSkipException, match="no row is in quarantine"):
        create_task(PlanReleases).execute({})

    slices.write_details(5)
    task = create_task(PlanReleases)
    result = task.execute({})

    failure = {"expectation": NOT_NULL, "rows": 1, "result": "25% are null"}
    [item] = result["plan"]["slices"]
    assert item == {"slice": FIFTH, "run": "run 5", "rows": 1, "failures": [failure]}
    assert result["markdown"].startswith("**orders: 1 row of 1 slice in quarantine**\n")
    assert f"| {FIFTH} | 1 | {NOT_NULL} | 25% are null |" in result["markdown"]
    assert "a fault of the sensor" not in result["markdown"], "values of rows"
    assert task.quarantined_pipeline == "orders", "of the link to the slices"


def test_release_job_gets_chosen_slices_that_are_not_released(slices, create_task, submitted):
    slices.write_details(5)
    plan = create_task(PlanReleases).execute({})
    released = {"slice": "2025-01-01T04:00Z", "run": "run 4"}
    not_chosen = {"slice": "2025-01-01T03:00Z", "run": "run 3"}
    plan["plan"]["slices"] += [released, not_chosen]
    context = create_context(plan, answer(slices=[FIFTH, released["slice"]]))

    create_task(ReleaseRows, options=[], command=("quarantine", "release"), conn_id="spark").execute(context)

    [arguments] = submitted
    file = [str(slices.file), "--lake", str(slices.lake)]
    assert arguments == ["quarantine", "release", *file, f"--slice={FIFTH}", "--run=run 5", "--user=Ada"]


def test_release_job_is_not_submitted_again_if_all_is_released(slices, create_task, submitted):
    plan = {"plan": {"slices": [{"slice": FIFTH, "run": "run 5"}]}}

    task = create_task(ReleaseRows, options=[], command=("quarantine", "release"), conn_id="spark")
    task.execute(create_context(plan, answer(slices=[FIFTH])))

    assert submitted == []


@pytest.mark.parametrize("has_failing_rows", [True, False])
def test_release_of_slice_that_has_run_again_is_refused(slices, create_task, submitted, has_failing_rows):
    if has_failing_rows:
        slices.write_details(5)
    approved = [{"slice": "2025-01-01T04:00Z", "run": "run 4"}, {"slice": FIFTH, "run": "earlier run"}]

    task = create_task(ReleaseRows, options=[], command=("quarantine", "release"), conn_id="spark")
    with pytest.raises(AirflowFailException, match=f"^slice {FIFTH} has run again since"):
        task.execute(create_context({"plan": {"slices": approved}}, answer(slices=["2025-01-01T04:00Z", FIFTH])))

    assert submitted == []


@pytest.mark.parametrize("stored", [None, answer("Reject", slices=[FIFTH]), answer(user=None, slices=[FIFTH])])
def test_tasks_after_approval_fail_without_a_person(slices, create_task, submitted, stored):
    """As after `approve` was marked as successful, or if nobody has answered in time."""
    context = create_context({"plan": {"slices": [{"slice": FIFTH, "run": "run 5"}]}}, stored)
    release = create_task(ReleaseRows, options=[], command=("quarantine", "release"), conn_id="spark")

    jobs = [create_task(job, options=[], conn_id="spark") for job in (ReprocessWaivedSlices, RunWaivedSlices)]
    for task in (release, create_task(WaiveExpectations), *jobs):
        with pytest.raises(AirflowFailException, match="no person has approved"):
            task.execute(context)

    assert submitted == []
    assert read_waivers(slices) == []


def test_waiver_of_rejected_slice_has_name_and_reason_and_runs_slice(slices, create_task, submitted):
    with pytest.raises(AirflowSkipException, match="no slice is rejected"):
        create_task(PlanWaivers).execute({})

    slices.reject(6)
    plan = create_task(PlanWaivers).execute({})
    assert plan["markdown"].startswith("**orders: 1 slice rejected by the quality gate**\n")
    assert f"| {SIXTH} | no | 2025-01-02T07:00Z | {NOT_NULL} | 0.5 | at most 0.01 |" in plan["markdown"]
    context = create_context(plan, answer(slices=[SIXTH], reason="a storm"))

    create_task(WaiveExpectations).execute(context)
    create_task(RunWaivedSlices, options=["--more"], conn_id="spark").execute(context)

    [waiver] = read_waivers(slices)
    assert {name: waiver[name] for name in ("slice", "expectation", "reason", "user")} == {
        "slice": SIXTH,
        "expectation": NOT_NULL,
        "reason": "a storm",
        "user": "Ada",
    }
    [arguments] = submitted
    assert arguments[0] == "run"
    assert arguments[-3:] == ["--more", "--to", "2025-01-01T07:00Z"]
    with pytest.raises(AirflowSkipException, match=f"slice {SIXTH}: it is waived for its next run"):
        create_task(PlanWaivers).execute({})


def test_waiver_of_rejected_reprocess_reprocesses_slices(slices, create_task, submitted):
    slices.reject(1, 2, 4)
    plan = create_task(PlanWaivers).execute({})
    assert "| 2025-01-01T04:00Z | an earlier run |" in plan["markdown"]
    assert "later slices run again until their state no longer changes" in plan["markdown"]
    starts = [item["slice"] for item in plan["plan"]["slices"]]
    context = create_context(plan, answer(slices=starts, reason="a storm"))

    create_task(WaiveExpectations).execute(context)
    task = create_task(ReprocessWaivedSlices, options=[], command=("reprocess",), conn_id="spark")
    with pytest.raises(AirflowException, match=f"slices from {starts[0]} to {FIFTH} are still rejected"):
        task.execute(context)  # the replaced jobs commit nothing
    with pytest.raises(AirflowSkipException, match="have an earlier run"):
        create_task(RunWaivedSlices, options=[], conn_id="spark").execute(context)

    assert sorted(waiver["slice"] for waiver in read_waivers(slices)) == starts
    ranges = [["--from", "2025-01-01T01:00Z", "--to", "2025-01-01T03:00Z"], ["--from", starts[2], "--to", FIFTH]]
    assert [arguments[-4:] for arguments in submitted] == ranges
    assert [arguments[0] for arguments in submitted] == ["reprocess"] * 2


def test_waiver_of_slices_that_are_published_since_has_no_job(slices, create_task, submitted):
    approved = [{"slice": "2025-01-01T04:00Z", "is_committed": True}, {"slice": SIXTH, "is_committed": False}]
    context = create_context({"plan": {"slices": approved}}, answer(slices=["2025-01-01T04:00Z", SIXTH]))

    with pytest.raises(AirflowSkipException, match="no approved slice has an earlier run"):
        create_task(ReprocessWaivedSlices, options=[], command=("reprocess",), conn_id="spark").execute(context)

    assert submitted == []


def test_waiver_of_slice_that_has_run_again_is_refused(slices, create_task):
    slices.reject(6)
    plan = create_task(PlanWaivers).execute({})
    plan["plan"]["slices"][0]["run"] = "another run"
    context = create_context(plan, answer(slices=[SIXTH], reason="a storm"))

    with pytest.raises(AirflowFailException, match=f"slice {SIXTH} has run again since"):
        create_task(WaiveExpectations).execute(context)

    assert read_waivers(slices) == []


def test_rejected_slice_that_no_waiver_publishes_is_not_asked_about(slices, create_task):
    text = slices.file.read_text()

    slices.file.write_text(text.replace("column: right_user}", "column: right_user, per: day}"))
    slices.reject(6, expectation=f"{NOT_NULL} per day")
    with pytest.raises(AirflowSkipException, match="evaluated on more than a slice"):
        create_task(PlanWaivers).execute({})

    slices.file.write_text(text.replace("column: right_user}", "column: left_user}"))
    with pytest.raises(AirflowSkipException, match="needs no waiver"):
        create_task(PlanWaivers).execute({})


def test_plan_of_many_slices_lists_the_earliest(slices, create_task, monkeypatch):
    monkeypatch.setattr(withheld_slices, "MAX_SLICES", 1)
    slices.reject(6, 4)

    plan = create_task(PlanWaivers).execute({})

    assert [item["slice"] for item in plan["plan"]["slices"]] == ["2025-01-01T04:00Z"]
    assert "- 1 more slice not listed. Start the DAG again after this run." in plan["markdown"]


PLAN = {"plan": {"slices": [{"slice": FIFTH}, {"slice": SIXTH}]}, "markdown": "| 2 slices |"}


def create_question(*, needs_reason):
    return ApproveSlices(task_id="approve", subject="orders: publish?", needs_reason=needs_reason)


@pytest.mark.parametrize("needs_reason", [False, True])
def test_person_can_choose_slices(questions, needs_reason):
    with pytest.raises(TaskAwaitingInput):
        create_question(needs_reason=needs_reason).execute(create_context(PLAN))

    [question] = questions
    assert set(question["params"]) == ({"slices", "reason"} if needs_reason else {"slices"})
    assert question["params"]["slices"]["value"] == [FIFTH, SIXTH]
    assert question["params"]["slices"]["schema"]["items"]["enum"] == [FIFTH, SIXTH]


def test_invalid_answer_is_reported():
    event = {"error": "Responses {'Maybe'} not in ['Approve', 'Reject']", "error_type": "validation"}

    with pytest.raises(HITLTriggerEventError, match="Responses"):
        create_question(needs_reason=True).execute_complete(create_context(PLAN), event)


@pytest.mark.parametrize(
    ("fields", "completed"),
    [
        ({"reason": "a storm"}, {"slices": [FIFTH, SIXTH], "reason": "a storm"}),
        ({"slices": [SIXTH], "reason": "a storm"}, {"slices": [SIXTH], "reason": "a storm"}),
        ({"slices": [SIXTH]}, None),
        ({"reason": " "}, None),
        ({}, None),
        ({"slices": [], "reason": "a storm"}, None),
    ],
)
def test_approval_without_reason_or_slice_is_asked_again(questions, fields, completed):
    task, context = create_question(needs_reason=True), create_context(PLAN)
    given = answer(**fields) | {"responded_at": SimpleNamespace(isoformat=str)}

    if completed:
        assert task.execute_complete(context, given)["params_input"] == completed
    else:
        with pytest.raises(TaskAwaitingInput):
            task.execute_complete(context, given)

    assert len(questions) == (0 if completed else 1)


def test_answer_with_unknown_slice_is_refused():
    given = answer(slices=["2025-01-01T09:00Z"]) | {"responded_at": SimpleNamespace(isoformat=str)}

    with pytest.raises(ValueError, match="Invalid input for param slices"):
        create_question(needs_reason=False).execute_complete(create_context(PLAN), given)
