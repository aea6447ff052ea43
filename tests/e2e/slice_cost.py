"""Measure what a slice costs in Airflow, with and without the optional settings (`python -m tests.e2e.slice_cost`).

One pipeline has an expectation, a deadline and partition keys, the other has none of them. Both read the same rows.
"""

import signal
import sys
import tempfile
from pathlib import Path

from tests.e2e.orders import create_pipeline_yaml
from tests.e2e.scenario import NAME, SLICE_TIMEOUT, create_step_printer, start_scenario
from tests.processes import wait_for

PLAIN, HOURS = "plain", 3


def measure(home, print_step):
    """Run the slices of both pipelines one after another, and print their times."""
    with start_scenario(home, HOURS, 0, print_step) as scenario:
        settings = create_pipeline_yaml(PLAIN, HOURS, has_quality=False, has_airflow_options=False)
        (scenario.airflow.home / "pipelines" / f"{PLAIN}.yaml").write_text(settings)
        for hour in range(HOURS):
            scenario.write_inputs(hour)
        scenario.wait_for_end(HOURS - 1)
        print_step(f"the slices of {NAME} are committed")
        dag = f"{PLAIN}__slice"
        wait_for(lambda: scenario.airflow.get(f"dags?dag_id_pattern={dag}")["dags"], 300, f"no {dag}")
        scenario.airflow.send("POST", "pools", name=PLAIN, slots=1)
        scenario.set_paused(dag, paused=False)
        wait_for(
            lambda: len(scenario.read_ledger(PLAIN)) == HOURS, HOURS * SLICE_TIMEOUT, f"{dag} did not end", every=2
        )
        wait_for(
            lambda: all(run["state"] == "success" for run in scenario.airflow.list_runs(dag)), 60, f"{dag} did not end"
        )
        print_step(f"the slices of {PLAIN} are committed")
        scenario.print_times()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # lets context managers end all processes
    measure(Path(tempfile.mkdtemp(prefix="tidemark-cost-")), create_step_printer())
