"""Cases of all dialects run as lanes of few jobs; one run of all files serves all tests of this module."""

import re

import pytest
import yaml

from tests.conftest import PROJECT, write_pipeline
from tidemark.pipeline_tests import runner
from tidemark.pipeline_tests.case_file import read_case_file
from tidemark.pipeline_tests.junit import describe_failure
from tidemark.pipeline_tests.runner import run_case_files
from tidemark.spark.temporary_settings import override_settings

WINDOW = {"keys": ["k"], "window": {"tumbling": "20 minutes"}}
PIPELINES = {
    "interval": {
        "left__where": "v <> 9",
        "select": {"key": "left_k", "total": "left_v + right_v", "inverse": "1 / left_v"},
    },
    "outer": {"dialect": "flink-sql", "join__type": "left"},
    "spark": {"dialect": "spark", "join__type": "left"},
    "cogroup": {"join": {**WINDOW, "api": "cogroup"}},
    "clock": {"join": {**WINDOW, "time": "processing"}},
    "event_time": {"left__arrival": None, "right__arrival": None},
    "commit": {
        "left__arrival": "commit",
        "right__arrival": "commit",
        "left__event_time": {"column": "happened", "unit": "ms"},
    },
    "exploded": {"explode": "array(named_struct('sum', left_v + right_v))"},
}


def at(time):
    return f"2024-01-01T{time}Z"


def left(time, k="a", v=1, **more):
    return {"left": {"k": k, "v": v, "happened": at(time), **more}}


def right(time, k="a", v=10, **more):
    return {"right": {"k": k, "v": v, "happened": at(time), **more}}


PAIR = [right("00:00"), left("00:10")]
EARLY = [*PAIR, left("02:00"), right("02:00", k="b")]
BATCH = [left("03:00", v=2), right("03:00", k="b")]
LATE = [*EARLY, left("00:20", v=2)]
PASSING = {
    "interval": {
        "a pair": {"given": PAIR, "expect": {"emissions": [{"key": "a", "total": 11}], "late": []}},
        "a late row": {
            "given": LATE,
            "expect": {
                "emissions": {at("00:00"): [{"total": 11}]},
                "late": {at("02:00"): [{"left_v": 2, "reason": "late", "watermark": at("01:49:59.999")}]},
                "carried": {
                    at("00:00"): [{"left_v": 1}, {"right_v": 10}],
                    at("02:00"): [{"left_v": 1}, {"right_k": "b"}],
                },
            },
        },
        "the same in the order of times": {
            "given": {
                "left": [left("00:10", arrived=at("00:11"))["left"]],
                "right": [right("00:00", arrived=at("00:10"))["right"]],
            },
            "expect": {"emissions": [{"total": 11, "_slice": at("00:00")}]},
        },
        "slices of rows": {
            "given": [{"slice": at("03:00")}, *PAIR, {"slice": at("05:00")}, left("00:15", v=3)],
            "expect": {"emissions": {at("03:00"): [{"total": 11}], at("05:00"): [{"total": 13}]}},
        },
        "a filtered row": {"given": [right("00:00"), left("00:10", v=9)], "expect": {"emissions": [], "late": []}},
        "a null key": {"given": [left("00:10", k=None)], "expect": {"late": [{"reason": "null_key"}]}},
        "all rows drained": {"given": PAIR, "drain": True, "expect": {"carried": []}},
        "a column that no row expects yet": {"given": [*PAIR[:1], left("00:10", note="new")], "expect": {}},
        "no rows": {"given": [], "expect": {"emissions": [], "late": [], "carried": []}},
        "an error of an expression": {"given": [right("00:00"), left("00:10", v=0)], "error": "DIVIDE_BY_ZERO"},
        "another type of a key": {"given": [], "columns": {"left": {"k": "int"}}, "error": "have different types"},
        "other types": {
            "given": [right("00:00"), left("00:10")],
            "columns": {"left": {"v": "decimal(4,1)"}},
            "expect": {"emissions": [{"total": 11}]},
        },
    },
    "outer": {
        "a row without a partner": {
            "given": [left("00:10"), left("03:00", v=2), right("03:00", k="b")],
            "expect": {"emissions": [], "padded": [{"left_v": 1, "right_v": None, "_emission": "padded_left"}]},
        },
        "the end of the input": {
            "given": [*PAIR, left("00:50", v=2)],
            "drain": True,
            "expect": {"emissions": [{"left_v": 1}], "padded": [{"left_v": 2}]},
        },
    },
    "spark": {
        "a slice is a micro-batch": {
            "given": [*PAIR, {"slice": at("01:00")}, *BATCH, {"slice": at("02:00")}, left("00:15", v=3)],
            "expect": {"emissions": [{"left_v": 1, "right_v": 10}], "late": [{"left_v": 3}]},
        }
    },
    "cogroup": {
        "a window": {
            "given": [left("00:10"), left("00:12", v=2), right("00:05")],
            "drain": True,
            "expect": {"emissions": [{"left": [{"v": 2}, {"v": 1}], "right": [{"v": 10}]}]},
        }
    },
    "clock": {
        "a window by the clock": {
            "given": [left("00:10"), left("01:50", v=2), right("00:05", arrived=at("01:59")), {"slice": at("02:00")}],
            "expect": {"emissions": [{"left_v": 2, "_slice": at("02:00")}]},
        },
        "an earlier case": {"given": PAIR, "drain": True, "expect": {"emissions": [{"left_v": 1}]}},
    },
    "event_time": {
        "rows in any order": {"given": LATE, "expect": {"emissions": [{"left_v": 1}, {"left_v": 2}], "late": []}}
    },
    "commit": {
        "rows without an arrival": {"given": LATE, "expect": {"late": [{"left_v": 2}]}},
        "microseconds in a column of milliseconds": {
            "given": [*PAIR, {"left": {"k": "a", "happened": 1_704_067_800_000_000}}],
            "expect": {"late": [{"reason": "event_time_out_of_range"}]},
        },
    },
    "exploded": {"a row of an array": {"given": PAIR, "expect": {"emissions": [{"sum": 11}]}}},
}
FAILING = {
    "missing, unexpected and changed": (
        {
            "given": PAIR,
            "expect": {"emissions": [], "late": [{"reason": "late"}], "carried": [{"left_v": 5, "left_k": "a"}]},
        },
        ["emissions: 1 unexpected", "late: 1 missing", "carried: 1 unexpected, 1 changed"],
    ),
    "no refusal": (
        {"given": PAIR, "error": "refused"},
        ["The case was not refused. Remove error, or change its rows."],
    ),
    "another refusal": (
        {"given": [], "columns": {"left": {"k": "int"}}, "error": "x y z"},
        [
            "The refusal has another message: ",
            "interval.yaml: keys left.k (int) and right.k (string) have different types.",
        ],
    ),
    "an unknown column": (
        {"given": [], "expect": {"emissions": [{"totl": 1}]}},
        ["interval.yaml:", "rows of emissions have no column totl. Did you mean total?"],
    ),
    "a column that nothing reads": (
        {"given": [{"left": {"hapened": 1}}], "expect": {}},
        ["neither the pipeline nor an expected row reads left column hapened. Did you mean happened?"],
    ),
    "a column that no expected row reads": (
        {"given": [left("00:10", remark="old")], "expect": {"carried": [{"left_v": 1}]}},
        ["neither the pipeline nor an expected row reads left column remark. Available: "],
    ),
    "rows not in order": (
        {"given": [left("00:10"), left("00:05", arrived=at("00:05"))], "expect": {}},
        ["the row arrives before the row above, at 2024-01-01T00:10Z. Write rows in order of arrival."],
    ),
    "a row before the first slice": (
        {"given": [left("00:05", arrived="2023-12-31T00:00Z")], "expect": {}},
        ["is before the pipeline's first slice"],
    ),
    "a slice that is none": (
        {"given": [{"slice": at("00:30")}], "expect": {}},
        ["slice 2024-01-01T00:30Z is not on a slice boundary"],
    ),
    "no arrival": (
        {"given": {"left": [{"k": "a"}]}, "expect": {}},
        ["the row has no arrived. Write it, or write given as a list in order of arrival."],
    ),
    "text for a number": (
        {"given": [left("00:10", v="x")], "columns": {"left": {"v": "int"}}, "expect": {}},
        ["left column v: 'x' is not a value of type int"],
    ),
}
ORDERS = "orders_payments.left", "orders_payments.right"
SALES = "sales.left", "sales.right", "returns.left", "returns.right"


def order(key, time, name=ORDERS[0], column="ordered_at"):
    return {name: {"order_id": key, column: f"2026-01-01T{time}Z"}}


def paid(key, time):
    return order(key, time, ORDERS[1], "paid_at")


def shipped(key, time, name="right"):
    return order(key, time, name, "shipped_at")


TWO = [order(7, "07:50"), paid(7, "07:55"), shipped(7, "08:30")]
THREE = [
    order(7, "07:50"),
    paid(7, "07:55"),
    shipped(7, "08:30", "shipments.right"),
    order(7, "08:40", "right", "delivered_at"),
]
TREE = [
    {"sales.right": right("00:00", v=10)["right"]},
    {"sales.left": left("00:10", v=1)["left"]},
    {"returns.right": right("00:00", v=20)["right"]},
    {"returns.left": left("00:12", v=2)["left"]},
]
CHAINS = {
    "orders_shipments": {
        "a shipped order with a payment": {
            "given": TWO,
            "expect": {
                "emissions": [{"left_left_order_id": 7, "left_right_order_id": 7, "right_order_id": 7}],
                "orders_payments.emissions": [{"left_order_id": 7, "_slice": "2026-01-01T07:00Z"}],
                "orders_payments.padded": [],
                "orders_payments.carried": {"2026-01-01T07:00Z": [{"left_order_id": 7}, {"right_order_id": 7}]},
            },
        },
        "both joins end": {
            "given": [*TWO, order(8, "09:00")],
            "drain": True,
            "expect": {
                "padded": [{"left_left_order_id": 8, "left__emission": "padded_left"}],
                "orders_payments.padded": [{"left_order_id": 8}],
                "carried": [],
                "orders_payments.carried": [],
            },
        },
        "no rows": {"given": [], "expect": {"emissions": [], "orders_payments.late": []}},
        "a column of an earlier join": {
            "given": [*TWO[:1], {ORDERS[1]: {**TWO[1][ORDERS[1]], "amount": 5}}, *TWO[2:]],
            "expect": {"emissions": [{"left_right_amount": 5}]},
        },
        "a refused column": {
            "given": [{ORDERS[0]: {"order_id": 1, "orderd_at": None}}],
            "error": "reads orders_payments.left column orderd_at. Did you mean ordered_at?",
        },
    },
    "deliveries": {
        "three joins": {
            "given": THREE,
            "drain": True,
            "expect": {
                "emissions": [{"left_left_left_order_id": 7, "left_right_order_id": 7, "right_order_id": 7}],
                "shipments.emissions": [{"left_left_order_id": 7, "right_order_id": 7}],
                "orders_payments.late": [],
            },
        },
    },
    "tree": {
        "pairs of pairs": {
            "given": TREE,
            "drain": True,
            "expect": {
                "emissions": [{"left_left_v": 1, "left_right_v": 10, "right_left_v": 2, "right_right_v": 20}],
                "sales.emissions": [{"left_v": 1}],
                "returns.emissions": [{"left_v": 2}],
            },
        },
    },
}
FAILING_CHAIN = {
    "other rows of an earlier join": {
        "given": [*TWO, order(8, "09:00"), paid(8, "09:00"), order(6, "08:00")],
        "expect": {"orders_payments.late": [{"left_order_id": 5}], "orders_payments.emissions": []},
    }
}
PASSING |= CHAINS


def write_chains(folder):
    """Write the chain of the documentation, a chain of three joins that begins with it, and a tree."""
    page = (PROJECT / "docs/chains.md").read_text()
    blocks = re.findall(r"^```(?:yaml|{\.yaml \.chained})\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    first, second = map(yaml.safe_load, blocks)
    third = {
        **second,
        "name": "deliveries",
        "left": {"pipeline": "shipments", "event_time": "right"},
        "right": {**second["right"], "table": "deliveries", "event_time": "delivered_at"},
        "join": {**second["join"], "keys": [{"left": "left_left_order_id", "right": "order_id"}]},
    }
    for content in (first, second, {**second, "name": "shipments", "output_stream": True}, third):
        (folder / f"{content['name']}.yaml").write_text(yaml.safe_dump(content))
    for name in ("sales", "returns"):
        write_pipeline(folder / f"{name}.yaml", name=name, output_stream=True)
    sides = {"left": {"pipeline": "sales"}, "right": {"pipeline": "returns"}}
    keys = {"keys": [{"left": "left_k", "right": "right_k"}], "window": {"tumbling": "20 minutes"}}
    write_pipeline(folder / "tree.yaml", name="tree", **sides, join=keys)


def read_documented_cases():
    """Read the cases of a chain in the documentation."""
    page = (PROJECT / "docs/test-pipelines.md").read_text()
    [text] = re.findall(r"^```{\.yaml \.chain-case}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return yaml.safe_load(text)["cases"]


CHAINS["orders_shipments"].update(read_documented_cases())


@pytest.fixture(scope="module")
def results(spark, tmp_path_factory):
    """Run all cases, and return the results by pipeline and case, with a list of the numbers of finished cases."""
    folder = tmp_path_factory.mktemp("pipelines")
    (folder / "tests").mkdir()
    counts = []
    for name, changes in PIPELINES.items():
        processing = {f"{side}__watermark_delay": "0 s" for side in ("left", "right")} if name == "clock" else {}
        write_pipeline(folder / f"{name}.yaml", name=name, **changes, **processing)
        failing = {case: content for case, (content, _) in FAILING.items()} if name == "interval" else {}
        columns = {side: {"k": "string", "v": "bigint"} for side in ("left", "right")}
        cases = {**PASSING[name], **failing}
        (folder / "tests" / f"{name}.yaml").write_text(yaml.safe_dump({"columns": columns, "cases": cases}))
    write_chains(folder)
    for name, cases in CHAINS.items():
        failing = FAILING_CHAIN if name == "orders_shipments" else {}
        (folder / "tests" / f"{name}.yaml").write_text(yaml.safe_dump({"cases": cases | failing}))
    files = [read_case_file(folder / f"{name}.yaml") for name in (*PIPELINES, *CHAINS)]
    runs = run_case_files(spark, files, counts.append)
    assert sum(counts) == len(runs)
    return {(run.result.pipeline, run.result.case): run.result for run in runs}


@pytest.mark.parametrize(
    ("pipeline", "case"), [(pipeline, case) for pipeline, cases in PASSING.items() for case in cases]
)
def test_run_expected_rows_pass_under_all_cuts(results, pipeline, case):
    result = results[pipeline, case]

    assert result.status == "passed", describe_failure(result)


@pytest.mark.parametrize("case", FAILING)
def test_run_other_rows_fail_with_their_differences(results, case):
    result = results["interval", case]

    assert result.status in ("failed", "refused")
    text = "\n".join(describe_failure(result))
    assert all(problem in text for problem in FAILING[case][1]), text


def test_run_case_files_keep_the_settings_of_the_session(spark, monkeypatch):
    setting = "spark.sql.session.timeZone"
    values = []

    def run(test):
        values.append(test.spark.conf.get(setting))
        test.spark.conf.set(setting, "UTC")
        return []

    monkeypatch.setattr(runner._PipelineTest, "run", run)
    with override_settings(spark, {setting: "Asia/Tokyo"}):
        run_case_files(spark, [None, None])
        assert spark.conf.get(setting) == "Asia/Tokyo"

    assert values == ["Asia/Tokyo", "Asia/Tokyo"]


def test_run_failing_job_runs_each_case_alone(results):
    reasons = {case: result.own_job for (pipeline, case), result in results.items() if pipeline == "interval"}

    assert reasons["an error of an expression"].startswith("it expects a refusal")
    assert reasons["a pair"] is None


def test_run_failing_case_of_chain_names_the_join(results):
    text = "\n".join(describe_failure(results["orders_shipments", "other rows of an earlier join"]))

    assert "orders_payments.late: 1 missing, 1 unexpected" in text
    assert "unexpected: left_order_id 6" in text
    assert "orders_payments.emissions: 2 unexpected" in text
    assert "bug of Tidemark" not in text


def test_run_other_cuts_of_chain_are_not_noticed(results):
    reasons = {case: result.own_job for (pipeline, case), result in results.items() if pipeline in CHAINS}

    assert {case for case, reason in reasons.items() if reason} == {"a refused column"}
