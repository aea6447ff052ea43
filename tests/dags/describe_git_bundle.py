"""Print the DAGs of a git bundle before and after a commit, and the version of the bundle, as JSON in the last line.

Arguments: the repository, and a pipeline file in it, to which a line is added between both.
"""

import json
import subprocess
import sys
from pathlib import Path

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag

repository, file = map(Path, sys.argv[1:])


def describe(bundle):
    """Return version, DAGs and import errors of a bundle, and the pipeline file that its job reads."""
    bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    arguments = bag.dags["p__range"].get_task("run").application_args
    return {
        "version": bundle.get_current_version().version,
        "dags": sorted(bag.dags),
        "errors": bag.import_errors,
        "owner": bag.dags["p__range"].owner,
        "file": arguments[1],
        "text": Path(arguments[1]).read_text(),
    }


manager = DagBundlesManager()
[bundle] = manager.get_all_dag_bundles()
bundle.initialize()
states = [describe(bundle)]
with file.open("a") as stream:
    stream.write("airflow: {owner: later}\n")
subprocess.run(["git", "-C", repository, "commit", "--quiet", "--all", "--message", "Change the owner"], check=True)
bundle.refresh()
states.append(describe(bundle))
pinned = manager.get_bundle(bundle.name, version=states[0]["version"])
pinned.initialize()
states.append(describe(pinned))
sys.stdout.write("\n" + json.dumps(states))
