"""The Work stream: one reader, one writer, and the order of messages.

The reader never waits for what it reads: reports and heartbeats are handed to batchers and answered
when they are committed, so that a renewal never stands behind a report. Whatever ends the stream,
the leases stay; only what was never accepted is taken back, and Close gives back everything.
"""

import asyncio
import base64
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tenure_service import __version__
from tenure_service.dispatch.session import Held, Session, Slots
from tenure_service.engine import limits, tokens
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError, shutting_down
from tenure_service.rpc import decoding, errors, opening, steps
from tenure_service.rpc.call import PRINCIPAL, Calls, Context
from tenure_service.rpc.check import Check
from tenure_service.store.leases import Progress, Started
from tenure_service.telemetry import logs, metrics
from tenure_service.usecase import session as sessions
from tenure_service.usecase.end import Recorded

if TYPE_CHECKING:
    from tenure_service.dispatch.reporter import Answer

_log = logging.getLogger(__name__)

PROTOCOL_VERSION = "1.0"
_RUN_MS_MAX = limits.RETRY_DELAY_MAX.total_seconds() * 1000
_SECRET = re.compile(r"[A-Za-z0-9_-]{32,200}")
STATUSES = {
    Recorded.RECORDED: worker.REPORT_STATUS_RECORDED,
    Recorded.ALREADY_RECORDED: worker.REPORT_STATUS_ALREADY_RECORDED,
    Recorded.LEASE_LOST: worker.REPORT_STATUS_LEASE_LOST,
}
#: Answers that one stream may be waiting for; a worker that sends more without reading them is
#: held back by not being read.
_PENDING_MAX = 200


def _violation(text: str, client_version: str = "") -> TenureError:
    metadata = {"server_version": PROTOCOL_VERSION, "client_version": client_version}
    return TenureError(
        Reason.PROTOCOL_VIOLATION,
        text,
        metadata={name: version for name, version in metadata.items() if version},
    )


class WorkStream:
    """One Work stream from its Open to its end."""

    def __init__(self, calls: Calls, namespace_id: int) -> None:
        self._hub = calls.hub
        self._calls = calls
        self._namespace_id = namespace_id
        self._session: Session | None = None
        self._client_version = ""
        self._closing = False
        self._pending: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_PENDING_MAX)

    async def run(self, requests: AsyncIterator[service.WorkRequest], context: Context) -> None:
        """Serves the stream until it ends.

        Raises:
            TenureError: what the stream is to be ended with.
        """
        session = await self._open(requests)
        self._session = session
        try:
            # Apart from the first message: if that one's write is cancelled because the stream ends,
            # gRPC would send them again with the status, which fails, and the stream never ends.
            await context.send_initial_metadata(())
            await self._serve(session, requests, context)
        finally:
            how = "" if self._closing else " without a goodbye; its leases run on"
            _log.info("the stream of worker %r ended%s", session.worker, how)
            self._hub.drop_session(session)

    async def _serve(
        self, session: Session, requests: AsyncIterator[service.WorkRequest], context: Context
    ) -> None:
        """Reads and writes until one of both ends."""
        writer = asyncio.get_running_loop().create_task(self._write(session, context))
        try:
            reader = asyncio.get_running_loop().create_task(self._read(session, requests))
            try:
                await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                reader.cancel()
            if reader.done() and not reader.cancelled():
                reader.result()
            else:
                with contextlib.suppress(asyncio.CancelledError):
                    await reader
            if session.ended_with is not None:
                raise session.ended_with
            if self._closing:
                await self._hub.release_session(session)
                self._hub.leaser.detach(session)
                await writer
        finally:
            writer.cancel()

    async def _open(self, requests: AsyncIterator[service.WorkRequest]) -> Session:
        first = decoding.checked(await anext(aiter(requests), None))
        if first is None:
            raise _violation("the stream ended before Open")
        if first.WhichOneof("message") != "open":
            raise _violation("the first message must be Open")
        metrics.MESSAGES_RECEIVED.add(1, "open")
        if self._hub.draining:
            raise shutting_down()
        open_ = first.open
        self._client_version = open_.protocol_version[:20] or PROTOCOL_VERSION
        major = self._client_version.partition(".")[0]
        if major != PROTOCOL_VERSION.partition(".")[0]:
            raise TenureError(
                Reason.VERSION_UNSUPPORTED,
                f"this server speaks protocol {PROTOCOL_VERSION}, the worker "
                f"{self._client_version}",
                metadata={
                    "server_version": PROTOCOL_VERSION,
                    "client_version": self._client_version,
                },
            )
        return await self._open_session(open_)

    async def _open_session(self, open_: stream.Open) -> Session:
        check = Check("open.")
        served = opening.handlers(check, open_.handlers)
        said = opening.declared(check, open_.handlers)
        who = opening.identity(check, open_.worker)
        granted = opening.slots(check, open_.slots)
        resume_id = open_.resume.session_id.lower() if open_.HasField("resume") else None
        if resume_id is not None and not tokens.is_uuid(resume_id):
            check.wrong("resume.session_id", "is not an id of this server")
        if resume_id is not None and not _SECRET.fullmatch(open_.resume.session_secret):
            # A session that is gone is opened anew under this secret: it must be a server's.
            check.wrong("resume.session_secret", "is not a secret of this server")
        check.done()
        for queue in served.queues:
            PRINCIPAL.get().check_queue(queue)
        secret = open_.resume.session_secret if resume_id else sessions.new_secret()
        new = self._new_session(who, served, granted, sessions.secret_hash(secret))
        kept = [
            token[0]
            for text in open_.resume.lease_tokens
            if (token := tokens.lease_token_parse(text)) is not None
        ]
        opened = await self._calls.run(
            sessions.open_session,
            self._hub.database,
            new,
            said,
            workflows=served.workflows,
            resume_session_id=resume_id,
        )
        if opened.declared_news:
            self._hub.catalogue.forget_sources()
        session = Session(
            session_id=opened.session_id,
            epoch=opened.epoch,
            namespace_id=self._namespace_id,
            worker=who.name,
            served=served.tasks,
            workflows=served.workflows,
            slots=granted,
            principal=PRINCIPAL.get(),
        )
        if opened.resumed:
            session.hold(await self._resume(opened.session_id, kept), accept_timeout=None)
        logs.bound(session=opened.session_id, worker=who.name)
        (metrics.SESSIONS_RESUMED if opened.resumed else metrics.SESSIONS_OPENED).add()
        session.send(self._opened(session, secret, resumed=opened.resumed))
        self._hub.leaser.attach(session)
        kind = "resumes its session" if opened.resumed else "opens a session"
        _log.info("worker %r %s", who.name, kind)
        return session

    def _new_session(
        self,
        who: worker.WorkerIdentity,
        served: opening.Handlers,
        granted: Slots,
        secret_hash: bytes,
    ) -> sessions.NewSession:
        return sessions.NewSession(
            namespace_id=self._namespace_id,
            worker=who.name,
            sdk=who.sdk,
            sdk_version=who.sdk_version,
            app_version=who.app_version,
            secret_hash=secret_hash,
            handlers=served.to_json(),
            slots=granted.to_json(),
            key_id=PRINCIPAL.get().key_id,
        )

    async def _resume(self, session_id: str, kept_lease_ids: list[str]) -> list[Held]:
        """Takes over a session: what the worker does not know of is lost, the rest is held."""
        before = self._hub.leaser.sessions.get(session_id)
        if before is not None:
            before.unaccepted.clear()
            self._hub.leaser.detach(before)
        ends, held = await self._calls.run(
            sessions.take_over,
            self._hub.database,
            self._hub.catalogue,
            session_id,
            kept_lease_ids,
        )
        self._hub.ended(ends)
        return [
            Held(
                task.lease_id,
                tokens.lease_token_text(task.lease_id, task.secret),
                task.run_id,
                task.task_id,
                task.delivery,
                task.attempt,
                task.queue,
                task.suspect,
                task.activation,
            )
            for task in held
        ]

    def _opened(self, session: Session, secret: str, *, resumed: bool) -> service.WorkResponse:
        durations = self._hub.durations
        opened = stream.Opened(
            session_id=session.session_id,
            session_secret=secret,
            slots=worker.Slots(
                total=session.slots.total,
                by_queue=session.slots.by_queue,
                activations=session.slots.activations,
            ),
            payload_bytes_max=limits.PAYLOAD_BYTES_MAX,
            protocol_version=PROTOCOL_VERSION,
            server_version=__version__,
            resumed=resumed,
        )
        opened.first_lease_duration.FromTimedelta(durations.first_lease)
        opened.lease_duration.FromTimedelta(durations.lease)
        opened.heartbeat_interval.FromTimedelta(durations.heartbeat)
        opened.accept_timeout.FromTimedelta(durations.accept)
        return service.WorkResponse(opened=opened)

    async def _write(self, session: Session, context: Context) -> None:
        while True:
            messages = await session.next_messages()
            if not messages:
                return
            for message, input_bytes in messages:
                await context.write(message)
                metrics.MESSAGES_SENT.add(1, str(message.WhichOneof("message")))
                if input_bytes:
                    self._hub.sent(session, input_bytes)

    async def _read(self, session: Session, requests: AsyncIterator[service.WorkRequest]) -> None:
        async for request in requests:
            kind = decoding.checked(request).WhichOneof("message")
            metrics.MESSAGES_RECEIVED.add(1, str(kind))
            if session.silent:
                session.silent = False
                self._hub.leaser.freed()
            if kind == "report":
                await self._take_in(session, request.report)
            elif kind == "accept":
                self._accept(session, request.accept)
            elif kind == "heartbeat":
                check = Check("heartbeat.")
                found = read_tokens(check, "lease_tokens", request.heartbeat.lease_tokens)
                check.done()
                said = read_progress(check, request.heartbeat.progress)
                check.done()
                beat = self._heartbeat(session, request.heartbeat.heartbeat_id, found, said)
                if found or said:
                    await self._later(beat)
                else:
                    # Nothing to renew, nothing to wait for: idle workers are many.
                    await beat
            elif kind == "started":
                await self._later(self._started(request.started))
            elif kind == "record_steps":
                await self._later(self._record_steps(session, request.record_steps))
            elif kind == "wait":
                steps.wait(self._hub, session, request.wait)
            elif kind == "set_slots":
                check = Check("set_slots.")
                session.slots = opening.slots(check, request.set_slots.slots)
                check.done()
                self._hub.leaser.freed()
            elif kind == "pause":
                session.paused = request.pause.paused
                self._hub.leaser.freed()
            elif kind == "close":
                self._closing = True
                session.paused = True
                if self._pending:
                    await asyncio.wait(set(self._pending))
                return
            elif kind == "open":
                raise _violation("Open was sent twice", self._client_version)
            else:
                raise _violation(
                    "a message was empty, or of a kind this server does not know",
                    self._client_version,
                )

    async def _take_in(self, session: Session, message: stream.Report) -> None:
        """Takes results in, once there is room for them."""
        # A result is the best of accepts, however long it takes to be recorded.
        if session.unaccepted:
            for text in {result.lease_token for result in message.results}:
                token = tokens.lease_token_parse(text)
                if token is not None:
                    session.unaccepted.pop(token[0], None)
        memory = self._hub.memory
        while memory.full:
            session.stalled = True
            await memory.room()
        session.stalled = False
        size = message.ByteSize()
        memory.take(size)
        try:
            await self._later(self._report(session, message, size))
        except asyncio.CancelledError:
            memory.give(size)
            raise

    async def _later(self, work: Coroutine[object, object, None]) -> None:
        """Does something beside the reading, bounded in number."""
        try:
            if self._room.locked() and self._session is not None:
                self._session.stalled = True
            await self._room.acquire()
        except asyncio.CancelledError:
            work.close()
            raise
        if self._session is not None:
            self._session.stalled = False
        task = asyncio.get_running_loop().create_task(work)
        self._pending.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        self._room.release()
        if not task.cancelled() and (exc := task.exception()) is not None:
            if isinstance(exc, TenureError):
                _log.warning("a message of worker was not served: %s", exc)
            else:
                errors.bug(exc)

    def _accept(self, session: Session, message: stream.Accept) -> None:
        for text in message.lease_tokens:
            token = tokens.lease_token_parse(text)
            if token is not None:
                session.unaccepted.pop(token[0], None)

    async def _report(self, session: Session, message: stream.Report, size: int) -> None:
        try:
            await self._record(session, message)
        finally:
            self._hub.memory.give(size)

    def _gave_back(self, session: Session, message: stream.Report) -> None:
        only = bool(message.results) and all(
            result.HasField("released") for result in message.results
        )
        pause = session.gave_back(only=only)
        if pause > 0:
            asyncio.get_running_loop().call_later(pause, self._hub.leaser.freed)

    async def _record(self, session: Session, message: stream.Report) -> None:
        ack = stream.ReportAck(report_id=message.report_id)
        self._gave_back(session, message)
        if 0 < len(message.results) <= limits.REPORT_COUNT_MAX:
            answers: Sequence[Answer] = await self._hub.reporter.report(
                self._namespace_id, session, message.results
            )
        else:
            refused = FieldInvalid(
                [("report.results", f"must have 1 to {limits.REPORT_COUNT_MAX} items")]
            )
            answers = [refused] * len(message.results)
        ack.statuses.extend(
            worker.REPORT_STATUS_REFUSED if isinstance(answer, TenureError) else STATUSES[answer]
            for answer in answers
        )
        for place, answer in enumerate(answers):
            if isinstance(answer, TenureError):
                ack.errors.add(index=place, error=errors.status(answer))
        session.send(service.WorkResponse(report_ack=ack))

    async def _heartbeat(
        self,
        session: Session,
        heartbeat_id: int,
        found: Sequence[tuple[str, tuple[str, bytes]]],
        said: Sequence[Progress],
    ) -> None:
        ack = stream.HeartbeatAck(heartbeat_id=heartbeat_id)
        alive: set[tuple[str, bytes]] = set()
        if found or said:
            alive = await self._hub.renew(
                self._namespace_id, [token for _, token in found], progress=said
            )
        session.name_leases(token[0] for _, token in found)
        lost = [(text, token[0]) for text, token in found if token not in alive]
        session.drop_leases({lease_id for _, lease_id in lost}.difference(x for x, _ in alive))
        ack.lost_lease_tokens.extend(text for text, _ in lost)
        ack.cancels.extend(session.cancels())
        session.send(service.WorkResponse(heartbeat_ack=ack))

    async def _record_steps(self, session: Session, message: stream.RecordSteps) -> None:
        ack = stream.StepAck(record_id=message.record_id)
        try:
            ack.records.extend(await steps.record(self._hub, self._namespace_id, message))
        except TenureError as exc:
            ack.error.CopyFrom(errors.status(exc))
        session.send(service.WorkResponse(step_ack=ack))

    async def _started(self, message: stream.Started) -> None:
        started = read_started(message.tasks)
        if started:
            await self._hub.renew(self._namespace_id, [], started)


def read_tokens(
    check: Check, field: str, texts: Sequence[str]
) -> list[tuple[str, tuple[str, bytes]]]:
    """Reads lease tokens, each with its text; one of another form is a lease that is lost."""
    check.count(field, texts, limits.RENEW_COUNT_MAX, low=0)
    unknown = ("00000000-0000-0000-0000-000000000000", b"")
    return [(text, tokens.lease_token_parse(text) or unknown) for text in texts]


def read_progress(check: Check, found: Sequence[stream.TaskProgress]) -> list[Progress]:
    """Reads what running handlers say of themselves; what names no lease of ours is passed over."""
    check.count("progress", found, limits.RENEW_COUNT_MAX, low=0)
    said = []
    for place, one in enumerate(found):
        if len(one.details.data) > limits.DETAILS_BYTES_MAX:
            check.wrong(f"progress[{place}].details", f"has more than {limits.DETAILS_BYTES_MAX} B")
        token = tokens.lease_token_parse(one.lease_token)
        key = tokens.task_id_parse(one.task_id)
        if token is not None and key is not None:
            details = {
                "data": base64.b64encode(one.details.data).decode(),
                "encoding": one.details.encoding or None,
                "schema": one.details.schema or None,
            }
            said.append(Progress(token[0], token[1], key.task_id, details))
    return said


def read_started(found: Sequence[stream.StartedTask]) -> list[Started]:
    """Reads started handlers; what names no lease of ours is passed over."""
    started = []
    for one in found:
        token = tokens.lease_token_parse(one.lease_token)
        key = tokens.task_id_parse(one.task_id)
        if token is not None and key is not None:
            # Longer than the longest limit is as good as nothing said.
            run_ms = min(max(one.run_duration.ToNanoseconds() / 1e6, 0.0), _RUN_MS_MAX)
            started.append(Started(token[0], token[1], key.task_id, run_ms))
    return started
