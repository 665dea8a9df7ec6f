"""Workers that hold long tasks: python -m bench.holding ADDRESS SESSIONS TASKS LEASE.

Each of SESSIONS streams accepts TASKS tasks, says that their handlers have started, and renews
their leases at the server's interval until it is killed. LEASE is `block` (it offers all its slots
at once, so a lease has up to 200 tasks) or `single` (it offers one more slot whenever it was given
a task, as workers do to whom tasks come one by one: each has a lease of its own). Prints `ready`
once everything is held.
"""

import asyncio
import gc
import random
import sys
from typing import Any

from grpc import aio

from bench.calls import NAME, Calls
from tenure.v1 import work_stream_pb2 as messages
from tenure.v1 import worker_pb2
from tenure.v1 import worker_service_pb2 as service

_CHANNELS = 10
_OPENING_MAX = 50


class Holder:
    """One worker whose tasks do not end."""

    def __init__(self, calls: Calls, number: int, wanted: int, *, singly: bool) -> None:
        self._calls = calls
        self._number = number
        self._wanted = wanted
        self._singly = singly
        self._sending = asyncio.Lock()
        self._held = 0
        self._tokens: set[str] = set()
        self.opened = asyncio.Event()
        self.full = asyncio.Event()

    async def run(self) -> None:
        """Takes and holds.

        Raises:
            RuntimeError: the stream ended, or a lease was lost.
        """
        call = self._calls.work.Work()
        beat: asyncio.Task[None] | None = None
        await call.write(service.WorkRequest(open=self._open()))
        while (response := await call.read()) is not aio.EOF:
            kind = response.WhichOneof("message")
            if kind == "opened":
                self.opened.set()
                seconds = response.opened.heartbeat_interval.ToTimedelta().total_seconds()
                beat = asyncio.create_task(self._beat(call, seconds))
            elif kind == "assign":
                await self._take(call, response.assign.assignments)
            elif kind == "heartbeat_ack" and response.heartbeat_ack.lost_lease_tokens:
                raise RuntimeError("a lease was lost")
        raise RuntimeError(f"the stream ended, with a heartbeat that is {beat}")

    def _open(self) -> messages.Open:
        return messages.Open(
            worker=worker_pb2.WorkerIdentity(name=f"holder-{self._number}", sdk="bench"),
            handlers=[worker_pb2.Handler(name=NAME)],
            slots=worker_pb2.Slots(total=1 if self._singly else self._wanted),
            protocol_version="1.0",
        )

    async def _take(self, call: Any, given: list[worker_pb2.Assignment]) -> None:
        tokens = {each.lease_token for each in given}
        self._tokens |= tokens
        self._held += len(given)
        accept = messages.Accept(lease_tokens=tokens)
        await self._send(call, service.WorkRequest(accept=accept))
        started = [
            messages.StartedTask(task_id=each.task_id, lease_token=each.lease_token)
            for each in given
        ]
        await self._send(call, service.WorkRequest(started=messages.Started(tasks=started)))
        if self._held >= self._wanted:
            self.full.set()
        elif self._singly:
            slots = messages.SetSlots(slots=worker_pb2.Slots(total=self._held + 1))
            await self._send(call, service.WorkRequest(set_slots=slots))

    async def _beat(self, call: Any, seconds: float) -> None:
        await asyncio.sleep(random.uniform(0, seconds))
        number = 0
        while True:
            number += 1
            beat = messages.Heartbeat(heartbeat_id=number, lease_tokens=self._tokens)
            await self._send(call, service.WorkRequest(heartbeat=beat))
            await asyncio.sleep(seconds)

    async def _send(self, call: Any, request: service.WorkRequest) -> None:
        async with self._sending:
            await call.write(request)


async def _full(holders: list[Holder]) -> None:
    for holder in holders:
        await holder.full.wait()


async def main() -> None:
    """Opens the streams some at a time, and waits until all is held."""
    address, sessions, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    singly = sys.argv[4] == "single"
    channels = [Calls(address) for _ in range(_CHANNELS)]
    opening = asyncio.Semaphore(_OPENING_MAX)
    holders = [
        Holder(channels[number % _CHANNELS], number, wanted, singly=singly)
        for number in range(sessions)
    ]

    async def start(holder: Holder) -> asyncio.Task[None]:
        async with opening:
            holding = asyncio.create_task(holder.run())
            opened = asyncio.create_task(holder.opened.wait())
            await asyncio.wait({holding, opened}, return_when=asyncio.FIRST_COMPLETED)
            return holding

    running = await asyncio.gather(*(start(holder) for holder in holders))
    print("open", flush=True)
    filling = asyncio.create_task(_full(holders))
    await asyncio.wait({filling, *running}, return_when=asyncio.FIRST_COMPLETED)
    if filling.done():
        # What this process holds is not to be looked through beside what is measured.
        gc.freeze()
        print("ready", flush=True)
    # The first that fails ends the program: what is measured is that nothing is lost.
    await asyncio.gather(*running)


if __name__ == "__main__":
    asyncio.run(main())
