"""Measure how plainly Python code is written: its names, its docstrings and the words in them.

`python -m tests.repo.language [FOLDER]` prints the figures and each place that a limit counts.
"""

import argparse
import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FILLERS = """
    again alike aloft anew apart aside ask asked asks beside came come comes found goes gone held holds kept known like
    made meets met mine one others ready seen so stands such taken takes tell telling tells there told unlike untold
    wanted whole works
"""
FILLERS = frozenset(_FILLERS.split())
"""Words that say nothing about what a name stands for."""
FRONTS = frozenset({"as", "how", "of", "that", "those", "what", "when", "where", "whether", "which", "who", "whose"})
"""Words with which a docstring does not begin: they hide its subject."""
_NOT_VERBS = """
    a all and are by column columns each every few file files for from if in is it its like many most name no not
    nothing none on one row rows slice slices some table tables the their these this those was were whatever with
"""
NOT_VERBS = FRONTS | frozenset(_NOT_VERBS.split())
LATENESS = re.compile(r"watermark|\blate\b|lateness", re.IGNORECASE)


@dataclass
class Language:
    """Counts over some Python files, and the places that count against them."""

    names: int = 0
    docstrings: int = 0
    functions: int = 0
    verbs: int = 0
    public: int = 0
    sections: int = 0
    words: int = 0
    fillers: list[str] = field(default_factory=list)
    fronted: list[str] = field(default_factory=list)
    not_verbs: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return shares in percent, and words per 10,000 words of docstrings and comments."""
        return {
            "filler names %": 100 * len(self.fillers) / max(1, self.names),
            "fronted docstrings %": 100 * len(self.fronted) / max(1, self.docstrings),
            "docstrings with a verb %": 100 * self.verbs / max(1, self.functions),
            "docstrings with sections %": 100 * self.sections / max(1, self.public),
            "told per 10,000": 10_000 * len(self.told) / max(1, self.words),
            "beside per 10,000": 10_000 * len(self.beside) / max(1, self.words),
            "behind, not of lateness": len(self.behind),
        }


def measure(files: list[Path], root: Path) -> Language:
    """Measure Python files; places are named relative to `root`."""
    language = Language()
    for path in files:
        source, place = path.read_text(), path.relative_to(root).as_posix()
        tree = ast.parse(source)
        for name, line in _declared_names(tree):
            language.names += 1
            if (fillers := _words_of(name) & FILLERS) or "behind" in _words_of(name):
                (language.fillers if fillers else language.behind).append(f"{place}:{line}: {name}")
        for node in ast.walk(tree):
            _measure_docstring(language, node, place)
        for number, line in enumerate(source.splitlines(), 1):
            if line.strip().startswith("#"):
                _count_words(language, line.strip("# "), f"{place}:{number}")
    return language


def _declared_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name and line of each variable, argument, function and class."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno


def _words_of(name: str) -> set[str]:
    return set(re.sub(r"([A-Z])", r"_\1", name).lower().strip("_").split("_"))


def _measure_docstring(language: Language, node: ast.AST, place: str) -> None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for text, line in _attribute_docstrings(node):
        _count_docstring(language, text, f"{place}:{line}")
    if not isinstance(node, documented) or not (text := ast.get_docstring(node)):
        return
    where = f"{place}:{getattr(node, 'lineno', 1)}"
    _count_docstring(language, text, where)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        first = re.match(r"[A-Za-z']+", text)
        is_verb = first is not None and first[0].lower() not in NOT_VERBS and first[0].isalpha()
        language.functions += 1
        language.verbs += is_verb
        if not is_verb and not any(isinstance(d, ast.Name) and "property" in d.id for d in node.decorator_list):
            language.not_verbs.append(f"{where}: {node.name}: {text.splitlines()[0]}")
        if not node.name.startswith("_"):
            language.public += 1
            language.sections += bool(re.search(r"^\s*(Args|Returns|Yields|Raises|Attributes):", text, re.MULTILINE))


def _attribute_docstrings(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the strings that stand below a constant or a field."""
    body = getattr(node, "body", None)
    for before, after in itertools.pairwise(body) if isinstance(body, list) else ():
        match before, after:
            case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                yield text, after.lineno


def _count_docstring(language: Language, text: str, where: str) -> None:
    language.docstrings += 1
    first = re.match(r"\W*([A-Za-z']+)", text)
    if first and first[1].lower() in FRONTS:
        language.fronted.append(f"{where}: {text.splitlines()[0]}")
    _count_words(language, text, where)


def _count_words(language: Language, text: str, where: str) -> None:
    """Count words of a text outside of code in backticks."""
    text = re.sub(r"`[^`]*`", "", text)
    language.words += len(re.findall(r"[A-Za-z]+", text))
    for sentence in re.split(r"(?<=[.;:])\s", text):
        shown = f"{where}: {' '.join(sentence.split())[:120]}"
        language.told += [shown] * len(re.findall(r"\b(?:told|tells?)\b", sentence, re.IGNORECASE))
        language.beside += [shown] * len(re.findall(r"\bbeside\b", sentence, re.IGNORECASE))
        if not LATENESS.search(sentence):
            language.behind += [shown] * len(re.findall(r"\bbehind\b", sentence, re.IGNORECASE))


def main() -> None:
    """Print the figures of a folder and the places that count against it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("include")])
    parser.add_argument("--quiet", action="store_true", help="print the figures only")
    arguments = parser.parse_args()
    files = sorted(
        file for folder in arguments.folders for file in ([folder] if folder.is_file() else folder.rglob("*.py"))
    )
    language = measure(files, Path())
    for kind in () if arguments.quiet else ("fillers", "fronted", "not_verbs", "told", "beside", "behind"):
        places = getattr(language, kind)
        print(f"\n{kind}: {len(places)}", *places, sep="\n  ")
    print()
    for name, value in language.figures().items():
        print(f"{name:28} {value:8.2f}")


if __name__ == "__main__":
    main()
