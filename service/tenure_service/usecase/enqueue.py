"""Enqueueing tasks and starting runs: many calls in one transaction, each item answered for itself.

Ids are made first. Then request ids are claimed (a call that was answered before is answered the
same and stores nothing), then idempotency keys (an item whose key stands is answered by what it
stands for), then everything that is left is stored: tasks, and runs with their rows in tasks. Holds
INV-06, INV-07, INV-09.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from tenure_service.engine import limits
from tenure_service.engine.errors import Reason, TenureError
from tenure_service.engine.policy import (
    PartialPolicy,
    Policy,
    Timeout,
    TimeoutAction,
    TimeoutKind,
    resolve,
)
from tenure_service.engine.tokens import task_id_text
from tenure_service.store import keys, partitions, rows, runs, tasks
from tenure_service.store.database import Conn, Database, PartitionMissing
from tenure_service.store.registry import ANY_VERSION, Lane
from tenure_service.usecase.catalogue import Catalogue, Sources

_KIND = "ENQUEUE"
_START_KIND = "START"
#: How the errors of keys speak of what they stand for.
_SPOKEN: Final = {
    keys.TASK: ("a task", "existing_task_id"),
    keys.RUN: ("a workflow", "existing_run_id"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """What runs have beside what tasks have."""

    timeout_ms: int | None = None
    attributes: rows.Json | None = None
    recovery_attempts: int = limits.RECOVERY_ATTEMPTS

    @property
    def policy(self) -> Policy:
        """The policy of a run's root: a function that raised is not run again."""
        total = None
        if self.timeout_ms is not None:
            total = Timeout(self.timeout_ms, TimeoutAction.TIME_OUT)
        return Policy(max_attempts=1, total=total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the tasks of a call usually share: all but input and key, within the limits."""

    name: str
    queue: str
    input_encoding: str | None = None
    input_schema: str | None = None
    priority: int = 0
    delay_ms: int | None = None
    key_ms: int = 0
    lane_key: str = ""
    policy: PartialPolicy | None = None
    declared: PartialPolicy | None = None
    traceparent: str | None = None
    #: What makes runs of them, not tasks.
    run: RunShape | None = None


class Item(NamedTuple):
    """A task to enqueue, with everything within its limits."""

    shape: Shape
    input: bytes
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The items of one call; `digest` tells whether a repeated request id is the same call."""

    namespace_id: int
    items: Sequence[Item]
    request_id: str | None = None
    digest: bytes = b""


class Enqueued(NamedTuple):
    """A stored task or run, and the lane it waits in; no `lane_id`: nobody has to be woken."""

    task_id: str
    existing: bool = False
    lane_id: int | None = None
    priority: int = 0
    delay_ms: int | None = None


Answer = Enqueued | TenureError


@dataclass(slots=True)
class _Pending:
    """One item on its way through the transaction."""

    call: int
    place: int
    item: Item
    task: tasks.NewTask
    task_id: str = ""


def enqueue(
    database: Database,
    catalogue: Catalogue,
    calls: Sequence[Call],
    *,
    now: datetime | None = None,
) -> list[list[Answer] | TenureError]:
    """Enqueues the items of many calls in one transaction.

    Returns:
        For each call its answers in the order of its items, or the error of the whole call
        (REQUEST_ID_REUSED).
    """
    prepared = _prepare(catalogue, calls)
    try:
        return database.transact(lambda conn: _store(conn, calls, prepared, now))
    except PartitionMissing:
        # The upkeep of partitions was held up for weeks, or the clock has jumped.
        partitions.ensure(database)
        return database.transact(lambda conn: _store(conn, calls, prepared, now))


def _prepare(catalogue: Catalogue, calls: Sequence[Call]) -> list[_Pending]:
    """Resolves lanes and policies, each set in one look-up."""
    # By identity: a shape is compared more slowly than it is read.
    shapes = {
        (call.namespace_id, id(item.shape)): item.shape for call in calls for item in call.items
    }
    common = commons(catalogue, shapes)
    return [
        _Pending(
            number,
            place,
            item,
            tasks.NewTask(common[call.namespace_id, id(item.shape)], item.input, item.key),
        )
        for number, call in enumerate(calls)
        for place, item in enumerate(call.items)
    ]


def commons(
    catalogue: Catalogue, shapes: Mapping[tuple[int, int], Shape]
) -> dict[tuple[int, int], tasks.Common]:
    """Resolves lanes and policies of shapes by (namespace, anything), each set in one look-up."""
    lanes = {
        named: Lane(
            named[0],
            shape.queue,
            shape.name,
            shape.lane_key,
            app_version="" if shape.run is None else ANY_VERSION,
        )
        for named, shape in shapes.items()
    }
    policies = {
        named: _policy(shape, catalogue.sources(named[0], shape.name))
        if shape.run is None
        else shape.run.policy
        for named, shape in shapes.items()
    }
    lane_ids = catalogue.lane_ids(lanes.values())
    policy_ids = catalogue.policy_ids(policies.values())
    return {
        named: tasks.Common(
            namespace_id=named[0],
            lane_id=lane_ids[lanes[named]],
            policy_id=policy_ids[policies[named]],
            priority=shape.priority,
            input_encoding=shape.input_encoding,
            input_schema=shape.input_schema,
            traceparent=shape.traceparent,
            delay_ms=shape.delay_ms,
            start_ms=policies[named].limit_ms(TimeoutKind.SCHEDULE_TO_START),
            total_ms=policies[named].limit_ms(TimeoutKind.TOTAL),
        )
        for named, shape in shapes.items()
    }


def _policy(shape: Shape, sources: Sources) -> Policy:
    """Puts together what is said of a task: call, operator, code, server, in this order.

    The caller's declaration is the code's; a caller without one (another language, a command
    line) gets what the newest worker registered.
    """
    return resolve(shape.policy, sources.override, shape.declared or sources.declared)


def _store(
    conn: Conn, calls: Sequence[Call], prepared: Sequence[_Pending], now: datetime | None
) -> list[list[Answer] | TenureError]:
    for pending, task_id in zip(prepared, tasks.make_ids(conn, len(prepared)), strict=True):
        pending.task_id = task_id
    repeated = _claim_requests(conn, calls, prepared)
    slots: list[list[Answer | None]] = [[None] * len(call.items) for call in calls]
    for number, known in repeated.items():
        if isinstance(known, list):
            slots[number] = known
    refused = {n: known for n, known in repeated.items() if isinstance(known, TenureError)}
    twins = {n: known for n, known in repeated.items() if isinstance(known, int)}
    fresh = [
        pending
        for pending in prepared
        if pending.call not in refused
        and pending.call not in twins
        and slots[pending.call][pending.place] is None
    ]
    standing = _claim_keys(conn, [pending for pending in fresh if pending.item.key], now)
    _leave_to_keys(conn, calls, [p for p in fresh if p.call not in repeated], standing)
    stored: list[_Pending] = []
    for pending in fresh:
        answer = standing.get(id(pending))
        if answer is None:
            stored.append(pending)
            answer = Enqueued(
                task_id=pending.task_id,
                lane_id=pending.task.common.lane_id,
                priority=pending.task.common.priority,
                delay_ms=pending.task.common.delay_ms,
            )
        slots[pending.call][pending.place] = answer
    if stored:
        tasks.insert(conn, [p.task_id for p in stored], [p.task for p in stored], now=now)
        started = [
            new_run(p.task_id, p.item.shape, p.task.common)
            for p in stored
            if p.item.shape.run is not None
        ]
        if started:
            runs.insert(conn, started, now=now)
    return [
        refused[number]
        if number in refused
        else [answer for answer in slots[twins.get(number, number)] if answer is not None]
        for number in range(len(calls))
    ]


def new_run(
    run_id: str, shape: Shape, common: tasks.Common, *, parent_run_id: str | None = None
) -> runs.NewRun:
    """Gives the run of a shape that says what runs have."""
    if shape.run is None:
        raise AssertionError("a shape of tasks makes no run")
    return runs.NewRun(
        run_id=run_id,
        namespace_id=common.namespace_id,
        name=shape.name,
        recovery_attempts=shape.run.recovery_attempts,
        attributes=shape.run.attributes,
        parent_run_id=parent_run_id,
    )


def _claim_requests(
    conn: Conn, calls: Sequence[Call], prepared: Sequence[_Pending]
) -> dict[int, list[Answer | None] | TenureError | int]:
    """Gives the answers of calls whose request id was used before, by number of the call.

    What a call answers is fixed before keys are looked at. Where a key then answers instead
    (`_leave_to_keys`), the repeated call has None, and its item is answered by its key again. A
    call that repeats another one of this batch has the number of that.
    """
    numbered = [(number, call) for number, call in enumerate(calls) if call.request_id is not None]
    if not numbered:
        return {}
    ids: dict[int, list[str]] = {number: [] for number, _ in numbered}
    for pending in prepared:
        if pending.call in ids:
            ids[pending.call].append(pending.task_id)
    requests = [
        keys.NewRequest(
            namespace_id=call.namespace_id,
            request_id=call.request_id or "",
            kind=_KIND if call.items[0].shape.run is None else _START_KIND,
            digest=call.digest,
            ids=ids[number],
        )
        for number, call in numbered
    ]
    claimed = keys.claim_requests(conn, requests)
    firsts: dict[tuple[int, str], int] = {}
    repeated: list[tuple[int, keys.NewRequest]] = []
    for (number, _), request in zip(numbered, requests, strict=True):
        name = (request.namespace_id, request.request_id)
        if name in claimed and name not in firsts:
            firsts[name] = number
        else:
            repeated.append((number, request))
    if not repeated:
        return {}
    known = keys.read_requests(conn, [request for _, request in repeated])
    answers: dict[int, list[Answer | None] | TenureError | int] = {}
    for number, request in repeated:
        name = (request.namespace_id, request.request_id)
        answer = _repeat(request, known[name], calls[number])
        answers[number] = firsts.get(name, answer) if isinstance(answer, list) else answer
    return answers


def _repeat(
    request: keys.NewRequest, row: rows.RequestRow, call: Call
) -> list[Answer | None] | TenureError:
    if row.kind != request.kind or row.digest != request.digest:
        return TenureError(
            Reason.REQUEST_ID_REUSED,
            f"request_id {request.request_id} was used for another call",
            metadata={"request_id": request.request_id},
        )
    ids = keys.unpack(row.answer)[: len(call.items)]
    return [None if task_id == keys.BY_KEY else Enqueued(task_id=task_id) for task_id in ids]


def _leave_to_keys(
    conn: Conn, calls: Sequence[Call], new: Sequence[_Pending], standing: Mapping[int, Answer]
) -> None:
    """Notes which items of new requests their keys answered, so that they do so again."""
    ids: dict[int, list[str]] = {}
    by_key: set[int] = set()
    for pending in new:
        if id(pending) in standing:
            by_key.add(pending.call)
        task_id = keys.BY_KEY if id(pending) in standing else pending.task_id
        ids.setdefault(pending.call, []).append(task_id)
    answers = [
        (call.namespace_id, call.request_id, ids[number])
        for number in by_key
        if (call := calls[number]).request_id is not None
    ]
    if answers:
        keys.answer_requests(conn, answers)


def _claim_keys(conn: Conn, keyed: Sequence[_Pending], now: datetime | None) -> dict[int, Answer]:
    """Gives the answers of items whose key stands, by identity of the item."""
    if not keyed:
        return {}
    everyone = wanted = [(pending, _new_key(pending)) for pending in keyed]
    claimed: set[str] = set()
    found: dict[tuple[int, str, str], rows.KeyRow] = {}
    while wanted:
        claimed |= keys.claim(conn, [key for _, key in wanted], now=now)
        wanted = [(pending, key) for pending, key in wanted if key.task_id not in claimed]
        if wanted:
            found |= keys.lock(conn, [key for _, key in wanted], now=now)
        # A key that stood may have expired and been forgotten before it was locked: it is free.
        wanted = [(p, key) for p, key in wanted if key.identity not in found]
    left = [(p, key) for p, key in everyone if key.task_id not in claimed]
    answers: dict[int, Answer] = {}
    taken_over: dict[tuple[int, str, str], keys.NewKey] = {}
    for pending, key in left:
        name = key.identity
        row = found[name]
        if row.expired and name not in taken_over:
            taken_over[name] = key
            continue
        current = taken_over.get(name)
        answers[id(pending)] = _standing(key, row) if current is None else _same(key, current)
    if taken_over:
        keys.take_over(conn, list(taken_over.values()), now=now)
    return answers


def _new_key(pending: _Pending) -> keys.NewKey:
    item = pending.item
    hashed = hashlib.sha256(item.input)
    hashed.update(b"\x00" + (item.shape.input_encoding or "json").encode())
    return keys.NewKey(
        namespace_id=pending.task.common.namespace_id,
        kind=keys.TASK if item.shape.run is None else keys.RUN,
        key=item.key or "",
        task_id=pending.task_id,
        name=item.shape.name,
        input_hash=hashed.digest(),
        key_ms=item.shape.key_ms,
    )


def _standing(key: keys.NewKey, row: rows.KeyRow) -> Answer:
    if row.name == key.name and row.input_hash == key.input_hash:
        return Enqueued(task_id=task_id_text(row.run_id, row.task_id), existing=True)
    return _taken(key, row.name, task_id_text(row.run_id, row.task_id))


def _same(key: keys.NewKey, current: keys.NewKey) -> Answer:
    if current.name == key.name and current.input_hash == key.input_hash:
        return Enqueued(task_id=current.task_id, existing=True)
    return _taken(key, current.name, current.task_id)


def _taken(key: keys.NewKey, existing_name: str, existing_id: str) -> TenureError:
    what, id_field = _SPOKEN[key.kind]
    what = "another input" if existing_name == key.name else f"{what} {existing_name!r}"
    return TenureError(
        Reason.KEY_TAKEN,
        f"key {key.key!r} stands for {what} ({existing_id}), not for this {key.name!r}",
        metadata={
            "key": key.key,
            "name": key.name,
            "existing_name": existing_name,
            id_field: existing_id,
        },
    )
