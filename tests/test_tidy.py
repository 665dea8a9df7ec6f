from pathlib import Path

import pytest

from tools import tidy

INVARIANTS = "`INV" + "-01 One live lease.` A task has one.\n"
TESTED = "def test_inv_01__two_leases__one_wins() -> None: ...\n"


def _found(root: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [str(finding) for finding in tidy.check(root)]


QUERY = "-- name: task_get :one TaskRow\n"
LONG_FUNCTION = "def work():\n" + "    x = 1\n" * 60


@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        ("service/a.py", "x = 1\n" * 501, "service/a.py:500: 501 lines"),
        ("tests/test_a.py", "x = 1\n" * 601, "tests/test_a.py:600: 601 lines"),
        ("migrations/a.sql", "x\n" * 501, "migrations/a.sql:500: 501 lines"),
        ("README.md", "x\n" * 201, "README.md:200: 201 lines"),
        ("sdk/tenure/utils.py", "", "sdk/tenure/utils.py:1: `utils` says nothing"),
        ("service/helpers/a.py", "", "service/helpers/a.py:1: `helpers` says nothing"),
        ("service/a.py", LONG_FUNCTION, "service/a.py:1: work has 61 lines"),
        ("proto/a.proto", "// " + "x" * 98, "proto/a.proto:1: 101 characters"),
        ("tests/test_a.py", "time.sle" + "ep(1)", "tests/test_a.py:1: a test waits"),
        ("service/a.py", "# TO" + "DO later", "service/a.py:1: a note for later"),
        ("service/a.py", "# Holds INV" + "-09.", "service/a.py:1: INV" + "-09 is not defined"),
        ("docs/invariants.md", INVARIANTS, "docs/invariants.md:1: INV" + "-01 has no test"),
        (
            "service/store/sql/a.sql",
            QUERY + "select 1",
            "service/store/sql/a.sql:1: no Python file runs task_get",
        ),
    ],
)
def test_check__one_offence__is_the_only_finding(
    tmp_path: Path, name: str, text: str, finding: str
) -> None:
    (found,) = _found(tmp_path, {name: text})
    assert found.startswith(finding)


def test_check__long_statement__is_found(tmp_path: Path) -> None:
    statement = QUERY + "select\n" + "    1,\n" * 70 + "    2"
    files = {"service/store/sql/a.sql": statement, "service/a.py": 'queries.get("task_get")'}
    (found,) = _found(tmp_path, files)
    assert "task_get has 72 lines" in found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("service/a.py", "# tidy: a table of states, read as one\n" + "x = 1\n" * 501),
        ("proto/a.proto", "// tidy: a link  " + "x" * 98),
        ("tests/test_a.py", "time.sle" + "ep(1)  # tidy: the clock is what is tested"),
        ("service/a.py", "# TO" + "DO #12 later"),
        ("service/a.py", LONG_FUNCTION.replace(":\n", ":  # tidy: one match\n", 1)),
        ("sdk/tenure/v1/types.py", "x = 1\n" * 501),
    ],
)
def test_check__exempted_with_a_reason__finds_nothing(tmp_path: Path, name: str, text: str) -> None:
    assert _found(tmp_path, {name: text}) == []


def test_check__defined_tested_and_used__finds_nothing(tmp_path: Path) -> None:
    files = {
        "docs/invariants.md": INVARIANTS,
        "tests/test_a.py": TESTED,
        "service/a.py": "# Holds INV" + '-01.\nqueries.get("task_get")\n',
        "service/store/sql/a.sql": QUERY + "-- Invariants: INV" + "-01.\nselect 1",
    }
    assert _found(tmp_path, files) == []
