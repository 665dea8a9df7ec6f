"""Enqueues no-op tasks at a rate until SIGTERM: python -m bench.pace ADDRESS RATE.

Open loop: a slow answer delays no later call, so what is asked of the server does not adapt to it.
Prints `ready` once the first is stored; at the end how many tasks were stored, and how many not.
"""

import asyncio
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from grpc import aio

from bench import rig
from bench.calls import Calls

_CALLS_A_SECOND = 100
#: Calls that are under way: a server that is so far behind cannot take the rate.
_CALLS_MAX = 500
_INPUT = b'{"number": 1}'


class Pace:
    """A process that enqueues; `failed` tells afterwards how many tasks were not stored."""

    def __init__(self, address: str, rate: float) -> None:
        self._command = [sys.executable, "-m", "bench.pace", address, str(rate)]
        self._process: subprocess.Popen[str] | None = None
        self.stored = 0
        self.failed = 0

    def __enter__(self) -> Self:
        """Begins to enqueue."""
        self._process = subprocess.Popen(
            self._command, cwd=rig.ROOT, stdout=subprocess.PIPE, text=True
        )
        if self._process.stdout is None or self._process.stdout.readline().strip() != "ready":
            self._process.kill()
            raise RuntimeError("nothing is enqueued")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends it, and reads what became of its tasks."""
        if self._process is None:
            return
        self._process.terminate()
        said, _ = self._process.communicate(timeout=120)
        counts = said.split()
        if len(counts) == 2:
            self.stored, self.failed = int(counts[0]), int(counts[1])
        elif kind is None:
            raise RuntimeError("the tasks were not enqueued")


async def main() -> None:
    """Enqueues by the clock."""
    address, rate = sys.argv[1], float(sys.argv[2])
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    calls = Calls(address)
    counts = {True: 0, False: 0}
    under_way: set[asyncio.Task[None]] = set()

    async def send(count: int) -> None:
        try:
            await calls.enqueue(count, "noop", _INPUT)
        except aio.AioRpcError:
            counts[False] += count
        else:
            counts[True] += count

    await send(1)
    print("ready", flush=True)
    began, asked = time.monotonic(), 0
    while not stopping.is_set():
        count = int((time.monotonic() - began) * rate) - asked
        if count > 0:
            asked += count
            if len(under_way) < _CALLS_MAX:
                call = asyncio.create_task(send(count))
                under_way.add(call)
                call.add_done_callback(under_way.discard)
            else:
                counts[False] += count
        await asyncio.sleep(1 / _CALLS_A_SECOND)
    await asyncio.gather(*under_way)
    print(counts[True], counts[False])


if __name__ == "__main__":
    asyncio.run(main())
