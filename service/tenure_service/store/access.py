"""Keys of callers, and the record of what operators do."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure_service.engine.tokens import TaskKey
from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import clean


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key to be made; without a namespace it is for every one, without a lifetime for ever.

    It ends no later than the key that makes it, `maker_id`.
    """

    namespace_id: int | None
    name: str
    hash: bytes
    scopes: Sequence[str]
    queue_globs: Sequence[str]
    created_by: str
    maker_id: str | None
    lifetime_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What an operator did."""

    namespace: str | None
    actor: str
    action: str
    request: str
    outcome: str
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeedsWanted:
    """Which deeds to list; None: any."""

    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    refused_only: bool = False
    changes_only: bool = False


def create_key(conn: Conn, key: NewKey) -> rows.ApiKeyRow:
    """Makes a key."""
    parameters = {
        "namespace_id": key.namespace_id,
        "name": clean(key.name),
        "hash": key.hash,
        "scopes": list(key.scopes),
        "queue_globs": [clean(glob) for glob in key.queue_globs],
        "created_by": clean(key.created_by),
        "maker_id": key.maker_id,
        "lifetime_ms": key.lifetime_ms,
    }
    return statements.one(conn, "api_key_insert", rows.ApiKeyRow, parameters)


def list_keys(conn: Conn, *, include_ended: bool) -> list[rows.ApiKeyRow]:
    """Lists keys, oldest first."""
    parameters = {"include_ended": include_ended}
    return statements.many(conn, "api_key_list", rows.ApiKeyRow, parameters)


def key_workers(conn: Conn) -> dict[str, int]:
    """Counts the workers that take tasks with each key, by its id."""
    found = statements.many(conn, "api_key_workers", rows.ApiKeyWorkers, {})
    return {row.key_id: row.worker_count for row in found}


def revoke_key(conn: Conn, key_id: str, namespace_id: int | None) -> rows.ApiKeyRow | None:
    """Ends a key; None if there is none, or none of that namespace."""
    parameters = {"key_id": key_id, "namespace_id": namespace_id}
    found = statements.many(conn, "api_key_revoke", rows.ApiKeyRow, parameters)
    return found[0] if found else None


def note_used(conn: Conn, key_ids: Sequence[str]) -> None:
    """Notes that keys were used."""
    statements.execute(conn, "api_key_used", {"key_ids": arrays.uuids(key_ids)})


def queues_of(conn: Conn, namespace_id: int, keys: Sequence[TaskKey]) -> dict[str, str]:
    """Gives the queues of tasks, by task id; those that are not there are left out."""
    parameters = {
        "namespace_id": namespace_id,
        "run_ids": arrays.uuids(key.run_id for key in keys),
        "task_ids": arrays.uuids(key.task_id for key in keys),
    }
    found = statements.many(conn, "task_queue_list", rows.TaskQueueRow, parameters)
    return {row.task_id: row.queue for row in found}


def add_deed(conn: Conn, deed: Deed) -> None:
    """Adds what an operator did to the record."""
    statements.execute(
        conn,
        "audit_event_insert",
        {
            "namespace": deed.namespace,
            "actor": clean(deed.actor),
            "action": deed.action,
            "request": clean(deed.request),
            "outcome": deed.outcome,
            "peer": clean(deed.peer),
        },
    )


def list_deeds(
    conn: Conn,
    namespace: str,
    wanted: DeedsWanted,
    *,
    include_general: bool,
    before: int,
    row_count_max: int,
) -> list[rows.AuditEventRow]:
    """Lists what operators did, newest first."""
    parameters = {
        "namespace": namespace,
        "include_general": include_general,
        "actor": None if wanted.actor is None else clean(wanted.actor),
        "action": None if wanted.action is None else clean(wanted.action),
        "since": wanted.since,
        "until": wanted.until,
        "refused_only": wanted.refused_only,
        "changes_only": wanted.changes_only,
        "before": before,
        "row_count_max": row_count_max,
    }
    return statements.many(conn, "audit_event_list", rows.AuditEventRow, parameters)
