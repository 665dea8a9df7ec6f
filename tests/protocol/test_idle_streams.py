"""Row 39: streams that do nothing take no capacity from other calls."""

import asyncio
import time

from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

STREAMS = 300


async def test_call__300_idle_streams__is_answered(client: Caller) -> None:
    channels = [Caller(client.address) for _ in range(6)]
    gate = asyncio.Semaphore(30)

    async def opened(number: int) -> RawWorker:
        async with gate:
            return await RawWorker.open(channels[number % 6], "idle", slots=4)

    streams = await asyncio.gather(*(opened(number) for number in range(STREAMS)))
    assert len({one.opened.session_id for one in streams}) == STREAMS
    began = time.monotonic()
    assert await client.healthy()
    task_id = (await client.enqueue())[0]
    assert await client.state(task_id) == "READY"
    leased = (await client.lease()).assignments[0]
    assert not (await client.renew(leased.lease_token)).lost_lease_tokens
    assert await client.report(caller.completed(leased)) == ["RECORDED"]
    assert (await client.wait(task_id)).results[0].task_id == task_id
    # Seven calls; the bound is only there to tell an answer from a queue.
    assert time.monotonic() - began < 10
    acks = await asyncio.gather(*(one.beat() for one in streams))
    assert len(acks) == STREAMS
    for channel in channels:
        await channel.close()
    await asyncio.gather(*(one.ended() for one in streams))
