"""Fails on what the house style forbids and no other tool sees.

Sizes, file names without meaning, sleeping tests, notes without an issue, references to
invariants that are not defined or not tested, statements that nobody runs, long lines in SQL and
proto. A finding is exempted by a reason, in words: `tidy: reason` in a comment on its line, or in
one of the first five lines for the size, name or use of the whole file.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenure_service.store import queries

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SCANNED: Final = (
    "bench",
    "docs",
    "examples",
    "migrations",
    "proto",
    "sdk",
    "service",
    "tests",
    "tools",
)
# Other people's text and generated text follow other rules.
SKIPPED: Final = ("sdk/tenure/v1/", "migrations/schema.sql", "node_modules/", "__pycache__/")

FILE_LINES_MAX: Final = {".py": 500, ".sql": 500, ".proto": 500}
TEST_FILE_LINES_MAX: Final = 600
DOCUMENT_LINES_MAX: Final = {"README.md": 200, "CONTRIBUTING.md": 200}
FUNCTION_LINES_MAX: Final = 60
STATEMENT_LINES_MAX: Final = 70
LINE_CHARACTERS_MAX: Final = 100
# The name to use instead says what the file holds.
BANNED_NAMES: Final = {
    "common": "the noun that the callers share",
    "helpers": "the noun that it helps with",
    "manager": "the verb that it does",
    "models": "rows, messages or the noun",
    "types": "the noun of the types",
    "utils": "the noun that it works on",
}
EXEMPTION: Final = re.compile(r"(#|--|//|<!--) *tidy: +\S.{8,}")
LATER: Final = re.compile(r"\b(TODO|FIXME|XXX)\b(?!.*#\d)")  # tidy: the rule itself
INVARIANT: Final = re.compile(r"\bINV-(\d{2})\b")
DEFINED: Final = re.compile(r"^#*[ `*]*INV-(\d{2})\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing to change."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class File:
    """One file of the tree, read once."""

    path: str
    text: str

    @property
    def lines(self) -> list[str]:
        """The lines of the text, without their ends."""
        return self.text.splitlines()

    @property
    def exempt(self) -> bool:
        """One of the first lines gives a reason for the whole file."""
        return any(EXEMPTION.search(line) for line in self.lines[:5])

    @property
    def is_test(self) -> bool:
        """It belongs to the test suite."""
        return self.path.startswith("tests/")


def read(root: Path) -> list[File]:
    """Returns every file that the rules speak of, by path."""
    paths = [root / name for name in DOCUMENT_LINES_MAX]
    for folder in SCANNED:
        paths += (root / folder).rglob("*")
    found = []
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        wanted = path.suffix in {".py", ".sql", ".proto", ".md"} and path.is_file()
        if wanted and not any(part in name for part in SKIPPED):
            found.append(File(name, path.read_text(encoding="utf-8")))
    return found


def sizes(file: File) -> Iterator[Finding]:
    """Files that are too long to be about one thing."""
    path = Path(file.path)
    limit = DOCUMENT_LINES_MAX.get(file.path) or FILE_LINES_MAX.get(path.suffix)
    if file.is_test and path.suffix == ".py":
        limit = TEST_FILE_LINES_MAX
    if limit and len(file.lines) > limit and not file.exempt:
        yield Finding(file.path, limit, f"{len(file.lines)} lines, at most {limit}: split it")


def names(file: File) -> Iterator[Finding]:
    """File and folder names that do not say what is inside."""
    for part in Path(file.path).with_suffix("").parts:
        if part in BANNED_NAMES and not file.exempt:
            yield Finding(file.path, 1, f"`{part}` says nothing; use {BANNED_NAMES[part]}")


def functions(file: File) -> Iterator[Finding]:
    """Functions that are too long, not counting the docstring."""
    if not file.path.endswith(".py"):
        return
    for node in ast.walk(ast.parse(file.text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
            if length > FUNCTION_LINES_MAX and not EXEMPTION.search(file.lines[node.lineno - 1]):
                text = f"{node.name} has {length} lines, at most {FUNCTION_LINES_MAX}"
                yield Finding(file.path, node.lineno, text)


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    if ast.get_docstring(node) is None:
        return 0
    first = node.body[0]
    return (first.end_lineno or first.lineno) - first.lineno + 1


def statements(file: File) -> Iterator[Finding]:
    """Named statements that are too long to be understood at once."""
    if not file.path.endswith(".sql") or "/store/sql/" not in file.path:
        return
    for query in queries.parse(file.path, file.text):
        length = query.text.count(b"\n") + 1
        if length > STATEMENT_LINES_MAX and b"-- tidy: " not in query.text:
            text = f"{query.name} has {length} lines, at most {STATEMENT_LINES_MAX}"
            yield Finding(file.path, _line_of(file, f"-- name: {query.name} "), text)


def lines(file: File) -> Iterator[Finding]:
    """What a single line must not hold."""
    suffix = Path(file.path).suffix
    for number, line in enumerate(file.lines, start=1):
        if EXEMPTION.search(line):
            continue
        if suffix in {".sql", ".proto"} and len(line) > LINE_CHARACTERS_MAX:
            yield Finding(
                file.path, number, f"{len(line)} characters, at most {LINE_CHARACTERS_MAX}"
            )
        if file.is_test and suffix == ".py" and re.search(r"(?<!\bctx\.)\bsleep\(", line):
            yield Finding(file.path, number, "a test waits for a condition: tests/eventually.py")
        if suffix != ".md" and LATER.search(line):
            yield Finding(file.path, number, "a note for later names its issue, such as #12")


def invariants(files: list[File]) -> Iterator[Finding]:
    """References to invariants that docs/invariants.md does not define, and untested ones."""
    document = next((file for file in files if file.path == "docs/invariants.md"), None)
    defined = set(DEFINED.findall(document.text)) if document else set[str]()
    tests = "\n".join(file.text for file in files if file.is_test)
    for file in files:
        for number, line in enumerate(file.lines, start=1):
            for reference in INVARIANT.findall(line):
                if reference not in defined and not EXEMPTION.search(line):
                    yield Finding(file.path, number, f"INV-{reference} is not defined")
    for reference in sorted(defined):
        if document and f"def test_inv_{reference}__" not in tests:
            found = next(m for m in DEFINED.finditer(document.text) if m[1] == reference)
            where = document.text[: found.end()].count("\n") + 1
            if not EXEMPTION.search(document.lines[where - 1]):
                text = f"INV-{reference} has no test named test_inv_{reference}__"
                yield Finding(document.path, where, text)


def dead_statements(files: list[File]) -> Iterator[Finding]:
    """Named statements that no Python file mentions."""
    python = "\n".join(
        file.text for file in files if file.path.endswith(".py") and not file.is_test
    )
    for file in files:
        if "/store/sql/" not in file.path or file.exempt:
            continue
        for query in queries.parse(file.path, file.text):
            if f'"{query.name}"' not in python:
                where = _line_of(file, f"-- name: {query.name} ")
                yield Finding(file.path, where, f"no Python file runs {query.name}")


def _line_of(file: File, text: str) -> int:
    return file.text[: file.text.index(text)].count("\n") + 1


def check(root: Path) -> list[Finding]:
    """Returns everything that is wrong below `root`, by path and line."""
    files = read(root)
    found: list[Finding] = []
    for file in files:
        for rule in (sizes, names, functions, statements, lines):
            found += rule(file)
    found += invariants(files)
    found += dead_statements(files)
    return sorted(found)


def main() -> None:
    """Prints the findings; exits 1 when there are any."""
    found = check(ROOT)
    for finding in found:
        print(finding)
    if found:
        sys.exit(f"tidy: {len(found)} findings")
    print("tidy: nothing to do")


if __name__ == "__main__":
    main()
