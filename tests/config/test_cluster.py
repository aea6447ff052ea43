"""What a pipeline file may say of a cluster."""

import pytest
from pydantic import ValidationError

from tests.conftest import write_pipeline
from tidemark.config.cluster import Cluster


def test_a_job_takes_a_few_executors_by_default_and_not_all_that_there_is():
    settings = Cluster().spark_settings()
    assert (settings["spark.executor.instances"], settings["spark.cores.max"]) == ("2", "4")
    assert settings["spark.sql.shuffle.partitions"] == "16"
    assert settings["spark.dynamicAllocation.enabled"] == "false"


def test_it_may_take_as_many_as_there_is_work_for():
    settings = Cluster.model_validate({"executors": {"least": 1, "most": 5}, "executor_cores": 3}).spark_settings()
    assert settings["spark.dynamicAllocation.enabled"] == "true"
    bounds = (settings[f"spark.dynamicAllocation.{which}Executors"] for which in ("min", "max"))
    assert [*bounds, settings["spark.cores.max"]] == ["1", "5", "15"]
    assert "spark.executor.instances" not in settings


@pytest.mark.parametrize(
    "given",
    [
        {"executors": 0},
        {"executors": {"least": 2, "most": 1}},
        {"executor_memory": "4"},
        {"executor_memory": "4g\n"},
        {"shuffle_partitions": 0},
        {"spark.executor.memory": "4g"},
    ],
)
def test_nothing_but_sizes_and_numbers_is_taken(given):
    with pytest.raises(ValidationError):
        Cluster.model_validate(given)


def test_no_answer_depends_on_it(tmp_path):
    small, large = (
        write_pipeline(tmp_path / f"{cores}.yaml", cluster={"executor_cores": cores}).semantic_settings()
        for cores in (1, 8)
    )
    assert small == large
