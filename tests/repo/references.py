"""Find references in docstrings, comments and docs to modules, names, files, options and targets that do not exist."""

import ast
import builtins
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from typer.main import get_command

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "include" / "tidemark", ROOT / "include" / "tidemark_conformance")
DOCS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
_FOLDERS = ("benchmarks", "bin", "dags", "deploy", "docs", "include", "jobs", "tests")
PAGES = [*ROOT.glob("*.md"), *(page for folder in _FOLDERS for page in (ROOT / folder).rglob("*.md"))]
"""All Markdown pages of the repository."""
FOREIGN = {
    "config": {"json", "yaml"},
    "spark": {
        "authenticate", "conf", "cores", "databricks", "default", "deploy", "driver",
        "dynamicAllocation", "eventLog", "executor", "hadoop", "jars", "kubernetes",
        "late_watermark", "local", "master", "memory", "micro_batches", "network", "plugins", "read", "serializer",
        "shuffle", "sparkContext", "sql", "submit", "task", "ui", "version", "multiple_watermark_policy",
    },
    "airflow": {"deadline", "poll_interval", "pool", "repair", "wait_timeout", "sdk", "cfg", "watch_inputs"},
    "compare": {"every", "reference", "table"},
    "slices": {"end", "every", "start", "time_zone"},
    "report": {"html", "md", "json"},
    "delta": {
        "deletedFileRetentionDuration", "enableChangeDataFeed", "enableInCommitTimestamps", "enableRowTracking",
        "logRetentionDuration", "tables",
    },
}  # fmt: skip
"""Second parts of dotted names that begin like a package of ours, and are settings or files."""
EXTERNAL_MEMBERS = {"BaseModel": {"model_dump", "model_json_schema", "model_validate"}}
"""Attributes of classes of other packages; a class that is not among them may have any."""
EXTERNAL_ERRORS = {
    "AirflowException", "AirflowFailException", "AirflowSkipException", "AnalysisException",
    "DeltaConcurrentModificationException", "DeltaError", "ParseException",
}  # fmt: skip
"""Exceptions of other packages that our functions raise."""
_OTHER_OPTIONS = """
    --also --case --conf --dag-id --depth --digests --from-date --generate-hashes --help --host --image --jars
    --list --master --neglected --no-annotate --no-deps --no-emit-index-url --no-header --one-by-one
    --only-binary --partition-date-end --partition-date-start --partition-key --peer --py-files --python-version --rate
    --reprocess-behavior --rm --rows --server --slices --to-date --wheel-dir
"""
OTHER_OPTIONS = frozenset(_OTHER_OPTIONS.split())
"""Options of programs other than `tidemark`, in `bin/`, `benchmarks/` and elsewhere."""


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of all modules by dotted name, without the package `tidemark` in front."""
    trees = {}
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts[1:] if parts[0] == "tidemark" else parts).removesuffix(".__init__")
            trees[name] = ast.parse(path.read_text())
    return trees


@cache
def classes() -> dict[str, set[str]]:
    """Return the attributes of classes by class name; of classes with the same name, all."""
    members = defaultdict(set)
    bases = defaultdict(set)
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                members[node.name] |= set(_bound_names(node))
                bases[node.name] |= {base.id for base in node.bases if isinstance(base, ast.Name)}
                bases[node.name] |= {base.attr for base in node.bases if isinstance(base, ast.Attribute)}
    for name in list(members):
        ancestors = list(bases[name])
        while ancestors:
            ancestor = ancestors.pop()
            members[name] |= members.get(ancestor, EXTERNAL_MEMBERS.get(ancestor, {"*"}))
            ancestors += bases.get(ancestor, ())
    return members


def _bound_names(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign() | ast.AnnAssign():
                yield from (n.id for n in ast.walk(child) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in child.names)
            case ast.If() | ast.Try():
                yield from _bound_names(child)


def missing_names(text: str, package: str = "") -> list[str]:
    """Return the dotted names in backticks that begin with a module or class of ours and lead nowhere.

    Args:
        text: A docstring, a comment or a page.
        package: Dotted name of the package whose sibling modules may be named without it.
    """
    references = re.findall(r"`(?:tidemark\.)?([A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`", text)
    return [name for name in references if not _exists(name.split("."), package)]


def _exists(parts: list[str], package: str) -> bool:
    first = parts[0]
    if first in classes():
        return bool({parts[1], "*"} & classes()[first])
    if first in FOREIGN and parts[1] in FOREIGN[first]:
        return True
    starts = [prefix for prefix in (f"{package}.{first}" if package else "", first) if prefix in modules()]
    return not starts or any(_resolves(start, parts[1:]) for start in starts)


def _resolves(module: str, rest: list[str]) -> bool:
    while rest and f"{module}.{rest[0]}" in modules():
        module, rest = f"{module}.{rest[0]}", rest[1:]
    if not rest:
        return True
    names = set(_bound_names(modules()[module]))
    return rest[0] in names and (
        len(rest) == 1 or rest[0] not in classes() or bool({rest[1], "*"} & classes()[rest[0]])
    )


def missing_errors(text: str) -> list[str]:
    """Return the exceptions in sections `Raises:` of a docstring that do not exist."""
    sections = re.findall(r"^ *Raises:\n((?: +\S.*\n?)+)", text, re.MULTILINE)
    names = [name for section in sections for name in re.findall(r"^ +(\w+):", section, re.MULTILINE)]
    return [name for name in names if name not in {*classes(), *EXTERNAL_ERRORS} and not hasattr(builtins, name)]


def docstring_references() -> Iterator[tuple[str, str]]:
    """Yield the place and name of each reference in the package's docstrings and comments that leads nowhere."""
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            source = path.read_text()
            own = ".".join(path.relative_to(package.parent).parent.parts[1:])
            texts = [(line.strip(), n) for n, line in enumerate(source.splitlines(), 1) if line.strip().startswith("#")]
            for node in ast.walk(ast.parse(source)):
                match node:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        texts += [(text, node.lineno)]
            for text, line in texts:
                place = f"{path.relative_to(ROOT)}:{line}"
                yield from ((place, name) for name in missing_names(text, own))
                yield from ((place, name) for name in (*missing_files(text), *missing_errors(text)))


def missing_files(text: str) -> list[str]:
    """Return the paths of Python and YAML files, of decisions and of tests that are named and do not exist."""
    paths = re.findall(r"(?<![\w/.<{-])((?:[\w-]+/)+[\w-]+\.(?:py|md|yaml|java))\b", text)
    folders = (ROOT, *PACKAGES, ROOT / "docs", ROOT / "include", ROOT / "tests")
    top_folders = {folder.name for root in folders for folder in root.iterdir() if folder.is_dir()}
    is_users = re.compile(r"tests/[\w-]+\.yaml").fullmatch  # test cases beside a user's pipeline file
    named = [path for path in paths if path.split("/")[0] in top_folders and not is_users(path)]
    return [path for path in named if not any((folder / path).exists() for folder in folders)]


def document_references() -> Iterator[tuple[str, str]]:
    """Yield the page and text of each reference in the docs that leads nowhere.

    Checks dotted names, file paths, tests, options and commands of `tidemark`, and targets of `make`.
    """
    commands, options = command_line()
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in DOCS:
        if page.name in {"CHANGELOG.md", "renamed.md"}:
            continue
        text, place = page.read_text(), page.relative_to(ROOT).as_posix()
        broken = missing_names(text) + missing_files(text)
        broken += [test for test in set(re.findall(r"\btest_\w+\b", text)) if test not in tests()]
        fences = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
        inline = re.findall(r"`[^`]+`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
        code = "\n".join([*fences, *(part.strip("`") for part in inline)])
        broken += [option for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) if option not in options]
        broken += [
            name
            for name in set(re.findall(r"^(?:\$ )?tidemark ([a-z][a-z-]+)", code, re.MULTILINE))
            if name not in commands
        ]
        broken += [
            name
            for name in set(re.findall(r"^(?:\$ )?make ([a-z][a-z0-9-]+)", code, re.MULTILINE))
            if name not in targets
        ]
        yield from ((place, name) for name in broken)


def missing_links(page: Path) -> list[str]:
    """Return the relative links of a page to files or headings that do not exist; links in code do not count."""
    text = _without_code(page.read_text())
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text)
    targets += re.findall(r"^\[[^\]]+\]: (?!https?:|mailto:)(\S+)", text, re.MULTILINE)
    return [target for target in targets if not _leads_somewhere(page, target)]


def _leads_somewhere(page: Path, target: str) -> bool:
    name, _, heading = target.partition("#")
    file = page.parent / unquote(name) if name else page
    return file.exists() and (not heading or file.suffix != ".md" or heading in heading_anchors(file))


@cache
def heading_anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub gives to a page's headings. Equal headings are numbered from the second on."""
    fenceless = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    anchors: list[str] = []
    counts: Counter[str] = Counter()
    for heading in re.findall(r"^#+ +(.+?) *$", fenceless, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchors.append(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return frozenset(anchors)


def _without_code(text: str) -> str:
    fenceless = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", fenceless)


@cache
def tests() -> frozenset[str]:
    """Return the names of test modules and functions."""
    paths = list((ROOT / "tests").rglob("*.py"))
    functions = {name for path in paths for name in re.findall(r"def (test_\w+)", path.read_text())}
    return frozenset({path.stem for path in paths} | functions)


def command_line() -> tuple[set[str], set[str]]:
    """Return the names of all commands of `tidemark`, and all their options."""
    from tidemark.cli.app import create_app

    commands, options = set(), set(OTHER_OPTIONS)
    groups = [get_command(create_app())]
    while groups:
        group = groups.pop()
        options |= {option for parameter in group.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for name, command in getattr(group, "commands", {}).items():
            commands.add(name)
            groups.append(command)
    return commands, options
