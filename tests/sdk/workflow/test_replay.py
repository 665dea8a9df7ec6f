"""Random workflows under random timing, killed at each record: the same in the end."""

import pytest

from tests.sdk.workflow import programs
from tests.sdk.workflow.storage import Flow, Storage, seeded

KINDS = ("async", "threads")


def flow_of(kind: str, seed: int, timing: int, ran: list[str]) -> Flow:
    program = programs.make(seeded(seed))
    if kind == "threads":
        return Flow(programs.threaded(program, ran))
    return Flow(programs.workflow(program, seeded(timing), ran))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(30))
async def test_take_id__any_timing__each_verb_has_the_same(kind: str, seed: int) -> None:
    found = []
    for timing in range(3):
        storage = Storage(seed=timing)
        await storage.run(flow_of(kind, seed, timing, []))
        found.append(storage.asked())
    # An iteration is as many steps as there are moments in which something is over.
    if "completed" not in str(programs.make(seeded(seed))):
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [False, True], ids=["committed", "uncommitted"])
@pytest.mark.parametrize("seed", range(12))
async def test_run__killed_at_any_record__ends_the_same(
    kind: str, seed: int, *, before: bool
) -> None:
    kill_at = 0
    while True:
        kill_at += 1
        storage, ran = Storage(seed), list[str]()
        storage.kill_at, storage.kill_before_commit = kill_at, before
        output = storage.output(await storage.run(flow_of(kind, seed, seed, ran)))
        # A replay of all of it, with other timing, comes to the same and does nothing.
        ran.clear()
        sent = dict(storage.sent)
        for child_id in storage.inputs:
            storage.finish(child_id)
        storage.now += 60
        again = await storage.run(flow_of(kind, seed, seed + 100, ran))
        assert storage.output(again) == output
        assert (ran, storage.sent) == ([], sent)
        if storage.record_count < kill_at:
            break
