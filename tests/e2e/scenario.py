"""What happens to a pipeline in an eventful night, told as it happens."""

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

import psutil
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.conftest import PROJECT
from tests.e2e.orders import HOUR, SIDES, START, Feed, pipeline
from tests.e2e.services import Airflow, postgres
from tests.processes import until
from tests.spark.clusters import ask, standalone
from tests.spark.lakes import read

NAME, BACKFILLED = "orders", "backfilled"
A_SLICE = 600
"""Seconds that a slice may take, of which a busy machine needs a tenth."""
MISSED = f"{NAME}: a run is not over by its deadline"


def instant(hour):
    """When a slice starts."""
    return (START + hour * HOUR).strftime("%Y-%m-%dT%H:%MZ")


class Story:
    """The parts, running, and what is done to them step by step; each step says in a line what came of it."""

    def __init__(self, lake, hours, airflow, history, say):
        """`history` is the address of Spark's history server."""
        self.lake, self.hours, self.airflow, self.history, self.say = lake, hours, airflow, history, say
        self.feed = Feed(lake, hours)

    def ledger(self, name=NAME):
        """The rows of the ledger, in the order of commits."""
        with suppress(TableNotFoundError):
            rows = DeltaTable(str(self.lake / name / "ledger")).to_pyarrow_table().to_pylist()
            return sorted(rows, key=lambda row: (row["commit"], row["slice"]))
        return []

    def attempts(self, hour):
        """How often a slice has been committed."""
        return sum(row["slice"] == START + hour * HOUR for row in self.ledger())

    def run_of(self, hour, dag=f"{NAME}__slice"):
        """Airflow's run of a slice, None before it."""
        start = START + hour * HOUR
        found = (run for run in self.airflow.runs(dag) if datetime.fromisoformat(run["data_interval_start"]) == start)
        return next(found, None)

    def state(self, hour, task):
        """The state of a task of a slice's run."""
        run = self.run_of(hour)
        return run and self.airflow.tasks(f"{NAME}__slice", run["dag_run_id"])[task]["state"]

    def pause(self, dag, *, paused):
        """Pause a DAG, or let it go on."""
        self.airflow.send("PATCH", f"dags/{dag}", is_paused=paused)

    def ended(self, hour, state="success"):
        """Wait for the end of a slice's run."""

        def over():
            run = self.run_of(hour)
            return run if run and run["state"] in {"success", "failed"} else None

        run = until(over, A_SLICE, f"slice {instant(hour)} did not end", every=2)
        assert run["state"] == state, f"slice {instant(hour)}: {run['state']}"
        return run

    def land(self, hour):
        """Both inputs, one after the other."""
        for side in SIDES:
            self.feed.land(side, hour)

    def slice_waits_for_its_inputs(self, hour):
        """It is deferred; one input alone does not let it go, and the deadline calls back meanwhile."""
        until(lambda: self.state(hour, "wait") == "deferred", 120, "no slice waited")
        self.say(f"slice {instant(hour)} waits, deferred; no driver runs: {len(self.airflow.drivers()) == 0}")
        assert not self.airflow.drivers()
        until(lambda: self.seen_in_logs(MISSED), 120, "no deadline called back")
        self.say(f"its deadline of 20 s has called back, in the triggerer's log: {MISSED!r}")
        rows = self.feed.land("left", hour)
        time.sleep(6)
        assert self.state(hour, "wait") == "deferred"
        self.say(f"{rows} left rows land, past the slice's end: it waits on, for the right ones")
        rows = self.feed.land("right", hour)
        self.say(f"{rows} right rows land")
        self.ended(hour)
        self.say(f"slice {instant(hour)} is committed, {self.told(hour)}")

    def seen_in_logs(self, text):
        """Whether a service or a task has logged this."""
        logs = [*self.airflow.home.glob("*.log"), *(self.airflow.home / "logs").rglob("*.log")]
        return any(text in log.read_text(errors="replace") for log in logs)

    def told(self, hour):
        """What the ledger says of a slice."""
        row = [row for row in self.ledger() if row["slice"] == START + hour * HOUR][-1]
        late = sum(row[side]["late"] for side in SIDES)
        return f"attempt {row['attempt']}, {row['emissions']} emissions, {late} rows late, quality {row['quality']}"

    def slice_runs(self, hour):
        """Nothing happens to it."""
        self.land(hour)
        self.ended(hour)
        self.say(f"slice {instant(hour)}: rows landed, committed, {self.told(hour)}")

    def driver_is_killed_half_way(self, hour, meanwhile=lambda: None):
        """Its rows are written, and nothing refers to them yet: SIGKILL. Airflow tries it again."""
        folder = self.lake / NAME

        def written(tables="*"):
            return {*folder.glob(f"{tables}/run=*/*/*.parquet")}

        before = written()
        self.land(hour)
        until(lambda: written("emissions") - before, A_SLICE, "no job wrote rows", every=0.02)
        killed = self.airflow.drivers()
        for one in killed:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        committed = self.attempts(hour)
        left = sorted({path.relative_to(folder).parts[0] for path in written() - before})
        self.say(
            f"slice {instant(hour)}: its driver ({len(killed)} processes) is killed; it has written files of "
            f"{' and '.join(left)}, and committed nothing"
        )
        assert killed
        assert committed == 0
        meanwhile()
        run = self.ended(hour)
        tries = self.airflow.tasks(f"{NAME}__slice", run["dag_run_id"])["run"]["try_number"]
        assert tries == 2
        self.say(f"slice {instant(hour)}: try {tries} is committed, {self.told(hour)}")

    def range_is_reprocessed(self, hour):
        """By the REST API, while another slice is tried again: the pool lets them take turns."""
        conf = {"from": instant(hour), "to": instant(hour + 1), "dry_run": False}
        dag = f"{NAME}__reprocess"
        self.pause(dag, paused=False)
        run = self.airflow.send("POST", f"dags/{dag}/dagRuns", logical_date=None, conf=conf)["dag_run_id"]
        self.say(f"over the REST API: reprocess {conf['from']} to {conf['to']}")
        return run

    def reprocess_ended(self, run, first):
        """It has taken the rows that landed after their slice."""
        path = f"dags/{NAME}__reprocess/dagRuns/{run}"
        over = until(lambda: (found := self.airflow.get(path))["state"] in {"success", "failed"} and found, A_SLICE)
        assert over["state"] == "success"
        again = {row["slice"].strftime("%H:%M"): row["attempt"] for row in self.ledger() if row["attempt"] > 1}
        self.say(f"the reprocess has ended; attempts by slice: {again}; slice {instant(first)}: {self.told(first)}")
        assert self.attempts(first) == 2

    def quality_stops_a_slice(self, hour):
        """It fails, and is not tried again; the failed run."""
        self.feed.spoil("left", hour)
        self.land(hour)
        run = self.ended(hour, "failed")
        tries = self.airflow.tasks(f"{NAME}__slice", run["dag_run_id"])["run"]["try_number"]
        refused = DeltaTable(str(self.lake / NAME / "rejected_output")).to_pyarrow_table().num_rows
        self.say(f"slice {instant(hour)} breaks an expectation: failed at try {tries}, {refused} rows refused")
        assert (tries, self.attempts(hour)) == (1, 0)
        return run["dag_run_id"]

    def next_slice_waits(self, hour):
        """Its rows are there, and the one before it is not."""
        self.land(hour)
        until(lambda: self.airflow.get(f"dags/{NAME}__slice")["is_paused"], 60, "the DAG did not pause itself")
        time.sleep(5)
        assert self.run_of(hour) is None
        self.say(f"the DAG has paused itself; slice {instant(hour)}, whose rows are there, does not run")

    def waiver_lets_through(self, hour, run):
        """Somebody waives the expectation, and clears the failed run."""
        because = ["--expectation", "left_v", "--reason", "a return, known", "--user", "night shift"]
        waived = self.tidemark("waive", "--slice", instant(hour), *because)
        self.say(f"tidemark waive: {' '.join(waived.split())}")
        self.airflow.send("POST", f"dags/{NAME}__slice/dagRuns/{run}/clear", dry_run=False)
        self.pause(f"{NAME}__slice", paused=False)
        until(lambda: self.attempts(hour), A_SLICE, "the slice was not committed", every=2)
        self.ended(hour)
        self.say(f"slice {instant(hour)}, cleared, is committed, {self.told(hour)}")

    def backfill_runs_in_order(self, hours):
        """Airflow's own, of a pipeline of which nothing has run."""
        dag, last = f"{BACKFILLED}__slice", START + (hours - 1) * HOUR
        asked = ["--dag-id", dag, "--from-date", START.isoformat(), "--to-date", last.isoformat()]
        asked += ["--reprocess-behavior", "failed"]  # without it Airflow refuses a DAG whose runs wait for one another
        done = self.airflow.command("backfill", "create", *asked)
        assert done.returncode == 0, done.stderr
        self.say(f"airflow backfill create {' '.join(asked)}")
        self.pause(dag, paused=False)

        def over():
            runs = self.airflow.runs(dag)
            return runs if all(run["state"] in {"success", "failed"} for run in runs) else None

        runs = until(over, hours * A_SLICE, "the backfill did not end", every=2)
        assert [(run["run_type"], run["state"]) for run in runs] == [("backfill", "success")] * hours
        committed = [row["slice"] for row in self.ledger(BACKFILLED)]
        assert committed == [START + hour * HOUR for hour in range(hours)]
        self.say(f"the backfill has ended; committed, in this order: {', '.join(f'{at:%H:%M}' for at in committed)}")

    def tables_are_one_job_s(self):
        """A plain read of both tables, beside that of one job over all rows on this machine alone."""
        with tempfile.TemporaryDirectory() as folder:
            alone, file = Path(folder) / "lake", Path(folder) / f"{NAME}.yaml"
            for side in SIDES:
                shutil.copytree(self.lake / side, alone / side)
            file.write_text(pipeline(NAME, self.hours, judged=False))
            self.tidemark("run", "--slices-per-job", str(self.hours), file=file, lake=alone)
            for table in ("emissions", "late"):
                ours, theirs = read(self.lake / NAME / table), read(alone / NAME / table)
                assert ours == theirs, f"{table}: {ours - theirs} and {theirs - ours}"
                self.say(f"a plain read of {table}: {ours.total()} rows, those of one job over all {self.hours} hours")
                assert ours.total() > 10

    def tidemark(self, command, *options, file=None, lake=None):
        """Run a command of Tidemark's in a shell of this machine; what it said."""
        script = "import sys; from tidemark.cli import main; sys.exit(main(sys.argv[1:]))"
        path = file or self.airflow.home / "pipelines" / f"{NAME}.yaml"
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK_"))}
        done = subprocess.run(
            [sys.executable, "-c", script, command, path, "--lake", lake or self.lake, *options],
            env=env | {"PYTHONPATH": str(PROJECT / "include")}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def times(self):
        """Where the time of a slice went, by Airflow's own records."""
        self.say("seconds of a slice that ran at its first try: its tasks (wait: deferred, too), and between them")
        there = (self.airflow.home / "pipelines").iterdir()
        for name in sorted(file.stem for file in there):
            for run in self.airflow.runs(f"{name}__slice"):
                tasks = self.airflow.tasks(f"{name}__slice", run["dag_run_id"])
                if tasks["run"]["try_number"] == 1 and tasks["run"]["state"] == "success":
                    self.say(f"  {name} {run['data_interval_start'][11:16]}: {_spent(run, tasks)}")


def _spent(run, tasks):
    at = {name: [datetime.fromisoformat(task[f"{edge}_date"]) for edge in ("start", "end")]
          for name, task in tasks.items()}  # fmt: skip
    took = {name: (end - start).total_seconds() for name, (start, end) in at.items()}
    steps = [at["wait"][1], *at["run"], *at["report"], datetime.fromisoformat(run["end_date"])]
    between = sum((after - before).total_seconds() for before, after in zip(steps[::2], steps[1::2], strict=True))
    return f"wait {took['wait']:.1f}, run {took['run']:.1f}, report {took['report']:.1f}; between {between:.1f}"


@contextmanager
def started(home, hours, backfilled, say):
    """A story whose parts run."""
    home, lake, password = Path(home), Path(home) / "lake", token_urlsafe(16)
    pipelines = home / "airflow" / "pipelines"
    pipelines.mkdir(parents=True)
    (home / "cluster").mkdir()
    for name, number in ((NAME, hours), (BACKFILLED, backfilled)):
        if number:
            (pipelines / f"{name}.yaml").write_text(pipeline(name, number, judged=name == NAME))
    Feed(lake, hours).begin()
    with ExitStack() as stack:
        cluster = stack.enter_context(standalone(home / "cluster"))
        workers = len(ask(cluster["master"])["workers"])
        say(f"a standalone Spark master and {workers} workers are up")
        database = stack.enter_context(postgres(password))
        say("Postgres is up")
        given = {name: value for name, value in cluster["env"].items() if name != "TIDEMARK_MASTER"}
        given |= {
            "TIDEMARK_LAKE": str(lake),
            "TIDEMARK_PIPELINES": str(pipelines),
            "TIDEMARK_JARS": str(PROJECT / ".jars"),
        }
        given |= {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"}
        airflow = stack.enter_context(Airflow(home / "airflow", database, password, given).running())
        told = ", ".join(one["name"] for one in airflow.get("pools")["pools"])
        say(f"Airflow's API server, dag-processor, triggerer and scheduler are up, and healthy; pools: {told}")
        story = Story(lake, hours, airflow, cluster["history"], say)
        dags = [f"{NAME}__slice", f"{NAME}__reprocess", *([f"{BACKFILLED}__slice"] if backfilled else [])]
        until(lambda: {*dags} <= {dag["dag_id"] for dag in airflow.get("dags?limit=100")["dags"]}, 120, "no DAGs")
        story.pause(f"{NAME}__slice", paused=False)
        say(f"{NAME}__slice is unpaused; its inputs have no rows yet past {instant(0)}")
        yield story


def short(home, say):
    """Two slices: one waits for its inputs, of the other the driver is killed."""
    with started(home, 2, 0, say) as story:
        story.slice_waits_for_its_inputs(0)
        story.driver_is_killed_half_way(1)
        story.tables_are_one_job_s()
        story.times()


def long(home, say):
    """Six slices, with all that may happen to them, and a backfill."""
    with started(home, 6, 3, say) as story:
        story.slice_waits_for_its_inputs(0)
        story.slice_runs(1)
        say(f"{story.feed.straggle('left', 1)} left rows of {instant(1)} land after all, behind their slice")
        reprocess = []
        story.driver_is_killed_half_way(2, lambda: reprocess.append(story.range_is_reprocessed(1)))
        story.reprocess_ended(reprocess[0], 1)
        story.slice_runs(3)
        stopped = story.quality_stops_a_slice(4)
        story.next_slice_waits(5)
        story.waiver_lets_through(4, stopped)
        story.ended(5)
        say(f"slice {instant(5)} is committed, {story.told(5)}")
        story.backfill_runs_in_order(3)
        story.tables_are_one_job_s()
        story.times()


def teller(out=sys.stdout):
    """Says each line with the minutes and seconds since the beginning."""
    begun = time.monotonic()

    def say(line):
        minutes, seconds = divmod(int(time.monotonic() - begun), 60)
        out.write(f"{minutes:02}:{seconds:02}  {line}\n")
        out.flush()

    return say
