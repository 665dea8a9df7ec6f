"""Reports of workers: parsed, batched, recorded, and their slots given back.

Outputs of hand-outs that this server made and remembers take the fast path, one statement a batch;
everything else, and every batch in which the fast path disagrees, takes the careful form.
"""

import asyncio
import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import worker_pb2 as worker
from tenure_service.dispatch import failures, suspending
from tenure_service.dispatch.batcher import Batcher
from tenure_service.dispatch.session import Held, Session
from tenure_service.engine import limits, texts, tokens
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store.database import Database, DataRefused
from tenure_service.store.leases import Completion
from tenure_service.telemetry import metrics
from tenure_service.usecase import report
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.end import Ending, Ends, Recorded

Answer = Recorded | TenureError
_REFUSED = "REFUSED"
_RUN_MS_MAX = limits.RETRY_DELAY_MAX.total_seconds() * 1000
#: What nearly all outputs say; others are looked at.
_ENCODINGS = frozenset({"", "json"})
_SUSPENDING = frozenset({"suspended", "blocked"})
#: What one that a run waits for weighs in a batch, as the text of its id.
_CHILD_BYTES = 36
Parsed = Completion | Ending


@dataclass(slots=True)
class _Item:
    """The parsed results of one report."""

    namespace_id: int
    results: list[Parsed]
    size: int = 0


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A report that is not recorded yet."""

    since: float
    namespace_id: int
    results: Sequence[worker.Result]


class Reporter:
    """Records reports of all sessions of one server."""

    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        *,
        after: Callable[[Ends], None],
        freed: Callable[[], None],
    ) -> None:
        """Prepares a reporter.

        Args:
            database: Where results are recorded.
            catalogue: For policies and lanes.
            after: Called on the event loop with what each batch ended.
            freed: Called once the slots of a report are free again.
        """
        self._database = database
        self._catalogue = catalogue
        self._after = after
        self._freed = freed
        self._under_way: dict[int, _UnderWay] = {}
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._batcher: Batcher[_Item, list[Answer]] = Batcher("report", self._flush, threads=2)

    async def report(
        self, namespace_id: int, session: Session | None, results: Sequence[worker.Result]
    ) -> list[Answer]:
        """Records the results of one report; gives what became of each, in order."""
        answers: list[Answer | None] = [None] * len(results)
        item = _Item(namespace_id, [])
        places: list[int] = []
        for place, result in enumerate(results):
            try:
                parsed, size = parse(namespace_id, session, result)
            except TenureError as exc:
                answers[place] = exc
                continue
            item.results.append(parsed)
            item.size += size
            places.append(place)
        if item.results:
            number = next(self._numbers)
            self._under_way[number] = _UnderWay(time.monotonic(), namespace_id, results)
            try:
                recorded = await self._batcher.submit(
                    namespace_id, item, count=len(item.results), size=item.size
                )
            except TenureError as exc:
                for place in places:
                    answers[place] = exc
            except DataRefused as exc:
                for place in places:
                    answers[place] = _unstorable(exc)
            else:
                for place, one in zip(places, recorded, strict=True):
                    answers[place] = one
                if session is not None:
                    _drop(session, item.results)
                self._freed()
            finally:
                del self._under_way[number]
        given = [answer for answer in answers if answer is not None]
        found = Counter(answer if isinstance(answer, Recorded) else _REFUSED for answer in given)
        for status, count in found.items():
            metrics.REPORTS.add(count, status)
        return given

    @property
    def waiting_count(self) -> int:
        """Results that wait for a batch."""
        return self._batcher.waiting_count

    def waiting(self, seconds: float) -> dict[int, set[tuple[str, bytes]]]:
        """Gives the leases of results that have waited that long to be recorded, by namespace."""
        before = time.monotonic() - seconds
        found: dict[int, set[tuple[str, bytes]]] = {}
        for one in self._under_way.values():
            if one.since > before:
                continue
            for result in one.results:
                token = tokens.lease_token_parse(result.lease_token)
                if token is not None:
                    found.setdefault(one.namespace_id, set()).add(token)
        return found

    async def end(self, namespace_id: int, endings: Sequence[Ending]) -> None:
        """Ends hand-outs that the server itself ends."""
        await self._batcher.submit(
            namespace_id, _Item(namespace_id, list(endings)), count=len(endings)
        )

    async def drain(self) -> None:
        """Waits until everything that was reported is recorded."""
        await self._batcher.drain()

    def close(self) -> None:
        """Ends the threads."""
        self._batcher.close()

    def _flush(self, items: Sequence[_Item]) -> list[list[Answer]]:
        try:
            return self._record(items)
        except DataRefused:
            if len(items) > 1 or len(items[0].results) == 1:
                raise
            # One result of this report cannot be stored; its mates are unaffected (INV-14).
            namespace_id = items[0].namespace_id
            return [[self._record_alone(namespace_id, result) for result in items[0].results]]

    def _record_alone(self, namespace_id: int, result: Parsed) -> Answer:
        try:
            return self._record([_Item(namespace_id, [result])])[0][0]
        except DataRefused as exc:
            return _unstorable(exc)

    def _record(self, items: Sequence[_Item]) -> list[list[Answer]]:
        results = [result for item in items for result in item.results]
        completions = [result for result in results if isinstance(result, Completion)]
        completed = bool(completions) and report.complete(self._database, completions)
        if completed:
            ends = Ends(
                recorded=[],
                over=[one.task_id for one in completions],
                inboxes={one.run_id for one in completions if one.run_id != one.task_id},
            )
            ends.tally.outcomes[Outcome.DONE] = len(completions)
            ends.tally.ran(Outcome.DONE, (one.run_ms for one in completions))
            ends.completions = [
                (item.namespace_id, one)
                for item in items
                for one in item.results
                if isinstance(one, Completion)
            ]
            self._tell(ends)
            endings = [result for result in results if isinstance(result, Ending)]
        else:
            endings = [_carefully(result) for result in results]
        recorded: Iterator[Recorded] = iter(())
        if endings:
            ends = report.end_all(self._database, self._catalogue, endings)
            self._tell(ends)
            recorded = iter(ends.recorded)
        return [
            [
                Recorded.RECORDED
                if completed and isinstance(result, Completion)
                else next(recorded)
                for result in item.results
            ]
            for item in items
        ]

    def _tell(self, ends: Ends) -> None:
        self._loop.call_soon_threadsafe(self._after, ends)


def _unstorable(exc: DataRefused) -> TenureError:
    return FieldInvalid([("outcome", f"holds what PostgreSQL cannot store ({exc})")])


def _carefully(result: Parsed) -> Ending:
    """Gives a completion the form that the careful path takes."""
    if isinstance(result, Ending):
        return result
    return Ending(
        lease_id=result.lease_id,
        secret=None,
        key=TaskKey(result.run_id, result.task_id),
        outcome=Outcome.DONE,
        run_ms=result.run_ms,
        output=result.output,
        output_encoding=result.output_encoding,
        output_schema=result.output_schema,
    )


def _drop(session: Session, results: Sequence[Parsed]) -> None:
    """Gives back the slots of results that were recorded, or that no lease lives for."""
    for one in results:
        if isinstance(one, Completion):
            session.drop_reported(one.task_id, one.lease_id)
        elif one.secret is not None and session.holds(
            one.key.task_id, tokens.lease_token_text(one.lease_id, one.secret)
        ):
            session.drop(one.key.task_id)


def _task_id(text: str) -> str:
    """Gives the task's own UUID of an id that travelled."""
    return text[-36:]


def parse(namespace_id: int, session: Session | None, result: worker.Result) -> tuple[Parsed, int]:
    """Reads one result; gives it with its size in bytes.

    Raises:
        TenureError: FIELD_INVALID, PAYLOAD_TOO_LARGE.
    """
    kind = result.WhichOneof("outcome")
    duration = result.run_duration
    said_ms = duration.seconds * 1e3 + duration.nanos / 1e6
    # Nothing said reads as 0.
    said = 0 < said_ms <= _RUN_MS_MAX or (said_ms == 0 and result.HasField("run_duration"))
    run_ms = said_ms if said else None
    if kind == "completed" and session is not None:
        held = session.held.get(_task_id(result.task_id))
        # An activation says with its end more than one row: its run is over, too.
        if held is not None and held.lease_token == result.lease_token and not held.activation:
            return _completion(session, held, result.completed.output, run_ms)
    ending, size = _ending(kind, result, run_ms)
    return dataclasses.replace(ending, namespace_id=namespace_id), size


def _completion(
    session: Session, held: Held, output: payload.Payload, run_ms: float | None
) -> tuple[Completion, int]:
    data, encoding, schema = output.data, output.encoding, output.schema
    _check_payload("completed.output", data, encoding, schema)
    return (
        Completion(
            held.lease_id,
            session.session_id,
            held.run_id,
            held.task_id,
            held.delivery,
            held.attempt,
            run_ms,
            data,
            encoding or None,
            schema or None,
        ),
        len(data),
    )


def _ending(kind: str | None, result: worker.Result, run_ms: float | None) -> tuple[Ending, int]:
    key = tokens.task_id_parse(result.task_id)
    token = tokens.lease_token_parse(result.lease_token)
    violations = []
    if key is None:
        violations.append(("task_id", "is not an id of this server"))
    if token is None:
        violations.append(("lease_token", "is not a token of this server"))
    if kind is None:
        violations.append(("outcome", "is not set, or of a kind this server does not know"))
    if kind == "failed" and not result.failed.HasField("failure"):
        violations.append(("failed.failure", "must be set"))
    if kind in _SUSPENDING and key is not None:
        violations += suspending.violations(key, kind, result)
    if violations or key is None or token is None:
        raise FieldInvalid(violations)
    if kind in _SUSPENDING:
        return _suspension(key, token, result, run_ms)
    output: payload.Payload | None = None
    failure = None
    outcome = Outcome.DONE
    delay_ms = 0
    if kind == "completed":
        output = result.completed.output
    elif kind == "failed":
        outcome, failure = Outcome.FAILED, failures.to_json(result.failed.failure)
        _check_delay("failed.failure.retry_after", failure.get("retry_after_ms", 0))
    elif kind == "released":
        outcome = Outcome.RELEASED
    elif kind == "rescheduled":
        outcome = Outcome.RESCHEDULED
        delay_ms = result.rescheduled.delay.ToMilliseconds()
        _check_delay("rescheduled.delay", delay_ms)
        if result.rescheduled.HasField("details"):
            output = result.rescheduled.details
    else:
        outcome = Outcome.CANCELLED
        if result.cancelled.HasField("failure"):
            failure = failures.to_json(result.cancelled.failure)
            _check_delay("cancelled.failure.retry_after", failure.get("retry_after_ms", 0))
    if output is not None:
        field_name = f"{kind}.{'output' if kind == 'completed' else 'details'}"
        _check_payload(field_name, output.data, output.encoding, output.schema)
    ending = Ending(
        lease_id=token[0],
        secret=token[1],
        key=key,
        outcome=outcome,
        run_ms=run_ms,
        output=None if output is None else output.data,
        output_encoding=None if output is None else output.encoding or None,
        output_schema=None if output is None else output.schema or None,
        failure=failure,
        delay_ms=delay_ms,
    )
    return ending, len(ending.output or b"")


def _suspension(
    key: TaskKey, token: tuple[str, bytes], result: worker.Result, run_ms: float | None
) -> tuple[Ending, int]:
    ending = Ending(
        lease_id=token[0],
        secret=token[1],
        key=key,
        outcome=Outcome.SUSPENDED,
        run_ms=run_ms,
    )
    if result.WhichOneof("outcome") == "blocked":
        failure = failures.to_json(result.blocked.failure)
        return dataclasses.replace(ending, failure=failure, blocked=True), 0
    said = result.suspended
    waits, violations = suspending.waits(key, said)
    if violations:
        raise FieldInvalid(violations)
    wake_ms = suspending.wake_ms(said) if said.HasField("wake_after") else None
    size = sum(len(one.child_ids) for one in waits) * _CHILD_BYTES
    return dataclasses.replace(ending, waits=waits, wake_ms=wake_ms), size


def _check_payload(field_name: str, data: bytes, encoding: str, schema: str) -> None:
    _check_size(data)
    if encoding in _ENCODINGS and not schema:
        return
    for name, text, bytes_max in (
        ("encoding", encoding, limits.ENCODING_BYTES_MAX),
        ("schema", schema, limits.SCHEMA_BYTES_MAX),
    ):
        # One text that cannot be stored would take the whole report with it.
        fits = texts.is_encoding(text) if name == "encoding" else not texts.has_control(text)
        if text and (len(text.encode()) > bytes_max or not fits):
            raise FieldInvalid(
                [(f"{field_name}.{name}", f"must be at most {bytes_max} bytes, printable")]
            )


def _check_size(data: bytes) -> None:
    if len(data) > limits.PAYLOAD_BYTES_MAX:
        raise TenureError(
            Reason.PAYLOAD_TOO_LARGE,
            f"the output has {len(data)} bytes, more than the {limits.PAYLOAD_BYTES_MAX} allowed",
            metadata={
                "size_bytes": str(len(data)),
                "limit_bytes": str(limits.PAYLOAD_BYTES_MAX),
            },
        )


def _check_delay(field_name: str, delay_ms: int) -> None:
    if not 0 <= delay_ms <= limits.RETRY_DELAY_MAX.total_seconds() * 1000:
        raise FieldInvalid([(field_name, "must be 0 to 365 days")])
