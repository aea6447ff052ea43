"""Ask a person to approve a plan, before a task of a DAG runs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context, Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import NEVER_EXPIRE

PLAN_TASK, APPROVE_TASK = "plan", "approve"
_SLICES, _REASON = "slices", "reason"
"""Fields of the form that a person answers."""
_ASKED = "asked"
"""Key of Airflow's state store of the task: digest of the plan that it has asked about."""


class ApprovePlan(ApprovalOperator):
    """Operator that shows the plan of the task `plan` as Markdown, and waits for a person."""

    def __init__(
        self, *, subject: str, answer_within: timedelta | None = None, approvers: Iterable[str] = (), **kwargs: Any
    ) -> None:
        """Create the task.

        Args:
            subject: The question.
            answer_within: Time after which no answer counts as a rejection; None to wait forever.
            approvers: Ids of the users who may answer; empty for all.
            kwargs: Further arguments of `ApprovalOperator`, such as `notifiers`.
        """
        super().__init__(
            subject=subject,
            body=f"{{{{ ti.xcom_pull(task_ids='{PLAN_TASK}')['markdown'] }}}}",
            response_timeout=answer_within,
            defaults=self.REJECT if answer_within else None,
            assigned_users=[{"id": user, "name": user} for user in approvers] or None,
            **kwargs,
        )

    def execute(self, context: Context) -> Any:
        """Wait for a person.

        Raises:
            AirflowFailException: The run has asked about another plan, because the task `plan` was cleared. Airflow
                would show that plan again, since it keeps the text of a question.
        """
        store, digest = context["task_state_store"], sha256(str(self.body).encode()).hexdigest()
        if (asked := store.get(_ASKED)) and asked != digest:
            raise AirflowFailException("this run has asked about another plan before. Start a new run of the DAG.")
        store.set(_ASKED, digest, retention=NEVER_EXPIRE)
        return super().execute(context)


class ApproveSlices(ApprovePlan):
    """Operator that lets a person choose some of the planned slices, and write a reason."""

    def __init__(self, *, needs_reason: bool = False, **kwargs: Any) -> None:
        """Create the task.

        Args:
            needs_reason: True if an approval without a reason is asked again.
            kwargs: Further arguments of `ApprovePlan`.
        """
        super().__init__(**kwargs)
        self.needs_reason = needs_reason

    def execute(self, context: Context) -> Any:
        """Wait for a person."""
        self._create_fields(context)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after the answer. An approval that lacks a field is asked again.

        Fields that the answer leaves out have their first value: all slices, and no reason.
        """
        if "error" in event:  # such an event has no answer
            return super().execute_complete(context, event)
        self._create_fields(context)
        event["params_input"] = self.params.dump() | (event["params_input"] or {})
        if event["chosen_options"] == [self.APPROVE] and (missing := self._find_missing(event["params_input"])):
            self.log.error("the approval has no %s, so the question is asked again", missing)
            return super().execute(context)
        return super().execute_complete(context, event)

    def _create_fields(self, context: Context) -> None:
        slices = [item["slice"] for item in context["ti"].xcom_pull(task_ids=PLAN_TASK)["plan"]["slices"]]
        items = {"type": "string", "enum": slices}
        fields = {
            _SLICES: Param(
                slices, type="array", items=items, examples=slices, title="Slices", description="Start of each slice."
            )
        }
        if self.needs_reason:
            about = "To approve, write a reason. The ledger records it with your name."
            fields[_REASON] = Param("", type=["null", "string"], title="Reason", description=about)
        self.params = ParamsDict(fields)

    def _find_missing(self, answer: dict[str, Any]) -> str | None:
        if not answer[_SLICES]:
            return "slice"
        return "reason" if self.needs_reason and not (answer[_REASON] or "").strip() else None


@dataclass(frozen=True)
class Approval:
    """Answer of a person who has approved."""

    slices: list[dict[str, Any]]
    """Chosen slices of the plan."""
    reason: str
    user: str
    """Name of the person."""


def get_approval(context: Context) -> Approval:
    """Return what a person has approved (`ApproveSlices`).

    Raises:
        AirflowFailException: No person has approved.
    """
    answer = context["ti"].xcom_pull(task_ids=APPROVE_TASK) or {}
    user, fields = answer.get("responded_by_user"), answer.get("params_input")
    if answer.get("chosen_options") != [ApprovePlan.APPROVE] or not user or not fields:
        raise AirflowFailException(f"no person has approved. Clear the task {APPROVE_TASK}, and answer it.")
    planned = context["ti"].xcom_pull(task_ids=PLAN_TASK)["plan"]["slices"]
    chosen = [item for item in planned if item["slice"] in fields[_SLICES]]
    return Approval(chosen, fields.get(_REASON) or "", user["name"] or user["id"])
