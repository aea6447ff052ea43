"""Compile a script of Flink SQL with Flink's own planner, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.errors import FaultError, ImportRefusedError, UserError
from tidemark.formatting import to_single_line
from tidemark.importing.flink_plan import FlinkPlan, create_plan
from tidemark.importing.sql_script import split_statements

FLINK_PYTHON_VARIABLE = "TIDEMARK_FLINK_PYTHON"
"""Environment variable with the Python interpreter that has apache-flink."""
_DEFAULT_PYTHON = Path(".venv-flink/bin/python")
_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class CompiledScript:
    """Plans of a script's queries, and what the script sets."""

    plans: list[FlinkPlan]
    settings: list[dict[str, str]]
    """Flink settings of each plan: those given, and those of the SET statements before its query."""
    tables: dict[str, dict[str, str]]
    """Options of the tables that the script creates, by name."""
    ignored: list[str]
    """Beginnings of the statements that were not run."""


def compile_script(script: str, settings: Mapping[str, str]) -> CompiledScript:
    """Compile the queries of a script. Its tables get connectors that need no server.

    Raises:
        UserError: Flink is not installed.
        ImportRefusedError: Flink refuses the script.
        FaultError: Flink's process failed.
    """
    answer = run_planner(script, settings)
    if "error" in answer:
        reason = to_single_line(answer["error"].strip().partition("\n")[0])
        raise ImportRefusedError(f"Flink refuses the script: {reason}")
    plans = [create_plan(query["plan"]) for query in answer["plans"]]
    return CompiledScript(plans, [query["settings"] for query in answer["plans"]], answer["tables"], answer["ignored"])


def run_planner(script: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer of the planner's process, as `flink_planner_process` describes it.

    Raises:
        UserError: Flink is not installed.
        FaultError: Flink's process failed.
    """
    python = find_flink_python()
    request = {"statements": split_statements(script), "settings": dict(settings)}
    with tempfile.TemporaryDirectory() as name:
        request_file, answer_file = Path(name, "request.json"), Path(name, "answer.json")
        request_file.write_text(json.dumps(request), encoding="utf-8")
        output = _run([python, str(_get_script()), str(request_file), str(answer_file)])
        if not answer_file.exists():
            raise FaultError(f"Flink's planner ended without an answer: {to_single_line(output[-500:])}")
        answer: dict[str, Any] = json.loads(answer_file.read_text(encoding="utf-8"))
        return answer


def find_flink_python() -> str:
    """Return the Python interpreter with Flink: `TIDEMARK_FLINK_PYTHON`, or of `.venv-flink` in the working directory.

    Raises:
        UserError: There is none.
    """
    python = os.environ.get(FLINK_PYTHON_VARIABLE) or str(_DEFAULT_PYTHON)
    if not Path(python).exists():
        raise UserError(
            f"Flink is not installed: {python} does not exist. Run python3.11 -m venv .venv-flink && "
            f".venv-flink/bin/pip install apache-flink==2.3.0, or set {FLINK_PYTHON_VARIABLE}, or give the JSON that "
            "COMPILE PLAN writes."
        )
    return python


def _get_script() -> Path:
    return Path(__file__).with_name("flink_planner_process.py")


def _run(command: list[str]) -> str:
    """Run a process and return its output."""
    # Flink's interpreter must not import packages of this one.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        process = subprocess.run(  # noqa: S603 - the script is ours, and the interpreter is the user's
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise FaultError(
            f"Flink's planner took more than {_TIMEOUT_SECONDS} s. Run again on a less busy machine."
        ) from None
    except OSError as error:
        raise UserError(f"{command[0]} cannot be run: {error}. Set {FLINK_PYTHON_VARIABLE}.") from None
    return process.stdout + process.stderr
