"""Cluster settings and the Spark properties that they set."""

import pytest
from pydantic import ValidationError

from tests.conftest import write_pipeline
from tidemark.config.cluster import Cluster


def test_cluster_default_sets_a_fixed_number_of_executors():
    properties = Cluster().to_spark_config()
    assert (properties["spark.executor.instances"], properties["spark.cores.max"]) == ("2", "4")
    assert properties["spark.sql.shuffle.partitions"] == "16"
    assert properties["spark.dynamicAllocation.enabled"] == "false"


def test_cluster_executor_bounds_enable_dynamic_allocation():
    properties = Cluster.model_validate({"executors": {"min": 1, "max": 5}, "executor_cores": 3}).to_spark_config()
    assert properties["spark.dynamicAllocation.enabled"] == "true"
    bounds = (properties[f"spark.dynamicAllocation.{bound}Executors"] for bound in ("min", "max"))
    assert [*bounds, properties["spark.cores.max"]] == ["1", "5", "15"]
    assert "spark.executor.instances" not in properties


@pytest.mark.parametrize(
    "settings",
    [
        {"executors": 0},
        {"executors": {"min": 2, "max": 1}},
        {"executor_memory": "4"},
        {"executor_memory": "4g\n"},
        {"shuffle_partitions": 0},
        {"spark.executor.memory": "4g"},
    ],
)
def test_cluster_invalid_setting_raises(settings):
    with pytest.raises(ValidationError):
        Cluster.model_validate(settings)


def test_cluster_does_not_affect_output(tmp_path):
    small, large = (
        write_pipeline(tmp_path / f"{cores}.yaml", cluster={"executor_cores": cores}).output_affecting_settings()
        for cores in (1, 8)
    )
    assert small == large
