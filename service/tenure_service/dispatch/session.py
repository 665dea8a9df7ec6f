"""A worker's session as the server that has its stream knows it: credits and what is out.

The database has the truth (leases, epoch); this is what makes the hot path cheap: a report of a
hand-out that this server made needs no look-up, and slots are counted without a query.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_service_pb2 as service
from tenure_service.dispatch.lanes import Handled
from tenure_service.dispatch.wire import Written
from tenure_service.engine.access import ANYBODY, Principal
from tenure_service.engine.limits import ASSIGN_BYTES_MAX, RELEASE_PAUSE, RELEASE_PAUSE_MAX

if TYPE_CHECKING:
    from tenure_service.engine.errors import TenureError

Served = tuple[str, str]
Outgoing = service.WorkResponse | Written
_GRACE_ERROR_SECONDS = 0.5
_COOL_SECONDS_MAX = RELEASE_PAUSE_MAX.total_seconds()


class Held(NamedTuple):
    """One task that is out, as it was handed out."""

    lease_id: str
    lease_token: str
    run_id: str
    task_id: str
    delivery: int
    attempt: int
    queue: str
    suspect: bool


class Slots(NamedTuple):
    """Granted credits."""

    total: int
    by_queue: dict[str, int]
    activations: int = 0


class Session:
    """One session of this server: what it may take, what it holds, and what is to be sent."""

    def __init__(
        self,
        *,
        session_id: str,
        epoch: int,
        namespace_id: int,
        worker: str,
        served: Iterable[Served],
        slots: Slots,
        principal: Principal = ANYBODY,
    ) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.namespace_id = namespace_id
        self.worker = worker
        self.principal = principal
        #: What the stream is to be ended with, if the server ends it.
        self.ended_with: TenureError | None = None
        self.handled = frozenset(Handled(namespace_id, queue, name) for queue, name in served)
        self.slots = slots
        self.paused = False
        #: It let an assignment lie, and has said nothing since: its connection may be half open.
        self.silent = False
        #: No new work: the stream is gone, closing, or the server drains.
        self.detached = False
        #: Set aside for a suspect: nothing else is handed out until it holds nothing.
        self.reserved = False
        #: Its slots as the database has them.
        self.noted_slots = slots
        #: The number of the last hand-out to it.
        self.served_at = 0
        self.held: dict[str, Held] = {}
        self.unaccepted: dict[str, float] = {}
        #: By task, what the worker was told to cancel: why, and until when on the monotonic clock.
        self.told: dict[str, tuple[str, float]] = {}
        #: Result batches that are being written; Close waits for them.
        self.reporting: set[asyncio.Future[object]] = set()
        #: When its worker last named a lease of those it was handed.
        self.named_at: dict[str, float] = {}
        #: Inputs that are queued for the stream or being sent.
        self.outgoing_bytes = 0
        #: Its stream is not read for want of memory: its heartbeats wait there, too.
        self.stalled = False
        #: Nothing is handed out before this time: what was is given back as it comes.
        self._cool_until = 0.0
        self._back_count = 0
        self._by_queue: Counter[str] = Counter()
        self._suspect_count = 0
        self._out: deque[tuple[Outgoing, int]] = deque()
        self._out_ready = asyncio.Event()

    @property
    def receiving(self) -> bool:
        """True while it takes tasks."""
        stopped = self.detached or self.paused or self.silent
        return not stopped and self.slots.total > 0

    @property
    def free_count(self) -> int:
        """Counts how many more tasks it could take, of whatever queue."""
        if not self.receiving or self.reserved or self._suspect_count:
            return 0
        return max(self.slots.total - len(self.held), 0)

    def free(self, queue: str) -> int:
        """Counts how many more tasks of a queue it may be given now."""
        if not self.receiving or self.reserved or self._suspect_count:
            return 0
        if self.outgoing_bytes >= ASSIGN_BYTES_MAX or time.monotonic() < self._cool_until:
            return 0
        total = self.slots.total - len(self.held)
        bound = self.slots.by_queue.get(queue)
        if bound is None:
            return max(total, 0)
        return max(min(total, bound - self._by_queue[queue]), 0)

    def hold(self, tasks: Iterable[Held], *, accept_timeout: float | None) -> None:
        """Notes tasks that are handed out; with a timeout, until they are accepted."""
        now = time.monotonic()
        lease_ids: set[str] = set()
        for task in tasks:
            lease_ids.add(task.lease_id)
            self.held[task.task_id] = task
            self._by_queue[task.queue] += 1
            self._suspect_count += task.suspect
        self.named_at.update(dict.fromkeys(lease_ids, now))
        if accept_timeout is not None:
            self.unaccepted.update(dict.fromkeys(lease_ids, now + accept_timeout))

    def gave_back(self, *, only: bool) -> float:
        """Notes that its worker gave tasks back, or nothing else, or (`only` false) did some work.

        A worker whose threads do not end has slots that are none: without a pause its tasks would go
        to and fro as fast as the wire carries them. The pause doubles from one hand-out to the next.

        Returns:
            Seconds until it may be handed something again.
        """
        now = time.monotonic()
        if not only:
            self._back_count, self._cool_until = 0, 0.0
        elif now >= self._cool_until:
            pause = min(RELEASE_PAUSE.total_seconds() * 2**self._back_count, _COOL_SECONDS_MAX)
            self._back_count = min(self._back_count + 1, 16)
            self._cool_until = now + pause
        return max(self._cool_until - now, 0.0)

    def drop(self, task_id: str) -> Held | None:
        """Forgets a task that is over for this session, and gives its slot back."""
        task = self.held.pop(task_id, None)
        if task is not None:
            self._by_queue[task.queue] -= 1
            self._suspect_count -= task.suspect
            self.told.pop(task_id, None)
        return task

    def holds(self, task_id: str, lease_token: str) -> bool:
        """Says whether a task is out under this token."""
        task = self.held.get(task_id)
        return task is not None and task.lease_token == lease_token

    def drop_reported(self, task_id: str, lease_id: str) -> None:
        """Forgets a task that was reported, unless it is out again under another lease."""
        task = self.held.get(task_id)
        if task is not None and task.lease_id == lease_id:
            self.drop(task_id)

    def drop_leases(self, lease_ids: set[str]) -> None:
        """Forgets all tasks of leases that are gone."""
        gone = [task.task_id for task in self.held.values() if task.lease_id in lease_ids]
        for task_id in gone:
            self.drop(task_id)
        for lease_id in lease_ids:
            self.unaccepted.pop(lease_id, None)

    def name_leases(self, lease_ids: Iterable[str]) -> None:
        """Notes that its worker says it holds leases."""
        now = time.monotonic()
        self.named_at.update((one, now) for one in lease_ids if one in self.named_at)

    def unnamed(self, seconds: float) -> set[str]:
        """Gives the held leases that its worker has not named for so long."""
        held = {task.lease_id for task in self.held.values()}
        self.named_at = {one: at for one, at in self.named_at.items() if one in held}
        before = time.monotonic() - seconds
        return {one for one in held if self.named_at.get(one, 0.0) < before}

    def overdue(self, now: float) -> set[str]:
        """Gives the leases whose assignments were not accepted in time."""
        return {lease_id for lease_id, deadline in self.unaccepted.items() if deadline <= now}

    def send(self, message: Outgoing, *, input_bytes: int = 0) -> None:
        """Queues a message for the stream; bounded by what the worker has credit for."""
        self._out.append((message, input_bytes))
        self.outgoing_bytes += input_bytes
        self._out_ready.set()

    def send_cancel(self, task_id: str, reason: str, grace_ms: int) -> None:
        """Tells the worker to cancel a task that it holds: once, and again if the grace shrinks."""
        until = time.monotonic() + grace_ms / 1000
        told = self.told.get(task_id)
        # What is left of a grace is read anew each time, with a little error.
        if told is not None and until > told[1] - _GRACE_ERROR_SECONDS:
            return
        self.told[task_id] = reason, until
        cancel = stream.Cancel(task_id=task_id, reason=reason)
        cancel.grace_duration.FromMilliseconds(grace_ms)
        self.send(service.WorkResponse(cancel=cancel))

    def cancels(self) -> list[stream.Cancel]:
        """Gives again what the worker was told to cancel and still holds."""
        now = time.monotonic()
        again: list[stream.Cancel] = []
        for task_id, (reason, until) in self.told.items():
            cancel = stream.Cancel(task_id=task_id, reason=reason)
            cancel.grace_duration.FromMilliseconds(max(int((until - now) * 1000), 0))
            again.append(cancel)
        return again

    def wake_writer(self) -> None:
        """Lets the writer look again, after `detached` was set."""
        self._out_ready.set()

    async def next_messages(self) -> list[tuple[Outgoing, int]]:
        """Waits for messages to send, each with the size of its inputs.

        Returns:
            Nothing once the session is detached and nothing is left.
        """
        while not self._out:
            if self.detached:
                return []
            self._out_ready.clear()
            await self._out_ready.wait()
        messages = list(self._out)
        self._out.clear()
        return messages
