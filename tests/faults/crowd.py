"""Many streams of one process: python -m tests.faults.crowd ADDRESS COUNT, then it says `ready`.

Each stream takes one task, accepts it, and then sends heartbeats until the process is no more.
"""

import asyncio
import sys

from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

_CHANNELS = 8
_AT_ONCE = 40


async def main() -> None:
    """Opens the streams, and keeps them."""
    address, count = sys.argv[1], int(sys.argv[2])
    channels = [Caller(address) for _ in range(_CHANNELS)]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def opened(number: int) -> RawWorker:
        async with gate:
            one = await RawWorker.open(channels[number % _CHANNELS], "crowded")
            await one.tasks()
            await one.accept()
            await one.beat(one.token)
            return one

    async def beating(one: RawWorker) -> None:
        while True:
            await asyncio.sleep(0.5)  # tidy: the interval of the heartbeats
            await one.beat(one.token)

    async def lives(number: int) -> None:
        one = await opened(number)
        ready.append(one)
        if len(ready) == count:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
        await beating(one)

    ready: list[RawWorker] = []
    await asyncio.gather(*(lives(number) for number in range(count)))


if __name__ == "__main__":
    asyncio.run(main())
