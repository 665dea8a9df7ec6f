"""A worker without an SDK that says everything twice, too late, or from elsewhere.

Of one hand-out at most one report may be answered RECORDED, and what it carried is what stands.
Each report is kept, so that a test may send all of them again when every task is over.
"""

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import grpc

from tenure.v1 import worker_pb2 as worker
from tests.eventually import eventually_awaited
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

NAME = "repeated"
SLOTS = 4
LEASE_SECONDS = 1.5
_BEAT_SECONDS = 0.3
_OPEN_SECONDS = 5.0
_HOW = {"once": 4, "twice": 6, "late": 2, "elsewhere": 2}
_GONE = (AssertionError, TimeoutError, grpc.RpcError, asyncio.InvalidStateError)


class Repeater:
    """One session after another on several servers, and what they answered.

    Attributes:
        answers: The statuses of each hand-out's reports, by their number.
        sent: Every report.
        done: How often each kind of misbehaviour was carried out.
        tame: True: it reports everything once and in time.
    """

    def __init__(self, addresses: Sequence[str], rng: random.Random) -> None:
        self.answers: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self.sent: list[worker.Result] = []
        self.done: Counter[str] = Counter()
        self.tame = False
        self._addresses = addresses
        self._rng = rng
        self._late: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            while True:
                await self._visit()
                await asyncio.sleep(0.2)  # tidy: the pause before it connects again
        finally:
            for late in self._late:
                late.cancel()

    async def _visit(self) -> None:
        """Serves until a stream ends, on new channels: old ones wait longer each time."""
        clients = [Caller(address) for address in self._addresses]
        self._rng.shuffle(clients)
        try:
            # gRPC raises CancelledError for a call that ended here: only in a task of its own
            # that is not mistaken for the end of the test.
            serving = asyncio.create_task(self._serve(*clients))
            await asyncio.wait([serving])
            problem = None if serving.cancelled() else serving.exception()
            if not isinstance(problem, _GONE) and problem is not None:
                raise problem
        finally:
            serving.cancel()
            for client in clients:
                await client.close()

    async def repeat_all(self, address: str) -> Counter[str]:
        """Sends every report once more by the call, once the server is back; counts the answers."""
        client = Caller(address)

        async def is_back() -> bool:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await client.healthy()
            return False

        assert await eventually_awaited(is_back, seconds=60)
        said: Counter[str] = Counter()
        for first in range(0, len(self.sent), 500):
            said.update(await client.report(*self.sent[first : first + 500]))
        await client.close()
        return said

    async def _serve(self, client: Caller, other: Caller) -> None:
        # gRPC lets a first message wait for ever where its call failed before it was sent.
        async with asyncio.timeout(_OPEN_SECONDS):
            one = await RawWorker.open(client, NAME, slots=SLOTS)
        try:
            while one.code is None:  # until the stream has ended
                new = list(one.out.values())
                if new:
                    await one.accept()
                # Also when it holds nothing: a session that let a task lie gets none until it speaks.
                await one.beat(*{item.lease_token for item in new})
                late_count = self.done["late"]
                for item in new:
                    one = await self._end(one, item, client, other)
                if self.done["late"] > late_count:
                    # What it no longer names keeps its place in this session: it goes on in a new one.
                    return
                await asyncio.sleep(_BEAT_SECONDS)  # tidy: the interval of the heartbeats
        finally:
            one.call.cancel()

    async def _end(
        self, one: RawWorker, item: worker.Assignment, client: Caller, other: Caller
    ) -> RawWorker:
        (how,) = self._rng.choices(list(_HOW), list(_HOW.values()))
        how = "once" if self.tame else how
        self.done[how] += 1
        if how == "late":
            del one.out[item.task_id]
            late = asyncio.create_task(self._report_late(client, item))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            return one
        if how == "elsewhere":
            old, one = one, await self._move(one, other)
            with contextlib.suppress(*_GONE):
                await self._report(old, item)
            with contextlib.suppress(*_GONE):
                await self._call(client, item)
        await self._report(one, item)
        if how == "twice":
            await self._report(one, item)
        return one

    async def _move(self, one: RawWorker, other: Caller) -> RawWorker:
        """Goes on with a session on another server, while its old stream still stands."""
        held = dict(one.out)
        tokens = sorted({item.lease_token for item in held.values()})
        async with asyncio.timeout(_OPEN_SECONDS):
            moved = await RawWorker.open(other, NAME, slots=SLOTS, resume=one, holding=tokens)
        moved.out = held | moved.out
        return moved

    async def _report_late(self, client: Caller, item: worker.Assignment) -> None:
        await asyncio.sleep(LEASE_SECONDS * 1.7)  # tidy: until its lease is over
        again = Caller(client.address)
        with contextlib.suppress(*_GONE):
            await self._call(again, item)
            await self._call(again, item)
        await again.close()

    async def _report(self, one: RawWorker, item: worker.Assignment) -> None:
        number, result = self._result(item)
        self._keep(item, number, await one.report(result))

    async def _call(self, client: Caller, item: worker.Assignment) -> None:
        number, result = self._result(item)
        self._keep(item, number, await client.report(result))

    def _result(self, item: worker.Assignment) -> tuple[int, worker.Result]:
        number = len(self.sent)
        result = caller.completed(item, str(number).encode())
        self.sent.append(result)
        return number, result

    def _keep(self, item: worker.Assignment, number: int, statuses: list[str]) -> None:
        self.answers[f"{item.task_id} {item.delivery}"].append((number, statuses[0]))
