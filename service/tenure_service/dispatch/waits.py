"""Activations that wait in memory for what they started: told over their streams when it is over.

What a run waits for is registered with the waiters of the process, so the same hints and the same
look once a second serve it; what may be over is then looked up, of all runs together, and told in
one message a run. The more a run waits for, the longer one message gathers: ten thousand children
that end one by one cost some hundred messages, and a few children none of the delay.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_service_pb2 as service
from tenure_service.dispatch import history
from tenure_service.dispatch.batcher import Batcher
from tenure_service.dispatch.memory import Memory
from tenure_service.dispatch.session import Session
from tenure_service.dispatch.waiters import Waiter, Waiters
from tenure_service.engine import limits
from tenure_service.engine.errors import TenureError
from tenure_service.engine.tokens import TaskKey, task_id_text
from tenure_service.store.database import Database
from tenure_service.store.rows import ChildResultRow
from tenure_service.store.steps import Child
from tenure_service.usecase import steps

_log = logging.getLogger(__name__)

Results = dict[tuple[str, str], ChildResultRow]
_GATHER_SECONDS_EACH: Final = 100e-6
_GATHER_SECONDS_MAX: Final = 0.25
_AGAIN_SECONDS: Final = 1.0
#: How often a worker that does not read is looked at again.
_UNREAD_SECONDS: Final = 0.05
_MESSAGE_BYTES_MAX: Final = 1024 * 1024


class RunWait:
    """What one activation waits for."""

    def __init__(self, session: Session, run_id: str) -> None:
        self.session = session
        self.run_id = run_id
        self.waiter = Waiter(session.namespace_id, ())
        self.stopped = False

    def stop(self) -> None:
        """Ends the waiting: the activation is over for its session, or the stream is gone."""
        self.stopped = True
        self.waiter.event.set()

    def take_hinted(self) -> list[Child]:
        """Gives those that may be over, and are still waited for."""
        waiter = self.waiter
        waiter.event.clear()
        hinted = waiter.hinted | waiter.known.keys()
        waiter.hinted.clear()
        waiter.known.clear()
        return [
            Child(self.run_id, waiter.keys[child_id])
            for child_id in sorted(hinted)
            if child_id in waiter.keys
        ]


class Waits:
    """All activations of one server that wait in memory; used on its event loop."""

    def __init__(
        self,
        database: Database,
        waiters: Waiters,
        memory: Memory,
    ) -> None:
        self._database = database
        self._waiters = waiters
        self._memory = memory
        self._by_run: dict[tuple[Session, str], RunWait] = {}
        self._followers: set[asyncio.Task[None]] = set()
        self._look_ups: Batcher[Sequence[Child], Results] = Batcher(
            "waits", self._flush, count_max=limits.WAIT_COUNT_MAX
        )

    def __len__(self) -> int:
        return len(self._by_run)

    @property
    def waiting_count(self) -> int:
        """Children that wait to be looked up."""
        return self._look_ups.waiting_count

    def wait(
        self, session: Session, run_id: str, lease_token: str, keys: Iterable[TaskKey]
    ) -> None:
        """Tells an activation of its children's ends, from now on until it is over itself.

        One that the session does not hold is told nothing: it is lost, and its heartbeat says so.
        """
        if not session.holds(run_id, lease_token):
            return
        one = self._by_run.get((session, run_id))
        if one is None:
            one = self._by_run[session, run_id] = RunWait(session, run_id)
            session.on_drop[run_id] = one.stop
            follower = asyncio.get_running_loop().create_task(self._follow(one))
            self._followers.add(follower)
            follower.add_done_callback(self._followers.discard)
        added = self._waiters.extend(one.waiter, keys)
        # Looked up after they are registered: what ends in between is hinted.
        one.waiter.hint(added)

    def stop(self, session: Session) -> None:
        """Ends all waiting of a session whose stream is gone."""
        while session.on_drop:
            session.on_drop.popitem()[1]()

    async def _follow(self, one: RunWait) -> None:
        try:
            while not one.stopped:
                await one.waiter.event.wait()
                if one.session.outgoing_bytes >= limits.ASSIGN_BYTES_MAX:
                    await asyncio.sleep(_UNREAD_SECONDS)
                elif not one.stopped:
                    await asyncio.sleep(await self._tell(one))
        finally:
            self._waiters.remove(one.waiter)
            del self._by_run[one.session, one.run_id]

    async def _tell(self, one: RunWait) -> float:
        """Tells what is over of what may be; gives the time until the next look."""
        wanted = one.take_hinted()
        if not wanted:
            return 0.0
        try:
            found = await self._look_ups.submit(one.session.namespace_id, wanted, count=len(wanted))
        except Exception as exc:  # noqa: BLE001 - the run would wait for ever
            _log.warning(
                "what run %s waits for was not looked up; it is tried again: %s",
                one.run_id,
                exc,
                exc_info=not isinstance(exc, TenureError),
            )
            one.waiter.hint(child.key.task_id for child in wanted)
            return _AGAIN_SECONDS
        message = stream.Resolved(run_id=one.run_id)
        for _, key in wanted:
            row = found.get((one.run_id, key.task_id))
            if row is None:
                message.children.append(history.unknown_child(task_id_text(*key)))
            elif row.outcome is None:
                continue
            elif not row.fits:
                one.waiter.hint([key.task_id])
                continue
            else:
                message.children.append(history.child(task_id_text(*key), row))
            self._waiters.drop(one.waiter, [key.task_id])
        if message.children and not one.stopped:
            size = message.ByteSize()
            self._memory.take(size)
            one.session.send(service.WorkResponse(resolved=message), input_bytes=size)
        return min(len(one.waiter.keys) * _GATHER_SECONDS_EACH, _GATHER_SECONDS_MAX)

    def _flush(self, batch: Sequence[Sequence[Child]]) -> list[Results]:
        children = [child for wanted in batch for child in wanted]
        found = steps.results(self._database, children, bytes_max=_MESSAGE_BYTES_MAX)
        return [found] * len(batch)

    def close(self) -> None:
        """Ends the waiting of all, and the thread."""
        for one in self._by_run.values():
            one.stop()
        self._look_ups.close()
