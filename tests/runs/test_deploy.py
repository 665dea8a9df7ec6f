"""All workers are replaced while runs wait: what becomes of the runs of the old code."""

import asyncio
import collections
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest_asyncio

from tenure import App, AsyncClient, BlockedReason, Context, RunSnapshot, RunState, Worker
from tenure_service.main import Server
from tests.eventually import eventually_async, eventually_awaited
from tests.fix_server import RunningServer, server_config
from tests.usecase.stage import Stage

FITS, SAME, CHANGED, PINNED = 400, 200, 200, 200
RUN_COUNT = FITS + SAME + CHANGED + PINNED
PAGE = 1_000


@pytest_asyncio.fixture
async def server(database: str) -> AsyncIterator[RunningServer]:
    """A server that gives up on a version after three seconds."""
    running = Server(server_config(database, version_grace_seconds=3))
    await running.start()
    try:
        yield RunningServer(address=running.address, dsn=database)
    finally:
        await running.stop()


class Shop:
    """The code of one version, and what it did.

    Attributes:
        app: Its workflows and its task, which the queue `approvals` has.
        did: How often each function ran, by its name.
    """

    def __init__(self, server: RunningServer, version: str, compatible_with: Sequence[str]) -> None:
        self.app = app = App("shop", server.address, server.namespace, version=version)
        self.did = did = collections.Counter[str]()

        def reserve(order: int) -> int:
            did["reserve"] += 1
            return order

        def charge(order: int) -> int:
            did["charge"] += 1
            return order

        @app.task(queue="approvals")
        def approve(order: int) -> int:
            did["approve"] += 1
            return order + 1

        async def sell(ctx: Context, order: int) -> list[Any]:
            kept = await ctx.step(reserve, order)
            approved = await ctx.task(approve, kept)
            return [approved, await ctx.step(lambda: version)]

        async def sell_otherwise(ctx: Context, order: int) -> list[Any]:
            paid = await ctx.step(charge, order)
            return [await ctx.task(approve, paid)]

        # Pinned, too: nothing but the word of the new code lets these runs go on.
        fits = app.workflow(name="fits", versioning="pinned", compatible_with=compatible_with)
        self.fits = fits(sell)
        self.same = app.workflow(name="same")(sell)
        changed = sell if version == "v1" else sell_otherwise
        self.changed = app.workflow(name="changed")(changed)
        self.pinned = app.workflow(name="pinned", versioning="pinned")(changed)


async def runs_of(client: AsyncClient, name: str, state: RunState) -> list[RunSnapshot]:
    return (await client.list_runs([state], name=name, page_size=PAGE)).items


async def become(client: AsyncClient, name: str, state: RunState, count: int) -> None:
    """Waits until all runs of a workflow are in a state."""

    async def there() -> bool:
        return len(await runs_of(client, name, state)) == count

    assert await eventually_awaited(there, seconds=60), await client.list_runs(name=name)


async def test_deploy__thousand_runs_wait__go_on_block_or_wait_as_the_code_says(
    server: RunningServer, stage: Stage
) -> None:
    client = AsyncClient(server.address, server.namespace)
    old = Shop(server, "v1", [])
    fits = await old.fits.astart_many((order,) for order in range(FITS))
    same = await old.same.astart_many((order,) for order in range(SAME))
    changed = await old.changed.astart_many((order,) for order in range(CHANGED))
    pinned = await old.pinned.astart_many((order,) for order in range(PINNED))

    # Nobody serves the queue of their task.
    with stage.connect() as conn:

        def waiting() -> bool:
            query = "select count(*) from runs where status = 'WAITING'"
            return conn.execute(query).fetchall() == [(RUN_COUNT,)]

        async with Worker(old.app, queues=["default"], activations=RUN_COUNT):
            assert await eventually_async(waiting, seconds=60)
    assert old.did == {"reserve": RUN_COUNT}

    new = Shop(server, "v2", ["v1"])
    async with Worker(new.app):
        found = await asyncio.gather(*(each.aresult(60) for each in fits))
        assert found == [[order + 1, "v2"] for order in range(FITS)]
        found = await asyncio.gather(*(each.aresult(60) for each in same))
        assert found == [[order + 1, "v2"] for order in range(SAME)]
        await become(client, "changed", RunState.BLOCKED, CHANGED)
        assert await eventually_async(lambda: new.did["approve"] == RUN_COUNT, seconds=30)
        await become(client, "pinned", RunState.QUEUED, PINNED)
        told = await asyncio.gather(*(each.astatus() for each in changed))
        held = await runs_of(client, "pinned", RunState.QUEUED)
    for one in told:
        assert one.blocked is BlockedReason.HISTORY_MISMATCH
        assert one.failure is not None
        assert "CALL 'reserve'" in one.failure.message
        assert "CALL 'charge'" in one.failure.message
    assert {each.version for each in held} == {"v1"}
    # What was recorded was not done again, and what does not fit did nothing.
    assert new.did == {"approve": RUN_COUNT}

    async with Worker(old.app, queues=["default"]):
        found = await asyncio.gather(*(each.aresult(60) for each in pinned))
    assert found == [[order + 1, "v1"] for order in range(PINNED)]
    assert len(await runs_of(client, "changed", RunState.BLOCKED)) == CHANGED
    assert old.did == {"reserve": RUN_COUNT}
    stage.check()
