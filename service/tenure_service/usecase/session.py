"""Sessions: a worker's presence, opened, resumed and noted as alive."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from tenure_service.store import leases, registry, rows, sessions, versions
from tenure_service.store.database import Conn, Database
from tenure_service.store.sessions import NewSession, Presence
from tenure_service.store.versions import WorkflowHandler
from tenure_service.usecase import expire
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.end import Ends

__all__ = [
    "HeldTask",
    "NewSession",
    "Opened",
    "Presence",
    "new_secret",
    "open_session",
    "secret_hash",
    "take_over",
    "touch",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A session that this server has from now on, in this epoch."""

    session_id: str
    epoch: int
    resumed: bool
    #: Whether its code declared what did not stand so far.
    declared_news: bool


def new_secret() -> str:
    """Makes the secret that a resume needs."""
    return secrets.token_urlsafe(24)


def secret_hash(secret: str) -> bytes:
    """Gives what is stored of a secret; it has 192 random bits, so one plain hash is enough."""
    return hashlib.sha256(secret.encode()).digest()


def open_session(
    database: Database,
    session: NewSession,
    declared: Sequence[tuple[str, rows.Json]],
    *,
    workflows: Sequence[WorkflowHandler] = (),
    resume_session_id: str | None = None,
) -> Opened:
    """Opens or resumes a session, and notes what its code declares.

    A session that cannot be resumed (closed, unknown, or another secret) is opened anew.
    """

    def work(conn: Conn) -> Opened:
        declared_news = bool(declared) and registry.declare(
            conn, session.namespace_id, session.app_version, declared
        )
        if workflows:
            versions.note(conn, session.namespace_id, workflows)
        row = None
        if resume_session_id is not None:
            row = sessions.resume(conn, resume_session_id, session)
        resumed = row is not None
        row = row or sessions.open_(conn, session)
        return Opened(
            session_id=row.session_id,
            epoch=row.epoch,
            resumed=resumed,
            declared_news=declared_news,
        )

    return database.transact(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTask:
    """A task, or an activation of a run, that a resumed worker holds."""

    lease_id: str
    secret: bytes
    run_id: str
    task_id: str
    delivery: int
    attempt: int
    queue: str
    suspect: bool
    activation: bool


def take_over(
    database: Database, catalogue: Catalogue, session_id: str, kept_lease_ids: Sequence[str]
) -> tuple[Ends, list[HeldTask]]:
    """Sorts the leases of a resumed session: what its worker does not know of is handed out again.

    Returns:
        What was ended, and the tasks that the worker still holds.
    """
    ends = expire.lose_unheld(database, catalogue, session_id, kept_lease_ids)
    found = (
        database.read(lambda conn: leases.outstanding(conn, kept_lease_ids))
        if kept_lease_ids
        else []
    )
    lanes = catalogue.lanes({row.lane_id for row in found})
    return ends, [
        HeldTask(
            lease_id=row.lease_id,
            secret=row.secret,
            run_id=row.run_id,
            task_id=row.task_id,
            delivery=row.delivery,
            attempt=row.attempt,
            queue=lanes[row.lane_id].queue,
            suspect=lanes[row.lane_id].suspect,
            activation=lanes[row.lane_id].is_of_runs,
        )
        for row in found
    ]


def touch(database: Database, presences: Sequence[Presence]) -> set[str]:
    """Notes that sessions are alive; gives those that are not: closed by others, or gone."""

    def work(conn: Conn) -> set[str]:
        sessions.touch(conn, presences)
        return sessions.gone(conn, [presence.session_id for presence in presences])

    return database.transact(work)
