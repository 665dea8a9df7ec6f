"""Many waiters of one program: how many calls they make, and how many ids those name."""

import asyncio
from collections.abc import Sequence

import pytest

from tenure import (
    App,
    AsyncClient,
    Handle,
    NewTask,
    TaskCancelled,
    TaskState,
    Unavailable,
    aas_completed,
    as_completed,
    awaiter,
    errors,
)
from tenure.connection import Connection
from tests.eventually import eventually_async, time_passes
from tests.fix_server import RunningServer

WAITERS = 2_000
ENDS = 40


class Calls:
    """The AwaitTasks calls of a program: the ids each named, and how many were open at once.

    The next `broken` calls meet a server that does not answer.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.broken = 0
        self.open_max = self._open = 0
        self._fetch = awaiter.fetch
        monkeypatch.setattr(awaiter, "fetch", self._counted)

    async def _counted(
        self, connection: Connection, ids: Sequence[str], wait_seconds: float
    ) -> dict[str, awaiter.Outcome]:
        self.sizes.append(len(ids))
        if self.broken:
            self.broken -= 1
            raise errors.Unavailable("nobody answers", status="UNAVAILABLE")
        self._open += 1
        self.open_max = max(self.open_max, self._open)
        try:
            return await self._fetch(connection, ids, wait_seconds)
        finally:
            self._open -= 1


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def client(server: RunningServer) -> AsyncClient:
    return AsyncClient(server.address, server.namespace)


async def begin(server: RunningServer, client: AsyncClient, count: int) -> list[Handle[None]]:
    """Enqueues tasks that nobody runs."""
    app = App("waits", server.address, server.namespace)

    @app.task(name="waits")
    def nobody() -> None:
        """Is run by nobody."""

    made = await client.enqueue_many([NewTask(name="waits") for _ in range(count)])
    assert not any(isinstance(each, errors.ServiceError) for each in made)
    return [nobody.handle(each.id) for each in made if not isinstance(each, errors.ServiceError)]


async def told(handle: Handle[None]) -> str:
    """Waits until a handle has heard that its task was cancelled."""
    with pytest.raises(TaskCancelled):
        await handle.aresult()
    return handle.id


async def every(
    handles: Sequence[Handle[None]], timeout: float | None, *, loop: bool
) -> list[Handle[None]]:
    """Lists the handles in the order in which their tasks are over."""
    if loop:
        return [each async for each in aas_completed(handles, timeout)]
    return await asyncio.to_thread(lambda: list(as_completed(handles, timeout)))


async def cancel(client: AsyncClient, handles: Sequence[Handle[None]]) -> None:
    for start in range(0, len(handles), 1_000):
        await client.cancel_tasks([each.id for each in handles[start : start + 1_000]])


async def test_follow__ends_one_by_one__names_few_ids_again(
    server: RunningServer, client: AsyncClient, calls: Calls
) -> None:
    handles = await begin(server, client, WAITERS)
    waits = {each.id: asyncio.create_task(told(each)) for each in handles}
    for each in handles[:: WAITERS // ENDS]:
        await cancel(client, [each])
        assert await asyncio.wait_for(waits.pop(each.id), 20) == each.id
    # Once all; the groups that the first ends were in once more, in parts; from then on small ones.
    assert sum(calls.sizes) < 3 * WAITERS + ENDS * awaiter.GROUP_ID_COUNT_MIN
    await cancel(client, handles)
    assert set(await asyncio.gather(*waits.values())) == set(waits)


async def test_follow__one_after_the_other__holds_few_calls(
    server: RunningServer, client: AsyncClient, calls: Calls
) -> None:
    handles = await begin(server, client, WAITERS)
    waits = []
    for each in handles:
        waits.append(asyncio.create_task(told(each)))
        await time_passes(seconds=0.001)
    assert calls.open_max <= awaiter.POLL_COUNT_MAX + awaiter.GROUP_COUNT_MAX
    await cancel(client, handles)
    assert await asyncio.gather(*waits) == [each.id for each in handles]


async def test_follow__all_over_in_a_moment__few_calls_answer_all(
    server: RunningServer, client: AsyncClient, calls: Calls
) -> None:
    handles = await begin(server, client, WAITERS)
    # Followed at once: one by one they would be in as many calls as the machine's pace makes.
    found = asyncio.create_task(every(handles, None, loop=True))
    assert await eventually_async(lambda: sum(calls.sizes) >= WAITERS)
    await cancel(client, handles)
    assert {each.id for each in await found} == {each.id for each in handles}
    assert await asyncio.gather(*map(told, handles)) == [each.id for each in handles]
    assert len(calls.sizes) < WAITERS // 20


async def test_follow__waiters_that_leave__end_their_calls(
    server: RunningServer, client: AsyncClient, calls: Calls
) -> None:
    handles = await begin(server, client, 10)
    waits = [asyncio.create_task(told(each)) for each in handles]
    assert await eventually_async(lambda: sum(calls.sizes) == len(handles))
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert await eventually_async(lambda: not calls._open)


async def test_wait__server_away_for_longer_than_a_call_tries__goes_on_until_its_time(
    server: RunningServer, client: AsyncClient, calls: Calls
) -> None:
    handles = await begin(server, client, 3)
    calls.broken = 2
    waits = [asyncio.create_task(each.await_(30)) for each in handles]
    assert await eventually_async(lambda: not calls.broken)
    await cancel(client, handles)
    assert set(await asyncio.gather(*waits)) == {TaskState.CANCELLED}


async def test_wait__no_time_and_server_away__raises_and_is_asked_anew(
    server: RunningServer, client: AsyncClient, calls: Calls
) -> None:
    (handle,) = await begin(server, client, 1)
    calls.broken = 1
    with pytest.raises(Unavailable):
        await handle.await_()
    await cancel(client, [handle])
    assert await handle.await_() is TaskState.CANCELLED


@pytest.mark.parametrize("loop", [False, True])
async def test_as_completed__server_away__yields_only_what_is_over(
    server: RunningServer, client: AsyncClient, calls: Calls, *, loop: bool
) -> None:
    handles = await begin(server, client, 3)
    calls.broken = 2
    found = asyncio.create_task(every(handles, 30, loop=loop))
    assert await eventually_async(lambda: not calls.broken)
    await cancel(client, handles)
    assert {each.id for each in await found} == {each.id for each in handles}


@pytest.mark.parametrize("loop", [False, True])
async def test_as_completed__no_time_and_server_away__raises_and_spoils_no_handle(
    server: RunningServer, client: AsyncClient, calls: Calls, *, loop: bool
) -> None:
    handles = await begin(server, client, 2)
    calls.broken = 1
    with pytest.raises(Unavailable):
        await every(handles, None, loop=loop)
    await cancel(client, handles)
    assert [await told(each) for each in handles] == [each.id for each in handles]
