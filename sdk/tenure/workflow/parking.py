"""Verbs that only wait: for tasks and runs to be over, and for times.

While a verb is parked, its branch needs nothing of this process but a place in memory. What the
parked verbs of a function wait for is what the server is told when the function is suspended.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
from typing import TYPE_CHECKING

from google.protobuf import duration_pb2

from tenure.v1 import worker_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenure.workflow.branches import Owner
    from tenure.workflow.flow import Flow
    from tenure.workflow.journal import Journal
    from tenure.workflow.port import Port

_EVER = 3650 * 86_400


@dataclasses.dataclass(eq=False, slots=True, kw_only=True)
class Wait:
    """Wait is what one parked verb waits for.

    Attributes:
        future: Ends when the verb may look again.
        outstanding: Ids of tasks and runs that are not over.
        needed_count: How many of them are to be over before the verb looks again.
        asleep_count: The same while the function is out of memory, where to look is dear.
        wake_at: Time of the loop at which it looks in any case; None: none.
        since: Time of the loop at which it was parked.
    """

    future: asyncio.Future[None]
    outstanding: set[str]
    needed_count: int
    asleep_count: int
    wake_at: float | None
    since: float


class Parking:
    """Parking is the parked verbs of one activation.

    Args:
        flow: Whether they may go on waiting.
        journal: What is known to be over.
        port: Where to ask for the rest.
        changed: Called when a verb was parked.
    """

    def __init__(
        self, flow: Flow, journal: Journal, port: Port, changed: Callable[[], None]
    ) -> None:
        self._flow = flow
        self._journal = journal
        self._port = port
        self._changed = changed
        self.parked: dict[Owner, Wait] = {}
        self.joining: dict[Owner, asyncio.Future[None]] = {}
        self._watchers: dict[str, list[Wait]] = {}
        self._asked: set[str] = set()
        self._to_ask: list[str] = []

    async def until_over(
        self, owner: Owner, child_ids: Iterable[str], needed_count: int, asleep_count: int = 0
    ) -> None:
        """Waits until some of these tasks and runs, of which none is known to be over, are.

        Args:
            owner: Branch that waits.
            child_ids: What it waits for.
            needed_count: How many are to be over.
            asleep_count: How many, if the function leaves memory before; 0: as many.
        """
        wait = self._wait(needed_count, asleep_count or needed_count, None)
        wait.outstanding.update(child_ids)
        for child_id in wait.outstanding:
            self._watchers.setdefault(child_id, []).append(wait)
            if child_id not in self._asked:
                self._asked.add(child_id)
                self._to_ask.append(child_id)
        if self._to_ask:
            asyncio.get_running_loop().call_soon(self._ask, context=contextvars.Context())
        try:
            await self._park(owner, wait)
        finally:
            for child_id in wait.outstanding:
                watchers = self._watchers.get(child_id)
                if watchers is not None and wait in watchers:
                    watchers.remove(wait)

    async def until_time(self, owner: Owner, wake_at: float) -> None:
        """Waits for a time of the loop."""
        wait = self._wait(0, 0, wake_at)
        timer = asyncio.get_running_loop().call_at(
            wake_at, _end, wait.future, context=contextvars.Context()
        )
        try:
            await self._park(owner, wait)
        finally:
            timer.cancel()

    async def until_joined(self, owner: Owner, future: asyncio.Future[None]) -> None:
        """Waits for the end of another branch, which is no wait of its own."""
        self.joining[owner] = future
        try:
            await self._flow.until(owner, future)
        finally:
            self.joining.pop(owner, None)

    def resolve(self, child_id: str) -> None:
        """Lets verbs look again after a task or run was over."""
        for wait in self._watchers.pop(child_id, []):
            wait.outstanding.discard(child_id)
            wait.needed_count -= 1
            wait.asleep_count -= 1
            if wait.needed_count <= 0:
                _end(wait.future)

    def holds(self, owner: Owner) -> bool:
        """Says whether a branch is parked, or waits for another one, and will go on waiting."""
        wait = self.parked.get(owner)
        future = self.joining.get(owner) if wait is None else wait.future
        return future is not None and not future.done()

    def wakes_at(self) -> float | None:
        """Returns the soonest time of the loop at which a verb goes on by itself."""
        times = [wait.wake_at for wait in self.parked.values() if wait.wake_at is not None]
        return min(times, default=None)

    def waits_for_children(self) -> bool:
        """Says whether a verb waits for anything but time."""
        return any(wait.outstanding for wait in self.parked.values())

    def suspension(self, now: float) -> worker_pb2.Suspended:
        """Returns what the parked verbs wait for, as the server is told."""
        message = worker_pb2.Suspended()
        for wait in self.parked.values():
            if wait.outstanding:
                count = min(max(wait.asleep_count, 1), len(wait.outstanding))
                message.waits.add(child_ids=sorted(wait.outstanding), needed_count=count)
        wakes_at = self.wakes_at()
        if wakes_at is not None:
            message.wake_after.CopyFrom(duration(wakes_at - now))
        return message

    def _wait(self, needed_count: int, asleep_count: int, wake_at: float | None) -> Wait:
        loop = asyncio.get_running_loop()
        return Wait(
            future=loop.create_future(),
            outstanding=set(),
            needed_count=needed_count,
            asleep_count=asleep_count,
            wake_at=wake_at,
            since=loop.time(),
        )

    async def _park(self, owner: Owner, wait: Wait) -> None:
        self.parked[owner] = wait
        self._changed()
        try:
            await self._flow.until(owner, wait.future)
        finally:
            self.parked.pop(owner, None)

    def _ask(self) -> None:
        if self._to_ask and self._flow.unwinding is None:
            asked, self._to_ask = self._to_ask, []
            self._port.wait(asked)


def duration(seconds: float) -> duration_pb2.Duration:
    """Returns a time of 0 s to 3,650 days as a message."""
    seconds = min(max(seconds, 0.0), _EVER)
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
