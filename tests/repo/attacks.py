"""List attacks by pipeline files and command options; run as a module, update the list of the docs.

tests/repo/test_attacks.py has a case of the same name for each attack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
BEGIN, END = "<!-- attacks: python -m tests.repo.attacks -->", "<!-- end of attacks -->"


@dataclass(frozen=True)
class Attack:
    """Change of a valid pipeline file, of its name or of the command, and the expected error."""

    name: str
    attempt: str
    """Change as shown in the list."""
    expected_message: str
    """Part of the error line."""
    changes: dict[str, Any] = field(default_factory=dict)
    content: str | None = None
    """Content that replaces the file's own."""
    file: str = "p.yaml"
    options: tuple[str, ...] = ()


def _code(text: str) -> str:
    """Format a text as Markdown code, shortened for a line of the page."""
    short = " ".join(text.split())
    short = short if len(short) < 100 else f"{short[:40]} ..."
    return f"`` {short} ``" if "`" in short else f"`{short}`"


def condition(name: str, expression: str, message: str) -> Attack:
    changes = {"join__condition": expression}
    return Attack(name, _code(f"condition: {expression}"), f"join.condition: {message}", changes)


def column(name: str, expression: str, message: str) -> Attack:
    return Attack(name, _code(f"select: {{x: {expression}}}"), f"select: x: {message}", {"select": {"x": expression}})


def setting(name: str, message: str, /, **changes: Any) -> Attack:
    attempt = "; ".join(_code(f"{key.replace('__', '.')}: {value}") for key, value in changes.items())
    return Attack(name, attempt, message, changes)


def expectation(name: str, message: str, /, **arguments: Any) -> Attack:
    attempt = ", ".join(f"{key}: {value}" for key, value in arguments.items())
    return Attack(name, _code(f"quality: [{{{attempt}}}]"), f"quality.0: {message}", {"quality": [arguments]})


def yaml_file(name: str, attempt: str, content: str, message: str) -> Attack:
    return Attack(name, attempt, message, content=content)


BETWEEN, OUTSIDE = "expect_column_values_to_be_between", "lies outside the lake root"
SUBQUERY, TIME = "a subquery reads other tables", "is a relative time"

ATTACKS = [
    column("read a file by a subquery", "(SELECT max(value) FROM text.`/etc/hostname`)", SUBQUERY),
    column("read the environment by reflection", "java_method('java.lang.System', 'getenv', 'HOME')", "java_method() calls"),
    column("end the driver by reflection", "reflect('java.lang.System', 'exit', 1)", "reflect() calls Java"),
    column("reflection that hides its errors", "try_reflect('java.lang.System', 'getenv')", "try_reflect() calls Java"),
    column("read the environment by substitution", "'${env:AIRFLOW_CONN_SPARK_DEFAULT}'", "${...} would be replaced from"),
    column("read the session's settings", "'${spark.hadoop.fs.s3a.secret.key}'", "${...} would be replaced from"),
    column("a random value", "rand()", "rand() returns another value in each run"),
    column("a random value by encryption", "aes_encrypt(left_k, 'abcdefghijklmnop')", "aes_encrypt() returns another value in each run"),
    column("a random identifier", "uuid()", "uuid() returns another value in each run"),
    column("the clock", "current_timestamp()", "current_timestamp() returns the time of the run"),
    column("the clock without parentheses", "current_timestamp", "current_timestamp is not a column of the join"),
    column("the clock inside a lambda", "transform(array(1), x -> current_date)", "current_date is not a column of the join"),
    column("the clock as a string", "TIMESTAMP 'now'", f"'now' {TIME}"),
    column("the clock as an escaped string", "TIMESTAMP '\\156ow'", f"'now' {TIME}"),
    column("the clock by a cast", "CAST('today' AS date)", f"'today' {TIME}"),
    column("the current user", "current_user()", "current_user() depends on the session"),
    column("names of input files", "input_file_name()", "input_file_name() depends on how Spark partitions its work"),
    column("hidden columns of files", "_metadata.file_path", "_metadata is not a column of the join"),
    column("numbers that depend on partitions", "monotonically_increasing_id()", "monotonically_increasing_id() depends on how Spark partitions"),
    column("a file by a descriptor", "from_protobuf(left_k, 'm', '/etc/hostname')", "from_protobuf() can read files"),
    column("a file by an XML schema", "from_xml(left_k, 'a int', map('rowValidationXSDPath', '/x'))", "from_xml() can"),
    column("show a row in an error", "raise_error(left_k)", "raise_error() fails the job with a row's values"),
    column("a function that adds rows", "explode(array(1, 2))", "explode() changes the number of rows"),
    column("a function that removes rows", "count(*)", "count() aggregates many rows"),
    column("a window function", "max(left_k) OVER ()", "OVER spans many rows"),
    column("a star", "struct(left_k.*)", "* changes its meaning when a table gets more columns"),
    column("a function of the catalog", "default.mine(left_k)", "default.mine() names a catalog or a schema"),
    column("a qualified name of a built-in function", "system.builtin.rand()", "system.builtin.rand() names a catalog or a schema"),
    column("a quoted name of a built-in function", "`rand`()", "rand() returns another value in each run"),
    column("a function name from a string", "IDENTIFIER('rand')()", "is not an SQL expression"),
    condition("a table by EXISTS", "EXISTS (SELECT 1 FROM text.`/etc/hostname`)", SUBQUERY),
    condition("a table by IN", "left_k IN (SELECT value FROM text.`/etc/hostname`)", SUBQUERY),
    condition("a second statement", "left_v = 1; DROP TABLE x", "is not an SQL expression"),
    condition("a comment that removes text", "left_v = 1 -- AND", "has comments or hints"),
    condition("a hint", "/*+ BROADCAST(x) */ left_v = 1", "has comments or hints"),
    condition("a parameter", "left_v = :secret", "parameters have no value here"),
    condition("thousands of nested brackets", "(" * 3000 + "true" + ")" * 3000, "is nested too deeply. Split the expression."),
    setting("a list of hidden columns", "select: _metadata is not a column of the join", select=["left_k", "_metadata"]),
    expectation("SQL in an expectation", f"{BETWEEN}: row_condition: {SUBQUERY}", type=BETWEEN, row_condition="(SELECT 1) = 1"),
    expectation("Java in a row rule", "rows: that: reflect() calls Java", type="rows", that="reflect('java.lang.System', 'exit', 1)"),
    expectation(
        "an expectation that queries", "expect_query_results_to_match_comparison reads data outside the output",
        type="expect_query_results_to_match_comparison", base_query="SELECT 1",
    ),
    expectation(
        "an expectation of SQL", "unexpected_rows_expectation runs SQL",
        type="unexpected_rows_expectation", unexpected_rows_query="SELECT 1",
    ),
    expectation(
        "an expectation on another table", "expect_table_row_count_to_equal_other_table reads data outside",
        type="expect_table_row_count_to_equal_other_table", other_table_name="x",
    ),
    expectation(
        "an expectation that fetches", "expect_column_values_to_match_json_schema fetches references of a schema",
        type="expect_column_values_to_match_json_schema", json_schema="http://169.254.169.254/",
    ),
    expectation(
        "a computed value", f"{BETWEEN}: max_value is not a value or a list of values",
        type=BETWEEN, max_value={"$PARAMETER": "now()"},
    ),
    expectation("all rows in the results", f"{BETWEEN}: result_format selects", type=BETWEEN, result_format="COMPLETE"),
    expectation("a script in Data Docs", f"{BETWEEN}: description replaces the generated", type=BETWEEN, description="<script>"),
    setting("a connection of another project", "notify.0.webhook.connection: 'warehouse' is not valid", notify=[{"webhook": {"connection": "warehouse"}}]),
    setting("an address in the file", "notify.0.webhook.url: unknown field", notify=[{"webhook": {"connection": "tidemark_x", "url": "http://169.254.169.254/"}}]),
    setting("a header in a mail", "is not a mail address", notify=[{"email": {"connection": "tidemark_x", "to": ["a@example.org\nBcc: b@example.org"]}}]),
    setting("a suite outside the folder", "expectation_suite: ../secret.json is not a .json file in", expectation_suite="../secret.json"),
    setting("another file as a suite", "expectation_suite: /etc/passwd is not a .json file in", expectation_suite="/etc/passwd"),
    setting("a setting of Spark", "cluster.conf: unknown field", cluster={"conf": {"spark.driver.extraJavaOptions": "-D"}}),
    setting("options of Java in a size", "cluster.executor_memory: '1g -Dx=y' is not valid", cluster={"executor_memory": "1g -Dx=y"}),
    setting("a path for the event log", "cluster.event_log: should be true or false", cluster={"event_log": "/etc"}),
    setting("an output outside the lake", OUTSIDE, output="../evil_out"),
    setting("an output by an absolute path", OUTSIDE, output="/etc/evil_out"),
    setting("an output by a link", OUTSIDE, output="out/evil_out"),
    setting("the lake root as output", "contains the lake root", output="."),
    setting("an output in an input", "is or lies in the table", output="left/evil_out"),
    setting("the output of another pipeline", "belongs to pipeline theirs, according to its ledger", output="theirs"),
    setting("a table outside the lake", OUTSIDE, left__table="../secret"),
    setting("a table by an absolute path", OUTSIDE, left__table="/etc"),
    setting("a table by a link", OUTSIDE, left__table="out/secret"),
    setting("a table by a URI", OUTSIDE, left__table="file:///etc"),
    setting("a table in another bucket", OUTSIDE, left__table="s3://other/secret"),
    setting("the metadata service of a cloud", OUTSIDE, left__table="http://169.254.169.254/latest"),
    setting("SQL as the name of a table", "there is no Delta table x; DROP TABLE left", left__table="x; DROP TABLE left"),
    setting("a path as a catalog name", "there is no Delta table delta.`", left__table="delta.`/etc`"),
    setting("a forged log line", "is not a valid path", left__table="x\nINFO all is well"),
    Attack("a pipeline file outside the folder", "`compare.reference: ../secret.yaml`", "compare.reference: ../secret.yaml is not a pipeline file",
           {"compare": {"table": "s", "reference": "../secret.yaml"}}),
    Attack("a template as a name", "the file `{{ var.value.key }}.yaml`", "is not a valid name of a pipeline file",
           file="{{ var.value.key }}.yaml"),
    Attack("a command as a name", "the file `$(id).yaml`", "is not a valid name of a pipeline file", file="$(id).yaml"),
    Attack("an option as a name", "the file `-rf.yaml`", "is not a valid name of a pipeline file", file="-rf.yaml"),
    setting("a template as a pipeline's name", "name: ", name="{{ ds }}"),
    yaml_file("a duplicate key", "`name` in two lines", "name: a\nname: b\n", "line 2: duplicate key name, first in line 1"),
    yaml_file("exponential aliases", "a billion laughs", "a: &a [1]\n" + "\n".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in zip("abcdef", "bcdefg", strict=True)
    ), "more than 10,000 values, aliases included"),
    yaml_file("an alias of itself", "`a: &a [*a]`", "a: &a [*a]", "line 1: an alias of a node that contains it"),
    yaml_file("an object of Python", "`!!python/object/apply:os.system`", "!!python/object/apply:os.system [id]",
              "line 1: could not determine a constructor"),
    yaml_file("a very large file", "100 kB of comments", "#" * 100_001, "has more than 100,000 bytes"),
    yaml_file("thousands of nested lists", "5,000 brackets", "[" * 5000, "line 1: more than 20 levels"),
    Attack("a command in a form's field", "`--from '$(id)'`", "is not an instant", options=("--from", "$(id)")),
    Attack("an option in a form's field", "`--slices-per-job '1 --lake /'`", "is not a number of slices",
           options=("--slices-per-job", "1 --lake /")),
]  # fmt: skip


def render_list() -> str:
    """Render the list of the docs between its marks."""
    items = [
        f"- {attack.name}\n  - attempt: {attack.attempt}\n  - error: {_code(attack.expected_message)}"
        for attack in ATTACKS
    ]
    return "\n".join([BEGIN, *items, END])


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(BEGIN)] + render_list() + text[text.index(END) + len(END) :], encoding="utf-8")
