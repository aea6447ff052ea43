"""Record answers of Flink's planner to the scripts of these tests.

`python -m tests.importing.recorded_planner NAME...` records some of them again, without names all.
"""

import gzip
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.importing.reference_pipelines import PIPELINES
from tidemark.importing import flink_planner
from tidemark.streaming.flink_query import create_flink_query

HERE = Path(__file__).parent
SCRIPTS = {path.stem: path.read_text() for path in sorted((HERE / "scripts").glob("*.sql"))}
"""Scripts by name."""
ANSWERS = HERE / "planner_answers.jsonl.gz"


@dataclass(frozen=True)
class Answer:
    """Script, and the planner's answer to it."""

    script: str
    answer: dict


def write_reference_script(pipeline):
    """Return the script that a Flink reference job runs."""
    query = create_flink_query(pipeline, "/rows", "/answer")
    settings = [f"SET '{name}' = '{value}'" for name, value in query.settings.items()]
    return ";\n".join([*settings, *query.statements])


def list_scripts():
    """Return all scripts by name, those of reference jobs included."""
    return SCRIPTS | {name: write_reference_script(pipeline) for name, pipeline in PIPELINES.items()}


def read_answers():
    """Return the recorded answers by name."""
    with gzip.open(ANSWERS, "rt", encoding="utf-8") as lines:
        records = map(json.loads, lines)
        return {record["name"]: Answer(record["script"], record["answer"]) for record in records}


def main(names):
    """Ask Flink's planner about some scripts, by default all, and write its answers."""
    scripts = list_scripts()
    answers = {name: record.answer for name, record in read_answers().items()} if names else {}
    for name in names or scripts:
        answers[name] = flink_planner.run_planner(scripts[name], {})
        print(name, answers[name].get("error", f"{len(answers[name].get('plans', []))} plans"))
    records = ({"name": name, "script": script, "answer": answers[name]} for name, script in scripts.items())
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    with ANSWERS.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as compressed:
        compressed.write(text.encode())


if __name__ == "__main__":
    main(sys.argv[1:])
