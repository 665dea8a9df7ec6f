"""What releases recorded replays with the code that it was recorded with."""

from pathlib import Path

import pytest

from tenure.v1 import run_pb2
from tests.runs.histories import flows
from tests.runs.history import FOLDER, History, replay

HISTORIES = [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.json"))]


async def test_replay__workflow__has_a_history() -> None:
    recorded = {History.read(path).run.name for path in FOLDER.glob("*.json")}
    assert recorded == set(flows.app.workflows)


@pytest.mark.parametrize("path", HISTORIES)
async def test_replay__recorded_history__asks_for_nothing_and_ends_the_same(path: Path) -> None:
    history = History.read(path)
    found = await replay(history, flows.app.workflows[history.run.name].declaration)
    assert (found.mismatch, found.asked) == ("", [])
    assert found.output is not None
    assert found.output.data == history.run.output.data


@pytest.mark.parametrize("path", HISTORIES)
async def test_replay__step_of_another_name__tells_both_names(path: Path) -> None:
    history = History.read(path)
    step = next(each for each in history.steps if each.kind != run_pb2.STEP_KIND_PATCH)
    name, step.name = step.name, "ship"
    found = await replay(history, flows.app.workflows[history.run.name].declaration)
    assert "'ship'" in found.mismatch
    assert f"{name!r}" in found.mismatch
    assert found.output is None


@pytest.mark.parametrize("path", HISTORIES)
async def test_replay__last_step_not_recorded__asks_for_it(path: Path) -> None:
    history = History.read(path)
    shorter = History(history.run, history.steps[:-1])
    found = await replay(shorter, flows.app.workflows[history.run.name].declaration)
    assert found.asked == [history.steps[-1].step_id]
    assert found.output is None
