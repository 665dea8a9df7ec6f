"""A worker's session as the server that has its stream knows it: credits and what is out.

The database has the truth (leases, epoch); this is what makes the hot path cheap: a report of a
hand-out that this server made needs no look-up, and slots are counted without a query.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_service_pb2 as service
from tenure_service.dispatch.lanes import Handled
from tenure_service.dispatch.wire import Written
from tenure_service.engine.access import ANYBODY, Principal
from tenure_service.engine.limits import ASSIGN_BYTES_MAX, RELEASE_PAUSE, RELEASE_PAUSE_MAX
from tenure_service.engine.tokens import task_id_text
from tenure_service.store.registry import ANY_VERSION

if TYPE_CHECKING:
    from tenure_service.engine.errors import TenureError
    from tenure_service.store.versions import WorkflowHandler

Served = tuple[str, str]
Outgoing = service.WorkResponse | Written
_GRACE_ERROR_SECONDS = 0.5
_COOL_SECONDS_MAX = RELEASE_PAUSE_MAX.total_seconds()


class Held(NamedTuple):
    """One task, or one activation of a run, that is out, as it was handed out."""

    lease_id: str
    lease_token: str
    run_id: str
    task_id: str
    delivery: int
    attempt: int
    queue: str
    suspect: bool
    activation: bool = False


class Slots(NamedTuple):
    """Granted credits: for tasks, of all queues and of some; and apart from them for activations."""

    total: int
    by_queue: dict[str, int]
    activations: int = 0

    def of(self, handled: Handled) -> int:
        """Gives the credits that what is handled takes from, whatever its queue."""
        return self.activations if handled.app_version else self.total

    def to_json(self) -> dict[str, object]:
        """Gives what the database has of them."""
        return {
            "total": self.total,
            "by_queue": self.by_queue,
            "activations": self.activations,
        }


def handled_by(
    namespace_id: int, tasks: Iterable[Served], workflows: Iterable["WorkflowHandler"]
) -> frozenset[Handled]:
    """Gives what waits for handlers: tasks; and runs that nobody had, or that they go on with."""
    found = {Handled(namespace_id, queue, name) for queue, name in tasks}
    for one in workflows:
        for version in (ANY_VERSION, *one.versions):
            found.add(Handled(namespace_id, one.queue, one.name, version))
    return frozenset(found)


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
        workflows: Sequence["WorkflowHandler"] = (),
        principal: Principal = ANYBODY,
    ) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.namespace_id = namespace_id
        self.worker = worker
        self.principal = principal
        #: What the stream is to be ended with, if the server ends it.
        self.ended_with: TenureError | None = None
        self.workflows = workflows
        self.handled = handled_by(namespace_id, served, workflows)
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
        #: By run, what ends with its activation here: the waiting for its children.
        self.on_drop: dict[str, Callable[[], None]] = {}
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
        self._activation_count = 0
        self._out: deque[tuple[Outgoing, int]] = deque()
        self._out_ready = asyncio.Event()

    @property
    def receiving(self) -> bool:
        """True while it takes tasks or activations."""
        stopped = self.detached or self.paused or self.silent
        return not stopped and (self.slots.total > 0 or self.slots.activations > 0)

    @property
    def free_count(self) -> int:
        """Counts how many more tasks it could take, of whatever queue."""
        if not self.receiving or self.reserved or self._suspect_count:
            return 0
        return max(self.slots.total - self._task_count, 0)

    @property
    def _task_count(self) -> int:
        return len(self.held) - self._activation_count

    def room(self, handled: Handled) -> int:
        """Counts the slots that are not taken, whether or not they may be filled now."""
        if not self.receiving:
            return 0
        out = self._activation_count if handled.app_version else self._task_count
        return max(self.slots.of(handled) - out, 0)

    def free(self, handled: Handled) -> int:
        """Counts how many more of a lane's tasks or runs it may be given now.

        The ones do not take the slots of the others: a worker of one slot runs the task that its
        own activation waits for, and one whose slots are full goes on with its runs.
        """
        if self.reserved or self._suspect_count:
            return 0
        if self.outgoing_bytes >= ASSIGN_BYTES_MAX or time.monotonic() < self._cool_until:
            return 0
        room = self.room(handled)
        if handled.app_version:
            return room
        bound = self.slots.by_queue.get(handled.queue)
        return room if bound is None else max(min(room, bound - self._by_queue[handled.queue]), 0)

    def hold(self, tasks: Iterable[Held], *, accept_timeout: float | None) -> None:
        """Notes tasks that are handed out; with a timeout, until they are accepted."""
        now = time.monotonic()
        lease_ids: set[str] = set()
        for task in tasks:
            lease_ids.add(task.lease_id)
            if task.task_id in self.held:
                # Out again before its report of the last time was seen to be recorded.
                self.drop(task.task_id)
            self.held[task.task_id] = task
            if task.activation:
                self._activation_count += 1
            else:
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
            if task.activation:
                self._activation_count -= 1
            else:
                self._by_queue[task.queue] -= 1
            self._suspect_count -= task.suspect
            self.told.pop(task_id, None)
            if task_id in self.on_drop:
                self.on_drop.pop(task_id)()
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
        cancel = stream.Cancel(task_id=self._text(task_id), reason=reason)
        cancel.grace_duration.FromMilliseconds(grace_ms)
        self.send(service.WorkResponse(cancel=cancel))

    def _text(self, task_id: str) -> str:
        """Gives the id that travels, of something that is out."""
        held = self.held.get(task_id)
        return task_id if held is None else task_id_text(held.run_id, task_id)

    def cancels(self) -> list[stream.Cancel]:
        """Gives again what the worker was told to cancel and still holds."""
        now = time.monotonic()
        again: list[stream.Cancel] = []
        for task_id, (reason, until) in self.told.items():
            cancel = stream.Cancel(task_id=self._text(task_id), reason=reason)
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
