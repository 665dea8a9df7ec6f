"""One server's dispatch, put together: what rpc calls, and what loops drive."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta

from tenure_service.dispatch import measures
from tenure_service.dispatch.batcher import Batcher
from tenure_service.dispatch.leaser import Leaser
from tenure_service.dispatch.memory import Memory
from tenure_service.dispatch.recorder import Recorder
from tenure_service.dispatch.reporter import Reporter
from tenure_service.dispatch.session import Session
from tenure_service.dispatch.waiters import Waiter, Waiters
from tenure_service.dispatch.waits import Waits
from tenure_service.dispatch.wake import News, Wake
from tenure_service.dispatch.waking import Waking
from tenure_service.engine import limits, tokens
from tenure_service.engine.errors import TenureError, unauthenticated
from tenure_service.engine.tokens import TaskKey
from tenure_service.store.database import Database
from tenure_service.store.leases import Progress, Started, Token
from tenure_service.store.rows import TaskResultRow
from tenure_service.telemetry import metrics
from tenure_service.usecase import enqueue, expire, lease, maintain, read, session
from tenure_service.usecase.access import Keys
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.end import Ends

_log = logging.getLogger(__name__)

_BACKGROUND_SECONDS = 1.0
_LONG_WAIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Durations of leases, as a server grants them."""

    first_lease: timedelta = limits.FIRST_LEASE_DURATION
    lease: timedelta = limits.LEASE_DURATION
    heartbeat: timedelta = limits.HEARTBEAT_INTERVAL
    accept: timedelta = limits.ACCEPT_TIMEOUT

    @property
    def lease_ms(self) -> int:
        """The full lease, in milliseconds."""
        return int(self.lease.total_seconds() * 1000)


def _presence(one: Session) -> session.Presence:
    return session.Presence(
        session_id=one.session_id,
        epoch=one.epoch,
        receiving=one.receiving,
        slots=None if one.slots is one.noted_slots else one.slots.to_json(),
    )


def _ids(one: Session) -> dict[str, str]:
    """Gives the fields of a line that speaks of a session."""
    return {"session": one.session_id, "worker": one.worker}


@dataclass(frozen=True, slots=True)
class _Renewal:
    tokens: Sequence[Token]
    started: Sequence[Started]
    progress: Sequence[Progress]


class Hub:
    """The dispatch of one server; made and used on its event loop."""

    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        durations: Durations,
        *,
        keys: Keys,
        memory_bytes: int = limits.PAYLOAD_MEMORY_BYTES,
    ) -> None:
        self.database = database
        self.catalogue = catalogue
        self.durations = durations
        self.keys = keys
        self.waiters = Waiters()
        self.memory = Memory(memory_bytes)
        self.draining = False
        #: Called with milliseconds when a timer was set that is due earlier than anybody looks.
        self.on_timer: Callable[[int], None] = lambda _: None
        self._background: set[asyncio.Task[None]] = set()
        self._kept_at = 0.0
        self._gone: list[session.Presence] = []
        self.wake = Wake(database.dsn, database.schema, heard=self._heard)
        self.leaser = Leaser(
            database,
            catalogue,
            self.memory,
            first_lease_duration=durations.first_lease,
            accept_timeout=durations.accept,
            on_lost=self.lose,
        )
        self.reporter = Reporter(database, catalogue, after=self.ended, freed=self.leaser.freed)
        self.recorder = Recorder(database, catalogue, self.memory, started=self.started)
        self.waking = Waking(database, ended=self.ended, spawn=self.spawn)
        self.waits = Waits(database, self.waiters, self.memory)
        self._enqueues: Batcher[enqueue.Call, list[enqueue.Answer] | TenureError] = Batcher(
            "enqueue",
            lambda calls: enqueue.enqueue(database, catalogue, calls),
            threads=2,
        )
        # Keys make transactions wait for each other, so keyed calls have a batcher of their own.
        self._keyed: Batcher[enqueue.Call, list[enqueue.Answer] | TenureError] = Batcher(
            "enqueue-keyed", lambda calls: enqueue.enqueue(database, catalogue, calls)
        )
        self._renewals: Batcher[_Renewal, set[Token]] = Batcher("renew", self._flush_renewals)
        self._results: Batcher[list[tuple[int, TaskKey]], dict[tuple[int, str], TaskResultRow]] = (
            Batcher("results", self._flush_results, count_max=limits.AWAIT_COUNT_MAX)
        )

    # -- producers ---------------------------------------------------------------------------

    async def started(self, answers: Sequence[enqueue.Answer]) -> None:
        """Follows up on what was stored: counts it, and wakes who has it done."""
        measures.count_enqueued(answers)
        ranks: dict[int, int] = {}
        for answer in answers:
            if isinstance(answer, enqueue.Enqueued) and answer.lane_id is not None:
                if answer.delay_ms is not None:
                    self.on_timer(answer.delay_ms)
                else:
                    rank = -answer.priority
                    ranks[answer.lane_id] = min(rank, ranks.get(answer.lane_id, rank))
        if ranks:
            await self.readied(ranks)

    async def enqueue(self, call: enqueue.Call, size: int) -> list[enqueue.Answer]:
        """Enqueues the items of one call; gives the answers in order.

        Raises:
            TenureError: for the whole call: OVERLOADED, REQUEST_ID_REUSED, DATABASE_UNAVAILABLE.
        """
        keyed = any(item.key for item in call.items)
        batcher = self._keyed if keyed else self._enqueues
        with self.memory.inputs(size):
            answers = await batcher.submit(
                call.namespace_id, call, count=len(call.items), size=size
            )
        if isinstance(answers, TenureError):
            raise answers
        await self.started(answers)
        return answers

    async def readied(self, ranks: dict[int, int], *, anywhere: bool = False) -> None:
        """Says, here and to other servers, that lanes hold something; see `Leaser.wake`."""
        self.wake.ready(ranks)
        await self.leaser.wake(ranks, anywhere=anywhere)

    def ended(self, ends: Ends) -> None:
        """Follows up on what a committed batch ended: slots, waiters, lanes, timers."""
        measures.count(ends.tally)
        self.leaser.freed()
        for task_id in ends.stopped:
            self._end_handler(task_id)
        if ends.over:
            self.waiters.completed(ends.completions)
            self.waiters.over(ends.over)
            self.wake.over(ends.over)
        if ends.timed_ms:
            self.on_timer(min(ends.timed_ms))
        if ends.ready_lanes:
            self.spawn(self.readied(ends.ready_lanes, anywhere=True))
        self.waking.hint(ends.inboxes)
        if ends.spread:
            self.wake.cancels()
            self.spawn(self.tell_cancels())
            self.spawn(self.waking.press())

    def _end_handler(self, task_id: str) -> None:
        """Tells the worker whose hand-out the server itself ended; its report would come too late."""
        for one in self.leaser.sessions.values():
            if task_id in one.held:
                one.send_cancel(task_id, "the server ended it: it timed out or was cancelled", 0)
                one.drop(task_id)

    async def await_results(
        self,
        namespace_id: int,
        keys: Sequence[TaskKey],
        wait_seconds: float,
        *,
        of_runs: bool = False,
    ) -> dict[str, TaskResultRow | None]:
        """Waits until one of the tasks, or one of the runs, is over.

        Returns:
            By task id, those that are over; None for those that do not exist, or are not of the
            kind that is waited for. Empty if nothing is over when the time is.
        """
        waiter = Waiter(namespace_id, keys, of_runs=of_runs)
        self.waiters.add(waiter)
        if wait_seconds >= _LONG_WAIT_SECONDS:
            # Waiters that came together would come back together for ever: 9,000 of them keep the
            # loop busy for seconds. An empty answer may come earlier.
            wait_seconds *= random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        deadline = time.monotonic() + wait_seconds
        # The look at all that wait comes within a second.
        wanted = self.waiters.heard(waiter) if wait_seconds > 1 else list(keys)
        try:
            while True:
                waiter.event.clear()
                waiter.hinted.clear()
                looked_up = await self._look_up(waiter, wanted) if wanted else {}
                # What the look-up says goes first: it knows tasks from runs.
                found: dict[str, TaskResultRow | None] = {**waiter.known, **looked_up}
                left = deadline - time.monotonic()
                if found or left <= 0 or self.draining:
                    break
                try:
                    await asyncio.wait_for(waiter.event.wait(), left)
                except TimeoutError:
                    break
                wanted = [waiter.keys[one] for one in waiter.hinted - waiter.known.keys()]
        finally:
            self.waiters.remove(waiter)
        quiet = waiter.keys.keys() - found.keys() - waiter.hinted
        self.waiters.said(namespace_id, map(waiter.keys.__getitem__, quiet), of_runs=of_runs)
        return found

    async def _look_up(
        self, waiter: Waiter, keys: Sequence[TaskKey]
    ) -> dict[str, TaskResultRow | None]:
        namespace_id = waiter.namespace_id
        wanted = [(namespace_id, key) for key in keys]
        found = await self._results.submit(namespace_id, wanted, count=len(wanted))
        over: dict[str, TaskResultRow | None] = {}
        for key in keys:
            row = found.get((namespace_id, key.task_id))
            if row is None or row.of_run is not waiter.of_runs:
                over[key.task_id] = None
            elif row.outcome is not None:
                over[key.task_id] = row
        return over

    def _flush_results(
        self, batch: Sequence[list[tuple[int, TaskKey]]]
    ) -> list[dict[tuple[int, str], TaskResultRow]]:
        found = read.results(self.database, [one for wanted in batch for one in wanted])
        return [found] * len(batch)

    async def look_for_results(self) -> None:
        """Looks up what is waited for, whatever was or was not hinted: the truth of waiting."""
        wanted = self.waiters.waited_for(limits.AWAIT_COUNT_MAX)
        if wanted:
            # Not in the batcher: the look-ups of those that were hinted would stand behind it.
            self.waiters.over(await asyncio.to_thread(read.over, self.database, wanted))

    # -- workers -----------------------------------------------------------------------------

    async def renew(
        self,
        namespace_id: int,
        tokens: Sequence[tuple[str, bytes]],
        started: Sequence[Started] = (),
        progress: Sequence[Progress] = (),
    ) -> set[tuple[str, bytes]]:
        """Renews leases, notes starts and progress; gives the tokens that live on."""
        claimed = [Token(lease_id, secret, namespace_id) for lease_id, secret in tokens]
        alive = await self._renewals.submit(
            namespace_id,
            _Renewal(claimed, started, progress),
            count=len(tokens) + len(started) + len(progress),
        )
        return {(token.lease_id, token.secret) for token in alive}

    def _flush_renewals(self, batch: Sequence[_Renewal]) -> list[set[Token]]:
        tokens = [token for renewal in batch for token in renewal.tokens]
        started = [one for renewal in batch for one in renewal.started]
        progress = [one for renewal in batch for one in renewal.progress]
        alive = lease.renew(self.database, tokens, started, self.durations.lease_ms, progress)
        # Each caller is told of its own leases only: a batch holds those of many tenants.
        return [alive.intersection(one.tokens) for one in batch]

    def keep_leases(self) -> None:
        """Renews, once a heartbeat, the leases of what this server has not got round to.

        That are those of results that wait to be recorded, and those of workers whose heartbeats it
        does not read meanwhile: its own trouble must not cost them their leases.
        """
        pause = self.durations.heartbeat.total_seconds()
        if time.monotonic() - self._kept_at < pause:
            return
        self._kept_at = time.monotonic()
        wanted = self.reporter.waiting(pause)
        for one in self.leaser.sessions.values():
            if one.stalled:
                held = {tokens.lease_token_parse(task.lease_token) for task in one.held.values()}
                known = {token for token in held if token is not None}
                wanted.setdefault(one.namespace_id, set()).update(known)
        for namespace_id, leases in wanted.items():
            self.spawn(self._keep(namespace_id, leases))

    async def _keep(self, namespace_id: int, leases: set[tuple[str, bytes]]) -> None:
        _log.warning("renewing %d lease(s) for workers: this server is behind", len(leases))
        await self.renew(namespace_id, sorted(leases))

    def lose(self, session_id: str, epoch: int, lease_ids: set[str]) -> None:
        """Hands out again, at once, what a session never accepted, while it is this server's."""
        self.spawn(self._lose(session_id, epoch, lease_ids))

    async def _lose(self, session_id: str, epoch: int, lease_ids: set[str]) -> None:
        one = self.leaser.sessions.get(session_id)
        if one is not None and one.epoch == epoch:
            one.drop_leases(lease_ids)
        ends = await asyncio.to_thread(
            expire.lose, self.database, self.catalogue, session_id, epoch, sorted(lease_ids)
        )
        if ends is not None:
            self.ended(ends)

    def check_accepts(self) -> None:
        """Takes back assignments that were not accepted in time."""
        now = time.monotonic()
        for one in self.leaser.handed():
            # What is not read may be an Accept.
            overdue = set() if one.stalled else one.overdue(now)
            if overdue:
                _log.warning(
                    "worker %r did not accept %d lease(s); they are handed out again",
                    one.worker,
                    len(overdue),
                    extra=_ids(one),
                )
                one.silent = True
                metrics.LEASES_UNACCEPTED.add(len(overdue))
                self.lose(one.session_id, one.epoch, overdue)

    async def tell_cancels(self) -> None:
        """Tells workers of requests to cancel tasks that they hold."""
        notices = await asyncio.to_thread(maintain.cancel_notices, self.database)
        for notice in notices:
            for one in self.leaser.sessions.values():
                if notice.task_id in one.held:
                    one.send_cancel(notice.task_id, notice.reason, notice.grace_ms)

    async def touch_sessions(self) -> None:
        """Notes in the database which sessions this server has, and ends those that are void there.

        One that was closed after a restore is handed nothing any more: its worker is to open another.
        """
        held = list(self.leaser.sessions.values())
        if not held:
            return
        gone = await asyncio.to_thread(self._touch, held)
        for one in held:
            if one.session_id in gone and self.leaser.sessions.get(one.session_id) is one:
                _log.warning(
                    "the session of worker %r was closed in the database; its stream ends",
                    one.worker,
                    extra=_ids(one),
                )
                self.leaser.detach(one)

    async def free_lost_slots(self) -> None:
        """Gives back the slots of leases that other servers ended, or were told of.

        A worker that does not name a lease any more lets it run out, and whoever sweeps it need not
        be the server that counts its slots.
        """
        patience = 2 * self.durations.lease.total_seconds()
        unnamed = {
            one.session_id: found
            for one in self.leaser.sessions.values()
            if one.held and (found := one.unnamed(patience))
        }
        if not unnamed:
            return
        asked = set().union(*unnamed.values())
        gone = await asyncio.to_thread(lease.gone, self.database, asked)
        for session_id, lease_ids in unnamed.items():
            one = self.leaser.sessions.get(session_id)
            if one is not None and lease_ids & gone:
                one.drop_leases(lease_ids & gone)
        self.leaser.freed()

    def _touch(self, held: Sequence[Session]) -> Collection[str]:
        """Does so on a thread: describing 5,000 sessions would hold the loop up for 20 ms."""
        said = [(one, one.slots) for one in held]
        gone = session.touch(self.database, [_presence(one) for one in held])
        for one, slots in said:
            one.noted_slots = slots
        return gone

    def sent(self, one: Session, input_bytes: int) -> None:
        """Says that inputs have left for a worker."""
        one.outgoing_bytes -= input_bytes
        self.memory.give(input_bytes)
        self.leaser.freed()

    async def check_keys(self) -> None:
        """Reads the keys anew, and ends the streams of those that have ended."""
        for one in self.leaser.sessions.values():
            self.keys.uses(one.principal)
        await asyncio.to_thread(self.keys.refresh)
        for one in list(self.leaser.sessions.values()):
            if not self.keys.stands(one.principal):
                _log.warning(
                    "the key of worker %r has ended; so does its stream",
                    one.worker,
                    extra=_ids(one),
                )
                one.ended_with = unauthenticated("the key has ended")
                self.leaser.detach(one)

    def drop_session(self, one: Session) -> None:
        """Lets go of a session whose stream is gone: only what it never accepted is taken back."""
        self.leaser.detach(one)
        self.waits.stop(one)
        self.memory.give(one.outgoing_bytes)
        one.outgoing_bytes = 0
        if one.unaccepted:
            self.lose(one.session_id, one.epoch, set(one.unaccepted))
        self._gone.append(_presence(one))
        if len(self._gone) == 1:
            self.spawn(self._touch_gone())

    async def _touch_gone(self) -> None:
        """Notes that sessions receive nothing any more, those of a burst together."""
        while self._gone:
            gone = list(self._gone)
            await asyncio.to_thread(session.touch, self.database, gone)
            del self._gone[: len(gone)]

    async def release_session(self, one: Session) -> None:
        """Closes a session that said Close: what it held goes back unspent."""
        self.leaser.detach(one)
        if one.reporting:
            await asyncio.wait(set(one.reporting))
        ends = await asyncio.to_thread(
            expire.release_session, self.database, self.catalogue, one.session_id, one.epoch
        )
        if ends is not None:
            self.ended(ends)

    def waiting_counts(self) -> dict[str, int]:
        """Counts the items that wait for a batch, by the batcher's name."""
        batchers = (self._enqueues, self._keyed, self._renewals, self._results)
        found = {batcher.name: batcher.waiting_count for batcher in batchers}
        return found | {
            "report": self.reporter.waiting_count,
            "steps": self.recorder.waiting_count,
            "waits": self.waits.waiting_count,
        }

    # -- everybody ---------------------------------------------------------------------------

    async def _heard(self, news: News) -> None:
        if news.ready:
            await self.leaser.wake(news.ready)
        if news.over:
            self.waiters.over_in(news.over)
        if news.cancels:
            await self.tell_cancels()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Runs something in the background; a failure is logged, since loops repeat what counts."""
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except TenureError as exc:
            _log.warning("background work failed, a loop will do it: %s", exc)
        except Exception:  # noqa: BLE001 - nobody else would see it
            _log.exception("background work failed, a loop will do it")

    async def drain(self) -> None:
        """Waits until everything that was handed in is written."""
        parts = (self.reporter, self.recorder, self._enqueues, self._keyed, self._renewals)
        for part in parts:
            await part.drain()
        if self._background:
            await asyncio.wait(set(self._background), timeout=_BACKGROUND_SECONDS)

    def close(self) -> None:
        """Ends all threads."""
        for batcher in (self._enqueues, self._keyed, self._renewals, self._results):
            batcher.close()
        for part in (self.reporter, self.recorder, self.waits, self.leaser, self.wake):
            part.close()
