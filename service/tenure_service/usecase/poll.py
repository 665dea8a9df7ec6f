"""The unary way to lease: one call looks once; the caller's long poll repeats it.

A worker that polls has a session by its name, without a secret. A repeated request id answers with
the leases of the first call, as far as they live.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from tenure_service.engine import limits
from tenure_service.engine.errors import Reason, TenureError
from tenure_service.store import cancels, keys, leases, registry, rows, sessions
from tenure_service.store.database import Conn, Database
from tenure_service.store.leases import Pick
from tenure_service.store.registry import Lane
from tenure_service.store.sessions import NewSession
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.lease import Grant, count, take

#: No hash has five bytes, so no secret opens such a session.
POLLING_SECRET_HASH = b"polls"
_KIND = "LEASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a polling worker wants."""

    session: NewSession
    declared: Sequence[tuple[str, rows.Json]]
    served: Sequence[tuple[str, str]]
    task_count_max: int
    lease_ms: int
    request_id: str | None
    digest: bytes


class _Repeated(Exception):
    """The request was answered before; what this transaction took is put back by its rollback."""


def lease(database: Database, catalogue: Catalogue, wanted: Wanted) -> list[tuple[Grant, Lane]]:
    """Looks once for tasks, and leases them.

    Raises:
        TenureError: REQUEST_ID_REUSED.
    """
    namespace_id = wanted.session.namespace_id

    def work(conn: Conn) -> list[Grant]:
        session = sessions.poll(conn, wanted.session)
        if wanted.declared:
            registry.declare(conn, namespace_id, wanted.session.app_version, wanted.declared)
        request = _request(wanted, [])
        if request is not None and keys.read_requests(conn, [request]):
            raise _Repeated
        grants = _take(conn, catalogue, wanted, session)
        request = _request(wanted, [grant.tasks[0].lease_id for grant in grants])
        if grants and request is not None and not keys.claim_requests(conn, [request]):
            raise _Repeated
        return grants

    try:
        grants = database.transact(work)
        count(task for grant in grants for task in grant.tasks)
    except _Repeated:
        grants = _repeat(database, wanted)
    lanes = catalogue.lanes({grant.pick.lane_id for grant in grants})
    policies = catalogue.policies({task.policy_id for grant in grants for task in grant.tasks})
    return [
        (Grant(grant.pick, grant.tasks, policies, grant.details), lanes[grant.pick.lane_id])
        for grant in grants
    ]


def _request(wanted: Wanted, lease_ids: Sequence[str]) -> keys.NewRequest | None:
    if wanted.request_id is None:
        return None
    return keys.NewRequest(
        namespace_id=wanted.session.namespace_id,
        request_id=wanted.request_id,
        kind=_KIND,
        digest=wanted.digest,
        ids=lease_ids,
    )


def _take(
    conn: Conn, catalogue: Catalogue, wanted: Wanted, session: rows.SessionOpened
) -> list[Grant]:
    """Takes from the most urgent lanes first; a suspect is taken alone, by who holds nothing."""
    namespace_id = wanted.session.namespace_id
    served = [(namespace_id, queue, name) for queue, name in wanted.served]
    heads = leases.ready_lanes(conn, served)
    lanes = catalogue.lanes({head.lane_id for head in heads}, conn)
    grants: list[Grant] = []
    left = wanted.task_count_max
    holding = None
    for head in heads:
        suspect = lanes[head.lane_id].suspect
        if suspect:
            holding = sessions.holding(conn, session.session_id) if holding is None else holding
            if grants or holding:
                continue
        taken = _take_lane(conn, wanted, session, head.lane_id, 1 if suspect else left)
        grants += taken
        left -= sum(len(grant.tasks) for grant in taken)
        if left <= 0 or (suspect and taken) or _input_bytes(grants) >= limits.ASSIGN_BYTES_MAX:
            break
    return grants


def _take_lane(
    conn: Conn, wanted: Wanted, session: rows.SessionOpened, lane_id: int, task_count_max: int
) -> list[Grant]:
    """Takes from one lane: a few first, and then as many as their inputs say will fit."""
    grants: list[Grant] = []
    left = task_count_max
    count = limits.ASSIGN_FIRST_COUNT
    while left > 0 and count > 0:
        pick = Pick(
            session_id=session.session_id,
            epoch=session.epoch,
            namespace_id=wanted.session.namespace_id,
            lane_id=lane_id,
            task_count_max=min(left, count, limits.LEASE_TASK_COUNT_MAX),
            secret=secrets.token_bytes(16),
            lease_ms=wanted.lease_ms,
        )
        tasks, details = take(conn, pick)
        if tasks:
            grants.append(Grant(pick, tasks, {}, details))
            left -= len(tasks)
        if len(tasks) < pick.task_count_max:
            break
        size = _input_bytes(grants)
        mean = max(size / (task_count_max - left), 1.0)
        count = int((limits.ASSIGN_BYTES_MAX - size) / mean)
    return grants


def _input_bytes(grants: Sequence[Grant]) -> int:
    return sum(len(task.input) for grant in grants for task in grant.tasks)


def _repeat(database: Database, wanted: Wanted) -> list[Grant]:
    """Answers with the leases of the first call, as far as they live."""
    request = _request(wanted, [])
    if request is None:
        raise AssertionError("only a call with a request id is repeated")

    def work(conn: Conn) -> list[rows.OutstandingTask]:
        row = keys.read_requests(conn, [request])[request.namespace_id, request.request_id]
        if row.kind != _KIND or row.digest != wanted.digest:
            raise TenureError(
                Reason.REQUEST_ID_REUSED,
                f"request_id {request.request_id} was used for another call",
                metadata={"request_id": request.request_id},
            )
        return leases.outstanding(conn, keys.unpack(row.answer))

    found = database.read(work)
    grants: dict[str, Grant] = {}
    for task in found:
        if task.lease_id not in grants:
            pick = Pick(
                session_id="",
                epoch=0,
                namespace_id=wanted.session.namespace_id,
                lane_id=task.lane_id,
                task_count_max=0,
                secret=task.secret,
                lease_ms=wanted.lease_ms,
            )
            grants[task.lease_id] = Grant(pick, [], {}, {})
        grants[task.lease_id].tasks.append(
            rows.LeasedTask(
                task.lease_id,
                task.run_id,
                task.task_id,
                task.rank,
                task.seq,
                task.attempt,
                task.delivery,
                task.policy_id,
                task.input,
                task.input_encoding,
                task.input_schema,
                task.traceparent,
            )
        )
    return list(grants.values())


def cancels_of(database: Database, lease_ids: Sequence[str]) -> list[rows.CancelNotice]:
    """Lists the requests to cancel tasks of some leases."""
    if not lease_ids:
        return []
    return database.read(lambda conn: cancels.of_leases(conn, lease_ids))
