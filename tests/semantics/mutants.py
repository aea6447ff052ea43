"""Break each boundary rule minimally, and check that the recorded vectors fail.

Each mutant is a copy of the package with one edit, run as `tidemark conformance` in a separate process.

Usage: python -m tests.semantics.mutants [NAME...], names of mutants or of vector files, such as flink_sql_window
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "include" / "tidemark"
VECTORS = Path(__file__).parent / "vectors"
LARGE = 200_000
"""Size in bytes from which a vector is tried only if no smaller one kills the mutant."""
MAX_WORKERS = 2
out = Console()
RUN = "import sys; from tidemark.cli import main; sys.exit(main(sys.argv[1:]))"


@dataclass(frozen=True)
class Mutant:
    name: str
    vectors: str
    file: str
    rule: str
    broken: str

    def apply(self, package: Path) -> None:
        path = package / self.file
        source = path.read_text()
        if source.count(self.rule) != 1:
            raise SystemExit(f"{self.name}: {self.file} has {source.count(self.rule)} times {self.rule!r}, not once")
        path.write_text(source.replace(self.rule, self.broken))


def read_mutants() -> list[Mutant]:
    return [Mutant(**entry) for entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())]


def find_killers(mutant: Mutant) -> list[str]:
    """Return the small vectors that fail under a mutant, or if there are none the large ones."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "tidemark")
        shutil.copytree(PACKAGE, package)
        mutant.apply(package)
        vectors = gzip.decompress((VECTORS / f"{mutant.vectors}.jsonl.gz").read_bytes()).splitlines(keepends=True)
        large = [vector for vector in vectors if len(vector) > LARGE]
        small = [vector for vector in vectors if len(vector) <= LARGE]
        return find_failing(Path(folder), small) or find_failing(Path(folder), large)


def find_failing(folder: Path, vectors: list[bytes]) -> list[str]:
    """Return the vectors that fail under the package in a folder, or the error if the run fails."""
    if not vectors:
        return []
    file, report = folder / "vectors.jsonl", folder / "report.json"
    file.write_bytes(b"".join(vectors))
    arguments = ["conformance", str(file), "--cuts", "2", "--output", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(folder), "TIDEMARK_JARS": str(PROJECT / ".jars")}
    run = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if not report.exists():
        return [f"breaks down: {run.stderr.strip().splitlines()[-1]}"]
    return sorted({result["vector"] for result in json.loads(report.read_text()) if not result["passed"]})


def main() -> None:
    selected = [
        mutant for mutant in read_mutants() if not sys.argv[1:] or {mutant.name, mutant.vectors} & {*sys.argv[1:]}
    ]
    survivors = 0
    with ThreadPoolExecutor(MAX_WORKERS) as pool:
        for number, (mutant, killing_vectors) in enumerate(
            zip(selected, pool.map(find_killers, selected), strict=True), start=1
        ):
            survivors += not killing_vectors
            outcome = (
                f"killed by {len(killing_vectors)} vectors, such as {killing_vectors[0]}"
                if killing_vectors
                else "[red]survives[/red]"
            )
            out.print(f"{number:2} of {len(selected)}  {mutant.name}: {outcome}", highlight=False, soft_wrap=True)
    out.print(f"mutants: {len(selected) - survivors} killed, {survivors} survived")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
