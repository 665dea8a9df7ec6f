"""The pages for people who come from elsewhere: one screen, and a port that runs."""

from pathlib import Path

import pytest

from tests import documents
from tests.test_documents import ROOT, Reader

PAGES = ["from-celery", "from-dbos"]
LINES_MAX = 60


@pytest.mark.parametrize("name", PAGES)
def test_follow__page_for_newcomers__the_port_does_what_it_says(
    name: str, tmp_path: Path, empty_database: str
) -> None:
    reader = Reader(tmp_path, empty_database)
    promised = 0
    try:
        for step in documents.steps(ROOT / "docs" / f"{name}.md"):
            reader.follow(step)
            promised += len(step.expected) if isinstance(step, documents.Command) else 0
    finally:
        reader.stop()
    assert promised


@pytest.mark.parametrize("name", PAGES)
def test_read__page_for_newcomers__is_one_screen_of_valid_code(name: str) -> None:
    page = ROOT / "docs" / f"{name}.md"
    assert len(page.read_text(encoding="utf-8").splitlines()) <= LINES_MAX
    programs = [x for x in documents.steps(page) if isinstance(x, documents.File)]
    assert [program.name for program in programs][1:] == ["app.py"]
    for program in programs:
        compile(program.text, program.name, "exec")
