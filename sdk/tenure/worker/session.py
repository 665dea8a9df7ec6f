"""The session of a worker: one stream after another until the worker itself stops.

Runs on the I/O loop, except for what handlers do. Three things go on at once: the connect loop,
which opens the next stream whenever one ends; the sweep, which looks at what runs; and, once, the
stop. Results and leases outlive streams.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from tenure import errors, status
from tenure.io_thread import io_thread
from tenure.v1 import work_stream_pb2 as messages
from tenure.v1 import worker_pb2
from tenure.worker import slots
from tenure.worker.absence import Absence
from tenure.worker.activations import Activations, Hosted
from tenure.worker.endings import Endings
from tenure.worker.held import Held
from tenure.worker.job import Job
from tenure.worker.outbox import Outbox
from tenure.worker.pool import HandlerPool
from tenure.worker.process import HandlerProcesses
from tenure.worker.stream import Ending, Stream
from tenure.workflow.port_stream import Recorder

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Sequence

    import grpc.aio
    from google.protobuf import duration_pb2

    from tenure.channel import Target
    from tenure.worker.held import HandOut
    from tenure.worker.settings import Settings

_log = logging.getLogger("tenure.worker")
# Of our own: a program that seeds the shared one must not make its workers act in step.
_jitter = random.Random()  # noqa: S311 - nothing secret

PROTOCOL_VERSION = "1.0"
# Streams that broke in a row after which the channel is replaced: names are resolved anew.
FAILURES_BEFORE_NEW_CHANNEL = 2
# And after which a worker that was connected looks what listens there, which may take seconds.
FAILURES_BEFORE_LOOK = 4
SWEEP_SECONDS = 0.05
# Handlers that run longer are announced with Started.
STARTED_SECONDS = 0.1
# Waiting tasks are given back if another worker could start them sooner than this.
WAIT_SECONDS_MAX = 2.0
# A handler that has run for some time is expected to run for this many times as long in all.
EXPECTED_FACTOR = 4
# Time that cancelled handlers get to end, and that results get to be acknowledged, at a stop.
CANCEL_SECONDS = 2.0
FLUSH_SECONDS = 10.0


class Session:
    """Session runs a worker. Made and used on the I/O loop.

    Args:
        target: Server and namespace.
        settings: What the worker says of itself.
    """

    def __init__(self, target: Target, settings: Settings) -> None:
        self._target = target
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._held = Held()
        self._outbox = Outbox()
        self._processes = None if settings.boot is None else HandlerProcesses(settings.boot)
        self._pool = HandlerPool(settings.concurrency, self._wake, self._processes)
        self._recorder = Recorder(target, self._outbox.wake.set)
        self._outbox.attach(self._recorder)
        self._activations = Activations(
            settings.workflows, self._recorder, self._pool.loop, self._wake
        )
        self._governor = slots.SlotGovernor(
            settings.concurrency, settings.prefetch_max, self._loop.time()
        )
        self._resume: messages.Resume | None = None
        self._stream: Stream | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stopping = False
        self._stopped = asyncio.Event()
        self._busy = asyncio.Event()
        # Handlers that still run though the server has ended their tasks: it counts their slots as
        # free, and they are not.
        self._gone_count = 0
        self._ended = asyncio.Event()
        self._absence = Absence(self._loop.time())
        self._valid_until = 0.0
        self._lease_seconds = 30.0
        self._endings = Endings(target)
        self.connected = asyncio.Event()

    @property
    def slots(self) -> int:
        """Tasks it asks for at a time now."""
        return self._governor.slots

    async def run(self) -> None:
        """Serves streams until `close`; no status of a peer ends it once it was connected.

        Raises:
            TenureError: a refusal that ends it, see `endings`.
        """
        sweep = asyncio.create_task(self._sweep_for_ever(), name="tenure-sweep")
        absence = self._absence
        try:
            while not self._stopped.is_set():
                began_at = self._loop.time()
                ending = await self._serve()
                self._outbox.stream_broke()
                if self._stopped.is_set():
                    break
                absence.ended(began_at, self._loop.time(), ending)
                if ending.drained:
                    await self._drop_channel()
                    continue
                # A worker that was connected comes back first and finds out later.
                looks = self._resume is None or absence.failure_count >= FAILURES_BEFORE_LOOK
                ending = await self._endings.understood(ending, looks=looks)
                ends = ending.refusal is not None and self._ends_refused
                self._endings.say(ending, connected_before=self._resume is not None, is_last=ends)
                if ending.refusal is not None and ends:
                    raise ending.refusal
                if ending.half_open or absence.failure_count >= FAILURES_BEFORE_NEW_CHANNEL:
                    await self._drop_channel()
                await self._pause(absence.pause_seconds(self._loop.time(), ending))
        finally:
            sweep.cancel()
            # Before the threads that started them end: Linux kills a process whose starter is gone.
            if self._processes is not None:
                await asyncio.to_thread(self._processes.close)
            self._pool.close()
            await self._drop_channel()

    async def close(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Stops: takes nothing new, lets handlers end, reports, says goodbye.

        Args:
            grace_seconds: Time that running handlers get before they are cancelled.
            hurry: Once set, the grace is over.
        """
        if self._stopping:
            await self._stopped.wait()
            return
        self._stopping = True
        self._outbox.pause(paused=True)
        self._hand_back(self._pool.take_back())
        await self._until_idle(grace_seconds, hurry)
        for job in self._pool.running:
            self._pool.cancel(job, "the worker stops", stopped=True)
        self._activations.release()
        if not self._idle:
            self._collect()
            await self._until_idle(CANCEL_SECONDS, asyncio.Event())
            self._give_up_running(grace_seconds)
        try:
            await asyncio.wait_for(self._outbox.empty.wait(), FLUSH_SECONDS)
        except TimeoutError:
            _log.warning(
                "stopped with %d result(s) that no server has acknowledged: unless one recorded them,"
                " their tasks run again once their leases have ended",
                self._outbox.unacknowledged_count,
            )
        self._stopped.set()
        if self._stream is not None:
            await self._stream.close("the worker stopped")

    # What the stream tells; see `stream.Receiver`.

    def opened(self, message: messages.Opened) -> None:
        """Keeps the session for the next resume."""
        was_connected = self._resume is not None
        if was_connected and not message.resumed:
            _log.warning("the session is gone; tasks it held may run again elsewhere")
        self._resume = messages.Resume(
            session_id=message.session_id, session_secret=message.session_secret
        )
        self._lease_seconds = _seconds(message.lease_duration) or self._lease_seconds
        now = self._loop.time()
        away_seconds = self._absence.opened(now)
        self._valid_until = now + (_seconds(message.first_lease_duration) or self._lease_seconds)
        self.connected.set()
        if self._stopping:
            self._outbox.pause(paused=True)
        self._outbox.wake.set()
        self._endings.say_opened(
            self._settings.identity.name,
            message,
            away_seconds=away_seconds if was_connected else None,
        )

    def assigned(self, message: messages.Assign) -> None:
        """Has tasks and activations run; those without a function here, or at a stop, go back."""
        now = self._loop.time()
        worker = self._settings.identity.name
        jobs: list[Job] = []
        activations: list[Hosted] = []
        back: list[HandOut] = []
        tokens: dict[str, None] = {}
        for assignment in message.assignments:
            tokens[assignment.lease_token] = None
            name = assignment.name
            if assignment.HasField("activation"):
                hosted = Hosted(assignment, worker)
                if self._held.add(hosted):
                    known = self._activations.serves(name) and not self._stopping
                    (activations if known else back).append(hosted)
                continue
            declaration = self._settings.declarations.get(name)
            isolated = name in self._settings.isolated
            job = Job(assignment, declaration, now, isolated=isolated, worker=worker)
            if self._held.add(job):
                known = declaration is not None and not self._stopping
                (jobs if known else back).append(job)
        self._outbox.accept(tokens)
        self._hand_back(back)
        self._activations.start(activations)
        self._pool.submit(jobs)
        self._busy.set()

    def reported(self, message: messages.ReportAck) -> None:
        """Forgets results that are recorded; a refused one becomes a failure that says so."""
        jobs = self._outbox.acknowledged(message.report_id)
        problems = {each.index: each.error for each in message.errors}
        if not problems and len(message.statuses) >= len(jobs):
            for job in jobs:
                self._held.remove(job)
            return
        again: list[HandOut] = []
        for index, job in enumerate(jobs):
            if index in problems:
                error = status.from_status(problems[index])
                if error.reason in status.TRANSIENT:
                    again.append(job)
                    continue
                _log.error("the result of %s %s was refused: %s", job.name, job.task_id, error)
                if not job.refused:
                    job.result = job.refused_result(str(error))
                    again.append(job)
                    continue
            elif index >= len(message.statuses):
                again.append(job)
                continue
            self._held.remove(job)
        if again:
            # Not at once: what was refused for load or a database that is away would be again.
            self._loop.call_later(_jitter.uniform(0.2, 1.0), self._outbox.results, again)

    def renewed(self, message: messages.HeartbeatAck, sent_at: float) -> None:
        """Notes that leases live on; drops those that are lost."""
        self._valid_until = max(self._valid_until, sent_at + self._lease_seconds)
        for token in message.lost_lease_tokens:
            for job in self._held.lose(token):
                if isinstance(job, Hosted):
                    self._activations.lose(job)
                    continue
                job.lost = True
                why = job.why_lost()
                self._pool.cancel(job, why)
                if job.result is None:
                    job.log_lost(why)
        for cancel in message.cancels:
            self.cancel(cancel)
        self._collect()

    def cancel(self, message: messages.Cancel) -> None:
        """Cancels a function that runs, or the task before its handler starts."""
        grace_seconds = _seconds(message.grace_duration)
        reason = message.reason or "cancellation was requested"
        for job in self._held.find(message.task_id):
            if job.result is not None:
                continue
            if isinstance(job, Hosted):
                self._activations.cancel(job, reason, over=not grace_seconds)
                continue
            # Without a grace the server has ended it, in words that fit whatever it was.
            over = "" if grace_seconds else job.over_limit()
            self._pool.cancel(job, over or reason, grace_seconds=grace_seconds)
        self._collect()

    def recorded(self, message: messages.StepAck) -> None:
        """Tells an activation what became of its steps."""
        self._recorder.acknowledged(message)

    def resolved(self, message: messages.Resolved) -> None:
        """Tells an activation what is over of what it waits for."""
        self._activations.resolved(message)

    def lease_tokens(self) -> Sequence[str]:
        """Gives the tokens of all leases held."""
        return self._held.tokens

    def progress(self) -> list[messages.TaskProgress]:
        """Gives the details that handlers left since the last heartbeat."""
        every = [job.take_progress() for job in self._pool.running]
        return [progress for progress in every if progress is not None]

    # The connect loop.

    @property
    def _ends_refused(self) -> bool:
        return self._settings.ends_refused and self._resume is None and not self._stopping

    async def _serve(self) -> Ending:
        try:
            if self._channel is None:
                self._channel = self._target.open_channel()
            if self._resume is not None:
                del self._resume.lease_tokens[:]
                self._resume.lease_tokens.extend(self._held.tokens)
            stream = self._stream = Stream(self._channel, self._target.metadata, self._outbox, self)
            return await stream.serve(
                messages.Open(
                    worker=self._settings.identity,
                    handlers=self._settings.handlers,
                    slots=self._slots(),
                    resume=self._resume,
                    protocol_version=PROTOCOL_VERSION,
                )
            )
        except errors.UsageError as exc:
            return Ending(str(exc), refusal=exc)
        except Exception as exc:  # noqa: BLE001 - a defect here must not end the worker either
            _log.exception("the stream failed")
            return Ending(f"{type(exc).__name__}: {exc}", half_open=True)
        finally:
            self._stream = None
            self.connected.clear()

    async def _pause(self, seconds: float) -> None:
        # A wait that a stop interrupts.
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait([stopped], timeout=seconds)
        stopped.cancel()

    async def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    # Results, and what runs.

    def _wake(self) -> None:
        """Has results collected; called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:
            # The interpreter exits and the loop is closed: leases run out, nothing is lost.
            _log.debug("a result came after the end of the I/O loop")

    def _collect(self) -> None:
        finished = self._pool.drain()
        if finished:
            for job in finished:
                if job.started_at:
                    self._governor.finished(job.run_seconds)
            self._outbox.results(finished)
        ended = self._activations.drain()
        for hosted in ended:
            if hosted.result is None:
                self._held.remove(hosted)
        if ended:
            self._outbox.results(ended)
        self._ended.set()

    def _hand_back(self, jobs: Sequence[HandOut]) -> None:
        for job in jobs:
            job.result = job.released()
        if jobs:
            self._outbox.results(jobs)

    @property
    def _idle(self) -> bool:
        return self._pool.idle and self._activations.idle

    def _slots(self) -> worker_pb2.Slots:
        return worker_pb2.Slots(
            total=0 if self._stopping else max(self._governor.slots - self._gone_count, 0),
            by_queue=self._settings.queue_slots,
            activations=0 if self._stopping else self._settings.activations,
        )

    async def _sweep_for_ever(self) -> None:
        while True:
            # What runs under a lost lease is held no more, and still has to end.
            if not self._held and self._pool.idle and not self._gone_count:
                self._busy.clear()
                await self._busy.wait()
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                self._sweep(self._loop.time())
            except Exception:  # noqa: BLE001 - the next sweep may do better
                _log.exception("the sweep failed")

    def _sweep(self, now: float) -> None:
        running = self._pool.running
        slow = [job for job in running if job.started_at and now - job.started_at > STARTED_SECONDS]
        fresh = [job for job in slow if not (job.announced or job.lost)]
        if fresh and self.connected.is_set():
            self._outbox.started(job.started(now) for job in fresh)
            for job in fresh:
                job.announced = True
        self._pool.nudge(now)
        before = self._gone_count
        self._gone_count = sum(job.is_gone(now) for job in running)
        changed = self._governor.step(now, len(running), len(slow))
        if (changed or self._gone_count != before) and not self._stopping:
            self._outbox.slots(self._slots())
        waiting_count = self._pool.waiting_count
        if waiting_count and (keep_count := self._keep_count(now, slow)) < waiting_count:
            self._hand_back(self._pool.take_back(keep_count))

    def _keep_count(self, now: float, slow: list[Job]) -> int:
        """Returns how many waiting tasks are worth keeping here."""
        if not self.connected.is_set() and now > self._valid_until:
            # The leases are over: whatever starts now would run twice.
            return 0
        if self._governor.prefetches or not slow:
            return self._pool.waiting_count
        elapsed = [now - job.started_at for job in slow]
        expected = EXPECTED_FACTOR * sum(elapsed) / len(elapsed)
        if expected > WAIT_SECONDS_MAX * EXPECTED_FACTOR:
            return 0
        return int(WAIT_SECONDS_MAX * self._settings.concurrency / expected)

    async def _until_idle(self, seconds: float, hurry: asyncio.Event) -> None:
        """Waits until no handler runs, at most for a time, or until there is a hurry."""
        give_up_at = self._loop.time() + seconds
        hurried = asyncio.create_task(hurry.wait())
        while not hurry.is_set():
            self._collect()
            left = give_up_at - self._loop.time()
            if self._idle or left <= 0:
                break
            self._ended.clear()
            ended = asyncio.create_task(self._ended.wait())
            await asyncio.wait([ended, hurried], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        hurried.cancel()

    def _give_up_running(self, grace_seconds: float) -> None:
        for job in self._pool.running:
            why = f"the worker stopped and the handler did not end within {grace_seconds:g} s"
            if self._pool.give_up(job, job.stopped_early(why)):
                _log.error("task %s (%s): %s; its thread runs on", job.name, job.task_id, why)
        left = self._activations.give_up()
        for hosted in left:
            why = "its function did not let itself be unwound, and runs on"
            _log.error("run %s of %s is given back: %s", hosted.task_id, hosted.name, why)
        self._outbox.results(left)
        self._collect()


def _seconds(message: duration_pb2.Duration) -> float:
    return message.seconds + message.nanos / 1e9


def start(target: Target, settings: Settings) -> tuple[Session, concurrent.futures.Future[None]]:
    """Makes a session on the I/O loop and starts it.

    Returns:
        The session, and what is done when its `run` is.
    """

    async def make() -> Session:
        return Session(target, settings)

    session = io_thread.run(make())
    return session, io_thread.submit(session.run())
