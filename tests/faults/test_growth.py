"""A transaction that stays open, so that nothing dead can be cleaned away."""

import os
import statistics
import time

import psycopg

from tenure import App, Worker, aas_completed
from tenure_service.main import Server
from tenure_service.store import invariants
from tests.faults.processes import by_hand

#: By hand 1,000 rounds leave 100,000 dead rows in every hot table.
ROUNDS = int(os.environ.get("TENURE_FAULT_ROUNDS", "30"))
EDGE = 8
BATCH = 100


@by_hand
async def test_lease__old_snapshot_keeps_all_dead_rows__rounds_take_as_long_as_at_first(
    running: Server, database: str, conn: psycopg.Connection
) -> None:
    app = App("faults", running.address)

    @app.task
    def noop() -> None: ...

    seconds: list[float] = []

    async def one_round() -> None:
        handles = await noop.aenqueue_many(() for _ in range(BATCH))
        assert len([done async for done in aas_completed(handles, 20)]) == BATCH

    async with Worker(app):
        # Warm: plans, lanes, the prefetch that short handlers earn.
        for _ in range(EDGE):
            await one_round()
        with psycopg.connect(database) as old:
            old.execute("set transaction isolation level repeatable read")
            old.execute("select count(*) from tenure.ready_tasks")
            for _ in range(ROUNDS):
                began = time.perf_counter()
                await one_round()
                seconds.append(time.perf_counter() - began)
            old.rollback()
    first, last = statistics.median(seconds[:EDGE]), statistics.median(seconds[-EDGE:])
    assert last < first * 3, f"{first * 1000:.0f} ms a round at first, {last * 1000:.0f} at the end"
    assert invariants.check_invariants(conn) == {}
