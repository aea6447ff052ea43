"""What OpenLineage is told without an Airflow: names of tables, and nothing where it is not installed."""

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


def names(datasets):
    return [(one.namespace, one.name) for one in datasets]


def test_lineage_of_s3_tables_has_bucket_and_key_and_dry_run_has_no_outputs(tmp_path):
    file = tmp_path / "orders.yaml"
    write_pipeline(file, name="orders")
    told = command_lineage(file, "s3a://lake/of/mine", ["run", str(file)])
    assert ("s3://lake", "of/mine/orders/emissions") in names(told.outputs)
    assert {namespace for namespace, _ in names(told.inputs)} == {"s3://lake"}
    assert len(told.inputs) == 2
    planned = command_lineage(file, "/lake", ["reprocess", str(file), "--dry-run"])
    assert names(planned.outputs) == []
    assert {namespace for namespace, _ in names(planned.inputs)} == {"file"}
    merged = command_lineage(file, "/lake", ["compact", str(file)])
    assert names(merged.outputs) == names(merged.inputs)
    assert [name for _, name in names(merged.outputs)] == [
        f"/lake/orders/{table}" for table in ("emissions", "late", "quality")
    ]
    vacuumed = command_lineage(file, "/lake", ["vacuum", str(file)])
    assert (vacuumed.inputs, vacuumed.outputs) == ([], []), "no row comes or goes"


def test_operators_import_without_openlineage(environment):
    command = [sys.executable, "-c", WITHOUT]
    subprocess.run(command, env=environment | {"PYTHONPATH": str(PROJECT / "include")}, check=True)
