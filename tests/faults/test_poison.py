"""A task that kills whoever takes it, at the head of a thousand good ones."""

import asyncio
from collections import Counter

import psycopg

from tenure import AsyncClient, NewTask, TaskOutcome
from tenure_service.engine import limits
from tenure_service.main import Server
from tenure_service.store import invariants
from tests.faults.processes import Spawned, Troupe

GOOD = 1000
WORKERS = 2
DELIVERIES = "select task_id::text, outcome::text, attempt, final from deliveries order by delivery"


async def supervise(troupe: Troupe, address: str) -> None:
    """Starts workers again when they die, as any supervisor does."""

    def start(place: int) -> Spawned:
        return troupe.worker(address, f"worker {place}", 8)

    running = [start(place) for place in range(WORKERS)]
    while True:
        for place, one in enumerate(running):
            if not one.running:
                running[place] = start(place)
        await asyncio.sleep(0.05)  # tidy: polls processes until the test is over


async def test_crash__at_the_head_of_a_thousand__is_dead_lettered_and_costs_the_others_no_attempt(
    running: Server, client: AsyncClient, troupe: Troupe, conn: psycopg.Connection
) -> None:
    bad = (await client.enqueue(NewTask(name="crash"))).id
    # Long enough that some are still there when the bad one is handed out for the last time.
    naps = [NewTask(name="nap", arguments={"seconds": 0.2}) for _ in range(GOOD)]
    good = {task.id for task in await client.enqueue_many(naps) if not isinstance(task, Exception)}
    assert len(good) == GOOD
    supervisor = asyncio.create_task(supervise(troupe, running.address))
    left = good | {bad}
    async with asyncio.timeout(90):
        while left:
            assert not supervisor.done(), supervisor.result()
            left -= set(await client.await_tasks(sorted(left), 5))
    supervisor.cancel()
    await asyncio.wait([supervisor])
    outcome = (await client.await_tasks([bad], 5))[bad]
    assert isinstance(outcome, TaskOutcome)
    assert outcome.failure is not None
    assert outcome.failure.type == "LeaseLost"
    # Each of its hand-outs killed another process.
    assert len({line.pid for line in troupe.lines("start", bad)}) == limits.MAX_LOST
    found = conn.execute(DELIVERIES.encode()).fetchall()
    assert [row[1:] for row in found if row[0] == bad] == [
        ("LOST", 1, number == limits.MAX_LOST) for number in range(1, limits.MAX_LOST + 1)
    ]
    ends = Counter(row[1:] for row in found if row[0] != bad)
    assert ends.pop(("DONE", 1, True)) == GOOD
    # Losses cost a hand-out, never an attempt.
    assert set(ends) <= {("LOST", 1, False)}
    # From its second loss on it is handed out alone: nothing else runs where it starts.
    ended = {(line.task_id, line.delivery) for line in troupe.lines("end")}
    for last in troupe.lines("start", bad)[limits.SUSPECT_LOST :]:
        mates = [
            line
            for line in troupe.lines("start", *good)
            if line.pid == last.pid and (line.task_id, line.delivery) not in ended
        ]
        assert mates == []
    letters = await client.list_dead_letters()
    assert [(one.task_id, one.reason) for one in letters.items] == [(bad, "LEASE_LOST")]
    assert invariants.check_invariants(conn) == {}
