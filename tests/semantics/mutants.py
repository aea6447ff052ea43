"""Break each boundary rule by the least that it can be broken, and see the golden vectors notice.

Each mutant is a copy of the package with one edit, run as `tidemark conformance` in a process of its own.

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
"""Bytes of a vector that is left for the mutants that no smaller one kills."""
AT_ONCE = 2
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
    return [Mutant(**one) for one in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())]


def killers(mutant: Mutant) -> list[str]:
    """The vectors that fail under a mutant: of the small ones, or if none does of the large ones."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "tidemark")
        shutil.copytree(PACKAGE, package)
        mutant.apply(package)
        vectors = gzip.decompress((VECTORS / f"{mutant.vectors}.jsonl.gz").read_bytes()).splitlines(keepends=True)
        large = [one for one in vectors if len(one) > LARGE]
        small = [one for one in vectors if len(one) <= LARGE]
        return failing(Path(folder), small) or failing(Path(folder), large)


def failing(folder: Path, vectors: list[bytes]) -> list[str]:
    """The vectors that fail under the package in a folder; one whose run breaks down is told by that."""
    if not vectors:
        return []
    file, report = folder / "vectors.jsonl", folder / "report.json"
    file.write_bytes(b"".join(vectors))
    arguments = ["conformance", str(file), "--cuts", "2", "--json", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(folder), "TIDEMARK_JARS": str(PROJECT / ".jars")}
    run = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if not report.exists():
        return [f"breaks down: {run.stderr.strip().splitlines()[-1]}"]
    return sorted({one["vector"] for one in json.loads(report.read_text()) if not one["passed"]})


def main() -> None:
    chosen = [
        mutant for mutant in read_mutants() if not sys.argv[1:] or {mutant.name, mutant.vectors} & {*sys.argv[1:]}
    ]
    survivors = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, (mutant, found) in enumerate(zip(chosen, pool.map(killers, chosen), strict=True), start=1):
            survivors += not found
            fate = f"killed by {len(found)} vectors, such as {found[0]}" if found else "[red]survives[/red]"
            out.print(f"{number:2} of {len(chosen)}  {mutant.name}: {fate}", highlight=False, soft_wrap=True)
    out.print(f"mutants: {len(chosen) - survivors} killed, {survivors} survived")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
