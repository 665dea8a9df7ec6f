"""docs/upgrading.md is true: its commands run, and servers say what it quotes."""

import re
from pathlib import Path

import pytest

from tenure_service.store import migrate
from tests import documents
from tests.test_documents import ROOT
from tests.test_operating import Operator

PAGE = ROOT / "docs" / "upgrading.md"
CASES = ["pre missing", "post missing", "newer", "newer and breaking", "edited"]


def test_follow__page__does_what_it_says(tmp_path: Path, durable: str) -> None:
    operator = Operator(tmp_path, durable)
    # The page speaks of a system that is there.
    migrate.migrate(durable)
    try:
        steps = documents.steps(PAGE)
        assert len(steps) >= 6
        for step in steps:
            operator.follow(step)
    finally:
        operator.stop()


def quoted() -> list[tuple[bool, list[str]]]:
    """Reads the table of what a server makes of a schema: whether it runs, and what it says."""
    text = PAGE.read_text(encoding="utf-8").partition("## What a server makes of a schema")[2]
    rows = re.findall(r"^\| .* \| (runs|ends with 1) \| `+(.+?)`+ \|$", text, re.MULTILINE)
    return [(outcome == "runs", line.split("...")) for outcome, line in rows]


@pytest.mark.parametrize("case", CASES)
def test_check_ready__case_of_the_page__says_what_it_quotes(
    empty_database: str, tmp_path: Path, case: str
) -> None:
    first = tmp_path / "0001_pre_first.sql"
    second = tmp_path / f"0002_{'post' if case.startswith('post') else 'pre'}_second.sql"
    first.write_text("create table firsts (id int);")
    second.write_text(
        "--! breaking\n" * case.endswith("breaking") + "create table seconds (id int);"
    )
    if "missing" in case:
        text = second.read_text()
        second.unlink()
        migrate.migrate(empty_database, folder=tmp_path)
        second.write_text(text)
    else:
        migrate.migrate(empty_database, folder=tmp_path)
        if "newer" in case:
            second.unlink()
        else:
            second.write_text("create table thirds (id int);")
    found = migrate.check_ready(empty_database, folder=tmp_path)
    rows = quoted()
    assert len(rows) == len(CASES)
    runs, parts = rows[CASES.index(case)]
    assert found.ready is runs
    (said,) = [*found.problems, *found.warnings]
    pattern = ".+".join(re.escape(part) for part in parts)
    assert re.fullmatch(pattern, said), said
