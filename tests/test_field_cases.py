"""Each row of the field cases has tests that exist, or a reason why it has none yet."""

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROW_COUNT = 40
_FIELDS = {"row", "theme", "must", "tests", "later"}


def read() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = tomllib.loads(
        (ROOT / "tests" / "field_cases.toml").read_text(encoding="utf-8")
    )["case"]
    return cases


def defined(path: Path) -> set[str]:
    """Lists the tests of a file, as node ids name them after the path."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return {name for name in found if name.startswith("test_")}


def problems(cases: list[dict[str, Any]], root: Path, row_count: int = ROW_COUNT) -> list[str]:
    """Says what is wrong with the file, a line each."""
    rows = [case.get("row") for case in cases]
    lines = []
    if rows != list(range(1, row_count + 1)):
        missing = sorted(set(range(1, row_count + 1)) - set(rows))
        lines.append(f"rows are not 1 to {row_count} in order; missing: {missing}")
    for case in cases:
        where = f"row {case.get('row')}"
        lines += [f"{where}: no field {name}" for name in set(case) - _FIELDS]
        lines += [f"{where}: {name} is empty" for name in ("theme", "must") if not case.get(name)]
        later = case.get("later")
        if later is not None and not (later.get("reason") and later.get("part")):
            lines.append(f"{where}: later needs a reason and a part")
        if not case.get("tests") and later is None:
            lines.append(f"{where}: neither tests nor a reason")
        for node_id in case.get("tests", ()):
            name, _, test = node_id.partition("::")
            path = root / name
            if not path.is_file() or test.partition("[")[0] not in defined(path):
                lines.append(f"{where}: {node_id} does not exist")
    return lines


def test_field_cases__every_row__has_tests_that_exist_or_a_reason() -> None:
    assert problems(read(), ROOT) == []


GOOD = {"row": 1, "theme": "a", "must": "b", "tests": ["t.py::test_a"]}


@pytest.mark.parametrize(
    ("cases", "problem"),
    [
        ([], "rows are not 1 to 1 in order; missing: [1]"),
        ([GOOD, GOOD], "rows are not 1 to 1 in order; missing: []"),
        ([GOOD | {"tests": []}], "row 1: neither tests nor a reason"),
        ([GOOD | {"tests": ["t.py::test_b"]}], "row 1: t.py::test_b does not exist"),
        ([GOOD | {"tests": ["u.py::test_a"]}], "row 1: u.py::test_a does not exist"),
        ([GOOD | {"tests": ["t.py::other"]}], "row 1: t.py::other does not exist"),
        ([GOOD | {"must": ""}], "row 1: must is empty"),
        ([GOOD | {"test": ["x"]}], "row 1: no field test"),
        ([GOOD | {"later": {"reason": "c"}}], "row 1: later needs a reason and a part"),
    ],
)
def test_problems__one_mistake__is_the_only_line(
    tmp_path: Path, cases: list[dict[str, Any]], problem: str
) -> None:
    (tmp_path / "t.py").write_text("def test_a(): ...\ndef other(): ...\n")
    assert problems(cases, tmp_path, 1) == [problem]


def test_problems__tests_with_parameters_or_a_reason__are_none(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("async def test_a(x): ...\n")
    later = {"row": 2, "theme": "a", "must": "b", "later": {"reason": "c", "part": "d"}}
    assert problems([GOOD | {"tests": ["t.py::test_a[1]"]}, later], tmp_path, 2) == []
