"""Print a pool of one slot per pipeline, as input of `airflow pools import`.

The pool keeps slices, ranges and reprocessing of a pipeline from running at the same time. A pool that a pipeline file
names is left to Airflow's administrator: an import would change its slots.
Usage: `python -m tidemark.airflow.pools [PROJECT]`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tidemark.airflow.project import Project


def create_pools(project: Project) -> dict[str, dict[str, object]]:
    """Return a pool of one slot per pipeline whose file names none, by pool name."""
    return {
        pipeline.name: {
            "slots": 1,
            "description": f"jobs of pipeline {pipeline.name}",
            "include_deferred": False,
        }
        for pipeline in project.pipelines()[0].values()
        if pipeline.airflow.pool is None
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    sys.stdout.write(json.dumps(create_pools(Project(folder)), indent=1))
