"""A batch that PostgreSQL refuses, or that meets a lock, is cut until the item at fault is alone."""

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from tenure_service.dispatch.batcher import Batcher
from tenure_service.engine.errors import TenureError
from tenure_service.engine.states import Outcome
from tenure_service.store.database import Conn, Contention, DataRefused
from tenure_service.usecase import end
from tenure_service.usecase.end import Recorded
from tenure_service.usecase.enqueue import Answer, Call, enqueue
from tests.usecase.stage import Stage, ending

T = TypeVar("T")
R = TypeVar("R")


@asynccontextmanager
async def _batcher(flush: Callable[[Sequence[T]], Sequence[R]]) -> AsyncIterator[Batcher[T, R]]:
    batcher: Batcher[T, R] = Batcher("test", flush)
    try:
        yield batcher
        await batcher.drain()
    finally:
        batcher.close()


@pytest.mark.parametrize("bad_at", [0, 3, 6])
async def test_enqueue__one_item_of_the_batch_cannot_be_stored__its_mates_are(
    stage: Stage, bad_at: int
) -> None:
    sizes = []

    def flush(calls: Sequence[Call]) -> list[list[Answer] | TenureError]:
        sizes.append(len(calls))
        return enqueue(stage.database, stage.catalogue, calls)

    calls = [stage.call(stage.item(), request_id=str(uuid.uuid4())) for _ in range(7)]
    # Beyond the CHECK of the table, as something that no look at the call had refused.
    calls[bad_at] = stage.call(stage.item(priority=101), request_id=str(uuid.uuid4()))
    async with _batcher(flush) as batcher:
        # The first goes alone and keeps the thread busy, so that the rest make one batch.
        first = batcher.submit(1, stage.call(stage.item(), request_id=str(uuid.uuid4())))
        futures = [batcher.submit(1, call) for call in calls]
        await first
        for place, future in enumerate(futures):
            if place == bad_at:
                with pytest.raises(DataRefused):
                    await future
            else:
                assert not isinstance(await future, TenureError)
    assert sizes[:2] == [1, 7]
    assert stage.all("select count(*) from tasks") == [(7,)]
    stage.check()


async def test_report__one_lease_of_the_batch_is_locked_for_long__its_mates_are_recorded(
    stage: Stage,
) -> None:
    stage.tasks(5)
    opened = stage.session()
    tasks = [stage.lease(1, opened=opened)[0] for _ in range(5)]

    def flush(endings: Sequence[end.Ending]) -> list[Recorded]:
        def work(conn: Conn) -> end.Ends:
            conn.execute("set local lock_timeout = '100ms'")
            return end.end(conn, stage.catalogue, endings)

        return stage.database.transact(work).recorded

    with stage.connect() as holder, holder.transaction():
        holder.execute("select from leases where lease_id = %s for update", [tasks[2].lease_id])
        async with _batcher(flush) as batcher:
            futures = [batcher.submit(1, ending(task, Outcome.DONE)) for task in tasks]
            for place, future in enumerate(futures):
                if place == 2:
                    with pytest.raises(Contention):
                        await future
                else:
                    assert await future is Recorded.RECORDED
    assert stage.report(tasks[2], Outcome.DONE) is Recorded.RECORDED
    stage.check()


async def test_report__flood_of_one_tenant__does_not_stop_another(stage: Stage) -> None:
    """The other tenant's item goes into the next batch, not behind the flood."""
    batches: list[list[int]] = []

    def flush(items: Sequence[int]) -> Sequence[int]:
        batches.append(list(items))
        return items

    batcher: Batcher[int, int] = Batcher("test", flush, count_max=10)
    try:
        flood = [batcher.submit(1, 1) for _ in range(100)]
        other = batcher.submit(2, 2)
        assert await other == 2
        assert 2 in batches[1]
        for future in flood:
            await future
    finally:
        batcher.close()
