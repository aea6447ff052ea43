"""Run a pipeline on all services through a night of faults, and print each step."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from secrets import token_urlsafe
from urllib.parse import quote

import psutil
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.conftest import PROJECT
from tests.e2e.orders import HOUR, SIDES, START, InputWriter, create_pipeline_yaml
from tests.e2e.services import Airflow, run_postgres
from tests.processes import wait_for
from tests.spark.sample_lake import read_rows
from tests.spark.standalone_cluster import get_json, run_cluster

NAME, BACKFILLED = "orders", "backfilled"
SLICE_TIMEOUT = 600
"""Seconds that a slice may take; a busy machine needs a tenth."""
MISSED_DEADLINE = f"{NAME}: a run missed its deadline"


def format_start(hour):
    """Format the start of an hour's slice."""
    return (START + hour * HOUR).strftime("%Y-%m-%dT%H:%MZ")


class Scenario:
    """Steps of a scenario on running services; each step checks and prints its outcome."""

    def __init__(self, lake, hours, airflow, history, print_step):
        """Create the scenario; `history` is the address of Spark's history server."""
        self.lake, self.hours, self.airflow, self.history = lake, hours, airflow, history
        self.print_step = print_step
        self.inputs = InputWriter(lake, hours)

    def read_ledger(self, name=NAME):
        """Return the rows of the ledger in the order of commits."""
        with suppress(TableNotFoundError):
            rows = DeltaTable(str(self.lake / name / "ledger")).to_pyarrow_table().to_pylist()
            return sorted(rows, key=lambda row: (row["commit"], row["slice"]))
        return []

    def count_attempts(self, hour):
        """Count the commits of a slice."""
        return sum(row["slice"] == START + hour * HOUR for row in self.read_ledger())

    def find_run(self, hour, dag=f"{NAME}__slice"):
        """Find Airflow's run of a slice, None if there is none yet."""
        start = START + hour * HOUR
        for run in self.airflow.list_runs(dag):
            if datetime.fromisoformat(run["data_interval_start"]) == start:
                return run
        return None

    def get_task_state(self, hour, task):
        """Return the state of a task of a slice's run."""
        run = self.find_run(hour)
        return run and self.airflow.get_tasks(f"{NAME}__slice", run["dag_run_id"])[task]["state"]

    def set_paused(self, dag, *, paused):
        """Pause or unpause a DAG."""
        self.airflow.send("PATCH", f"dags/{dag}", is_paused=paused)

    def wait_for_end(self, hour, state="success"):
        """Wait for the end of a slice's run; return the run."""

        def find_ended_run():
            run = self.find_run(hour)
            return run if run and run["state"] in {"success", "failed"} else None

        run = wait_for(find_ended_run, SLICE_TIMEOUT, f"slice {format_start(hour)} did not end", every=2)
        assert run["state"] == state, f"slice {format_start(hour)}: {run['state']}"
        return run

    def write_inputs(self, hour):
        """Write the rows of an hour to both inputs."""
        for side in SIDES:
            self.inputs.write_hour(side, hour)

    def check_slice_waits_for_both_inputs(self, hour):
        """Check that a slice is deferred until both inputs are complete, and that its deadline calls back."""
        wait_for(lambda: self.get_task_state(hour, "wait") == "deferred", 120, "no slice waited")
        self.print_step(
            f"slice {format_start(hour)} waits, deferred; no driver runs: {len(self.airflow.find_drivers()) == 0}"
        )
        assert not self.airflow.find_drivers()
        wait_for(lambda: self.is_in_logs(MISSED_DEADLINE), 120, "no deadline called back")
        self.print_step(f"its deadline of 20 s has called back, in the triggerer's log: {MISSED_DEADLINE!r}")
        rows = self.inputs.write_hour("left", hour)
        time.sleep(6)
        assert self.get_task_state(hour, "wait") == "deferred"
        self.print_step(f"{rows} left rows are written, after the slice's end: it waits for the right ones")
        rows = self.inputs.write_hour("right", hour)
        self.print_step(f"{rows} right rows are written")
        self.wait_for_end(hour)
        self.print_step(f"slice {format_start(hour)} is committed, {self.summarize(hour)}")

    def is_in_logs(self, text):
        """True if a service or a task has logged a text."""
        logs = [*self.airflow.home.glob("*.log"), *(self.airflow.home / "logs").rglob("*.log")]
        return any(text in log.read_text(errors="replace") for log in logs)

    def summarize(self, hour):
        """Return attempt, row counts and quality of a slice according to the ledger."""
        row = [row for row in self.read_ledger() if row["slice"] == START + hour * HOUR][-1]
        late = sum(row[side]["late"] for side in SIDES)
        return f"attempt {row['attempt']}, {row['emissions']} emissions, {late} rows late, quality {row['quality']}"

    def run_slice(self, hour):
        """Run a slice without a fault."""
        self.write_inputs(hour)
        self.wait_for_end(hour)
        self.print_step(f"slice {format_start(hour)}: rows are written, committed, {self.summarize(hour)}")

    def kill_driver_before_commit(self, hour, meanwhile=lambda: None):
        """Kill a driver that has written files but committed nothing; check that Airflow's second try commits."""
        folder = self.lake / NAME

        def list_files(table="*"):
            return {*folder.glob(f"{table}/run=*/*/*.parquet")}

        before = list_files()
        self.write_inputs(hour)
        wait_for(lambda: list_files("emissions") - before, SLICE_TIMEOUT, "no job wrote rows", every=0.02)
        killed = self.airflow.find_drivers()
        for driver in killed:
            with suppress(psutil.NoSuchProcess):
                driver.kill()
        committed = self.count_attempts(hour)
        tables = sorted({path.relative_to(folder).parts[0] for path in list_files() - before})
        self.print_step(
            f"slice {format_start(hour)}: its driver ({len(killed)} processes) is killed; it has written files of "
            f"{' and '.join(tables)}, and committed nothing"
        )
        assert killed
        assert committed == 0
        meanwhile()
        run = self.wait_for_end(hour)
        tries = self.airflow.get_tasks(f"{NAME}__slice", run["dag_run_id"])["run"]["try_number"]
        assert tries == 2
        self.print_step(f"slice {format_start(hour)}: try {tries} is committed, {self.summarize(hour)}")

    def start_reprocess(self, hour):
        """Start a reprocess by the REST API while another slice is retried; return its run.

        Both use the pool of the pipeline, which runs one at a time.
        """
        conf = {"from": format_start(hour), "to": format_start(hour + 1), "dry_run": False}
        dag = f"{NAME}__reprocess"
        self.set_paused(dag, paused=False)
        run = self.airflow.send("POST", f"dags/{dag}/dagRuns", logical_date=None, conf=conf)["dag_run_id"]
        self.print_step(f"over the REST API: reprocess {conf['from']} to {conf['to']}")
        return run

    def wait_for_reprocess(self, run, first):
        """Wait for the end of a reprocess, and check that it has committed slice `first` again."""
        assert wait_for(lambda: self.find_end_state(f"{NAME}__reprocess", run), SLICE_TIMEOUT) == "success"
        attempts = {row["slice"].strftime("%H:%M"): row["attempt"] for row in self.read_ledger() if row["attempt"] > 1}
        self.print_step(
            f"the reprocess has ended; attempts by slice: {attempts}; "
            f"slice {format_start(first)}: {self.summarize(first)}"
        )
        assert self.count_attempts(first) == 2

    def fail_slice_by_quality(self, hour):
        """Check that a slice with an invalid row fails without a retry; return the failed run."""
        self.inputs.write_invalid_row("left", hour)
        self.write_inputs(hour)
        run = self.wait_for_end(hour, "failed")
        tries = self.airflow.get_tasks(f"{NAME}__slice", run["dag_run_id"])["run"]["try_number"]
        rejected = DeltaTable(str(self.lake / NAME / "rejected_output")).to_pyarrow_table().num_rows
        self.print_step(
            f"slice {format_start(hour)} breaks an expectation: failed at try {tries}, {rejected} rows refused"
        )
        assert (tries, self.count_attempts(hour)) == (1, 0)
        return run["dag_run_id"]

    def check_next_slice_waits(self, hour):
        """Check that a slice with complete inputs does not run after a failed slice."""
        self.write_inputs(hour)
        wait_for(lambda: self.airflow.get(f"dags/{NAME}__slice")["is_paused"], 60, "the DAG did not pause itself")
        time.sleep(5)
        assert self.find_run(hour) is None
        self.print_step(f"the DAG has paused itself; slice {format_start(hour)}, whose rows are there, does not run")

    def waive_and_clear(self, hour, run, on_question=lambda *_: None):
        """Approve a waiver of the failed expectation, check that the slice is committed, and continue after it.

        Args:
            hour: The slice.
            run: Its failed run.
            on_question: Function that is called with DAG and run while the question waits for an answer.
        """
        self.run_with_approval("waive", on_question, reason="a return, known")
        assert self.count_attempts(hour) == 1
        self.print_step(f"slice {format_start(hour)} is committed, {self.summarize(hour)}")
        self.airflow.send("POST", f"dags/{NAME}__slice/dagRuns/{run}/clear", dry_run=False)
        self.set_paused(f"{NAME}__slice", paused=False)
        self.wait_for_end(hour)
        assert self.get_task_state(hour, "run") == "skipped"
        self.print_step(f"the failed run of slice {format_start(hour)} is cleared: it has nothing to run")

    def run_with_approval(self, kind, on_question=lambda *_: None, **fields):
        """Start a DAG by the REST API, approve what it shows, and wait for its end."""
        dag = f"{NAME}__{kind}"
        self.set_paused(dag, paused=False)
        run = self.airflow.send("POST", f"dags/{dag}/dagRuns", logical_date=None)["dag_run_id"]
        question = f"dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/approve/-1/hitlDetails"

        def is_asked():
            return self.airflow.get_tasks(dag, run)["approve"]["state"] == "awaiting_input"

        def approve_until_end():
            # Airflow can lose an answer that comes within a loop of its scheduler, and asks again.
            if is_asked():
                self.airflow.send("PATCH", question, chosen_options=["Approve"], params_input=fields)
            return self.find_end_state(dag, run)

        wait_for(is_asked, SLICE_TIMEOUT, f"{dag} did not ask", every=2)
        title = self.airflow.get(question)["body"].splitlines()[0].strip("*")
        self.print_step(f"{dag} waits for a person: {title}")
        on_question(dag, run)
        assert wait_for(approve_until_end, SLICE_TIMEOUT, f"{dag} did not end", every=2) == "success"
        person = self.airflow.get(question)["responded_by_user"]["name"]
        self.print_step(f"{person} has approved over the REST API, and {dag} has ended")

    def find_end_state(self, dag, run):
        """Return the state of a run that has ended, None for another."""
        state = self.airflow.get(f"dags/{dag}/dagRuns/{quote(run, safe='')}")["state"]
        return state if state in {"success", "failed"} else None

    def check_consumer_runs(self, name, times, event):
        """Check how often the consumer of a pipeline's whole days has run for the day of all slices."""
        dag, day = f"{name}__daily_example", START.date().isoformat()

        def list_ended_runs():
            runs = self.airflow.list_runs(dag)
            return runs if len(runs) >= times and all(run["state"] in {"success", "failed"} for run in runs) else None

        runs = wait_for(list_ended_runs, 300, f"{dag} did not run", every=2) if times else self.airflow.list_runs(dag)
        assert [(run["partition_key"], run["state"]) for run in runs] == [(day, "success")] * times
        count = "not run" if not times else "run once" if times == 1 else f"run {times} times"
        self.print_step(f"{event}: {dag} has {count} for {day}")

    def start_consumer(self, name):
        """Start the consumer for the day of all slices by the REST API, without an event."""
        day = START.date().isoformat()
        self.airflow.send("POST", f"dags/{name}__daily_example/dagRuns", logical_date=None, partition_key=day)

    def repair_late_arriving_rows(self, hour):
        """Write rows of a committed slice, approve their repair, and check that the slice has run again."""
        count = self.inputs.write_late_arriving_rows("right", hour)
        self.print_step(f"{count} late-arriving right rows of {format_start(hour)} are written")
        self.run_with_approval("repair")
        assert self.count_attempts(hour) == 2
        self.print_step(f"slice {format_start(hour)}: {self.summarize(hour)}")

    def backfill_in_order(self, hours):
        """Backfill a new pipeline with Airflow's own command, and check the order of its slices."""
        dag, last = f"{BACKFILLED}__slice", START + (hours - 1) * HOUR
        options = ["--dag-id", dag, "--from-date", START.isoformat(), "--to-date", last.isoformat()]
        options += ["--reprocess-behavior", "failed"]  # required by Airflow for DAGs with depends_on_past
        process = self.airflow.run_command("backfill", "create", *options)
        assert process.returncode == 0, process.stderr
        self.print_step(f"airflow backfill create {' '.join(options)}")
        self.set_paused(dag, paused=False)

        def list_ended_runs():
            runs = self.airflow.list_runs(dag)
            return runs if all(run["state"] in {"success", "failed"} for run in runs) else None

        runs = wait_for(list_ended_runs, hours * SLICE_TIMEOUT, "the backfill did not end", every=2)
        assert [(run["run_type"], run["state"]) for run in runs] == [("backfill", "success")] * hours
        committed = [row["slice"] for row in self.read_ledger(BACKFILLED)]
        assert committed == [START + hour * HOUR for hour in range(hours)]
        self.print_step(
            f"the backfill has ended; committed, in this order: {', '.join(f'{at:%H:%M}' for at in committed)}"
        )

    def compare_with_single_job(self):
        """Check that both tables have the rows of a single local job over all hours."""
        with tempfile.TemporaryDirectory() as folder:
            local_lake, file = Path(folder) / "lake", Path(folder) / f"{NAME}.yaml"
            for side in SIDES:
                shutil.copytree(self.lake / side, local_lake / side)
            file.write_text(create_pipeline_yaml(NAME, self.hours, has_quality=False))
            self.run_tidemark("run", "--slices-per-job", str(self.hours), file=file, lake=local_lake)
            for table in ("emissions", "late"):
                rows, expected = read_rows(self.lake / NAME / table), read_rows(local_lake / NAME / table)
                assert rows == expected, f"{table}: {rows - expected} and {expected - rows}"
                self.print_step(
                    f"a plain read of {table}: {rows.total()} rows, those of one job over all {self.hours} hours"
                )
                assert rows.total() > 10

    def run_tidemark(self, command, *options, file=None, lake=None):
        """Run a Tidemark command to its end; return its output."""
        script = "import sys; from tidemark.cli import main; sys.exit(main(sys.argv[1:]))"
        path = file or self.airflow.home / "pipelines" / f"{NAME}.yaml"
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK_"))}
        process = subprocess.run(
            [sys.executable, "-c", script, *command.split(), path, "--lake", lake or self.lake, *options],
            env=env | {"PYTHONPATH": str(PROJECT / "include")}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        return process.stdout

    def print_times(self):
        """Print how long the tasks of each slice took, by Airflow's records, and when the ledger had the slice."""
        self.print_step(
            "seconds of a slice that ran at its first try: its tasks (wait: deferred, too), between them, and from the "
            "start of its run to its commit"
        )
        for name in sorted(file.stem for file in (self.airflow.home / "pipelines").iterdir()):
            commits = {row["slice"]: row["committed_at"] for row in reversed(self.read_ledger(name))}
            for run in self.airflow.list_runs(f"{name}__slice"):
                tasks = self.airflow.get_tasks(f"{name}__slice", run["dag_run_id"])
                if tasks["run"]["try_number"] == 1 and tasks["run"]["state"] == "success":
                    committed_at = commits[datetime.fromisoformat(run["data_interval_start"])]
                    times = _format_times(run, tasks, committed_at)
                    self.print_step(f"  {name} {run['data_interval_start'][11:16]}: {times}")


def _format_times(run, tasks, committed_at):
    """Format the seconds of each task of a run, between tasks, and from the run's start to the slice's commit."""
    times = {name: [datetime.fromisoformat(task[f"{edge}_date"]) for edge in ("start", "end")]
             for name, task in tasks.items() if name != "done"}  # fmt: skip
    seconds = {name: (end - start).total_seconds() for name, (start, end) in times.items()}
    edges = [times["wait"][1], *times["run"], *times["report"], datetime.fromisoformat(run["end_date"])]
    between = sum((after - before).total_seconds() for before, after in zip(edges[::2], edges[1::2], strict=True))
    until_commit = (committed_at - datetime.fromisoformat(run["start_date"])).total_seconds()
    tasks_seconds = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("wait", "run", "report"))
    return f"{tasks_seconds}; between {between:.1f}; committed after {until_commit:.1f}"


@contextmanager
def start_scenario(home, hours, backfilled, print_step):
    """Start all services for the block.

    Args:
        home: Folder for the lake, logs and pipeline files.
        hours: Number of slices of the pipeline.
        backfilled: Number of slices of a second pipeline, 0 for none.
        print_step: Function that prints a line.

    Yields:
        The scenario on the running services.
    """
    home, lake, password = Path(home), Path(home) / "lake", token_urlsafe(16)
    pipelines = home / "airflow" / "pipelines"
    pipelines.mkdir(parents=True)
    (home / "cluster").mkdir()
    for name, number in ((NAME, hours), (BACKFILLED, backfilled)):
        if number:
            (pipelines / f"{name}.yaml").write_text(create_pipeline_yaml(name, number, has_quality=name == NAME))
    InputWriter(lake, hours).create_tables()
    with ExitStack() as stack:
        cluster = stack.enter_context(run_cluster(home / "cluster"))
        workers = len(get_json(cluster["master"])["workers"])
        print_step(f"a standalone Spark master and {workers} workers are up")
        database_port = stack.enter_context(run_postgres(password))
        print_step("Postgres is up")
        variables = {name: value for name, value in cluster["env"].items() if name != "TIDEMARK_MASTER"}
        variables |= {
            "TIDEMARK_LAKE": str(lake),
            "TIDEMARK_PIPELINES": str(pipelines),
            "TIDEMARK_JARS": str(PROJECT / ".jars"),
            "AIRFLOW__TIDEMARK__SPARK_HISTORY_URL": cluster["history"],
        }
        variables |= {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"}
        airflow = stack.enter_context(Airflow(home / "airflow", database_port, password, variables).run())
        pools = ", ".join(pool["name"] for pool in airflow.get("pools")["pools"])
        print_step(f"Airflow's API server, dag-processor, triggerer and scheduler are up, and healthy; pools: {pools}")
        scenario = Scenario(lake, hours, airflow, cluster["history"], print_step)
        consumers = [f"{name}__daily_example" for name in (NAME, *([BACKFILLED] if backfilled else []))]
        dags = [f"{NAME}__slice", f"{NAME}__reprocess", *([f"{BACKFILLED}__slice"] if backfilled else []), *consumers]
        wait_for(lambda: {*dags} <= {dag["dag_id"] for dag in airflow.get("dags?limit=100")["dags"]}, 120, "no DAGs")
        for dag in (f"{NAME}__slice", *consumers):
            scenario.set_paused(dag, paused=False)
        print_step(f"{NAME}__slice is unpaused; its inputs have no rows yet past {format_start(0)}")
        yield scenario


def run_short(home, print_step):
    """Run two slices: the first waits for its inputs, and the driver of the second is killed."""
    with start_scenario(home, 2, 0, print_step) as scenario:
        scenario.check_slice_waits_for_both_inputs(0)
        scenario.kill_driver_before_commit(1)
        scenario.compare_with_single_job()
        scenario.print_times()


def run_full(home, print_step):
    """Run six slices with all faults, a waiver and a repair that a person approves, and a backfill."""
    with start_scenario(home, 6, 3, print_step) as scenario:
        scenario.check_slice_waits_for_both_inputs(0)
        scenario.run_slice(1)
        count = scenario.inputs.write_late_arriving_rows("left", 1)
        print_step(f"{count} late-arriving left rows of {format_start(1)} are written after their slice's commit")
        reprocess_runs = []
        scenario.kill_driver_before_commit(2, lambda: reprocess_runs.append(scenario.start_reprocess(1)))
        scenario.wait_for_reprocess(reprocess_runs[0], 1)
        scenario.run_slice(3)
        failed_run = scenario.fail_slice_by_quality(4)
        scenario.check_next_slice_waits(5)
        scenario.check_consumer_runs(NAME, 0, "two slices of the day are missing")
        scenario.waive_and_clear(4, failed_run)
        scenario.wait_for_end(5)
        print_step(f"slice {format_start(5)} is committed, {scenario.summarize(5)}")
        scenario.check_consumer_runs(NAME, 1, "the last slice of the day is committed")
        scenario.repair_late_arriving_rows(5)
        scenario.check_consumer_runs(NAME, 2, "a slice of the day has run again")
        scenario.start_consumer(NAME)
        scenario.check_consumer_runs(NAME, 3, "it is started for the day over the REST API")
        scenario.backfill_in_order(3)
        scenario.check_consumer_runs(BACKFILLED, 1, "the backfill has committed a day")
        scenario.compare_with_single_job()
        scenario.print_times()


def create_step_printer(out=sys.stdout):
    """Create a function that prints lines with the minutes and seconds since now."""
    started = time.monotonic()

    def print_step(line):
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        out.write(f"{minutes:02}:{seconds:02}  {line}\n")
        out.flush()

    return print_step
