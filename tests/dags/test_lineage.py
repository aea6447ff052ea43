"""Tests of lineage for OpenLineage: names of input and output tables."""

import subprocess
import sys

from tests.conftest import PROJECT, write_pipeline
from tidemark.airflow.lineage import command_lineage

WITHOUT = """
import sys
sys.modules["openlineage"] = sys.modules["statsd"] = None
import tidemark.airflow
assert "tidemark.airflow.lineage" not in sys.modules
"""


def list_names(datasets):
    return [(dataset.namespace, dataset.name) for dataset in datasets]


def test_command_lineage_has_input_and_output_tables_of_each_command(tmp_path):
    file = tmp_path / "orders.yaml"
    write_pipeline(file, name="orders")

    run = command_lineage(file, "s3a://bucket/some/lake", ["run", str(file)])
    assert ("s3://bucket", "some/lake/orders/emissions") in list_names(run.outputs)
    assert {namespace for namespace, _ in list_names(run.inputs)} == {"s3://bucket"}
    assert len(run.inputs) == 2

    dry_run = command_lineage(file, "/lake", ["reprocess", str(file), "--dry-run"])
    assert list_names(dry_run.outputs) == []
    assert {namespace for namespace, _ in list_names(dry_run.inputs)} == {"file"}

    compact = command_lineage(file, "/lake", ["compact", str(file)])
    assert list_names(compact.outputs) == list_names(compact.inputs)
    assert [name for _, name in list_names(compact.outputs)] == [
        f"/lake/orders/{table}" for table in ("emissions", "late", "quality")
    ]

    write_pipeline(file, name="orders", output_stream=True)
    for command in (["run", str(file)], ["compact", str(file)]):
        assert ("file", "/lake/orders/output_stream") in list_names(command_lineage(file, "/lake", command).outputs)

    release = command_lineage(file, "/lake", ["quarantine", "release", str(file)])
    assert list_names(release.inputs) == [("file", "/lake/orders/quarantined")]
    assert ("file", "/lake/orders/emissions") in list_names(release.outputs)

    vacuum = command_lineage(file, "/lake", ["tables", "vacuum", str(file)])
    assert (vacuum.inputs, vacuum.outputs) == ([], []), "vacuum changes no rows"


def test_operators_import_without_openlineage(environment):
    command = [sys.executable, "-c", WITHOUT]
    subprocess.run(command, env=environment | {"PYTHONPATH": str(PROJECT / "include")}, check=True)
