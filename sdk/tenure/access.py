"""Keys and the record of operators: what the clients answer with, and how it is read."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from tenure import reading
from tenure.v1 import admin_service_pb2 as admin

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable


class Scope(enum.StrEnum):
    """Scope says what a key may be used for."""

    WORKER = "worker"
    CLIENT = "client"
    ADMIN = "admin"


_NUMBERS = {
    Scope.WORKER: admin.SCOPE_WORKER,
    Scope.CLIENT: admin.SCOPE_CLIENT,
    Scope.ADMIN: admin.SCOPE_ADMIN,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """ApiKey is a key without its secret.

    Attributes:
        id: Id of the key; it is no secret.
        namespace: Namespace that it is for; empty: every one.
        queues: Globs of the queues that it may be used on.
        used_at: When it was last used, to within a minute.
        worker_count: Workers that take tasks with it now; told by `list_api_keys`.
        created_by: Who made it: another key, or an account at the database; empty: not known.
    """

    id: str
    name: str
    namespace: str
    scopes: list[Scope]
    queues: list[str]
    created_at: datetime.datetime | None
    expires_at: datetime.datetime | None
    revoked_at: datetime.datetime | None
    used_at: datetime.datetime | None
    worker_count: int
    created_by: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewApiKey:
    """NewApiKey is a key that was just made.

    Attributes:
        secret: What callers send; it is told here and nowhere else.
    """

    key: ApiKey
    secret: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """AuditEvent is one thing that an operator did or asked.

    Attributes:
        actor: `key:NAME:ID`, `database:USER@HOST`, or `anonymous` where no keys are asked for.
        action: Name of the RPC or command.
        request: What was asked, as JSON, clipped.
        outcome: `OK`, or `OK:` with what was done (`OK: replayed 0 of 1`), or the reason of the
            error.
    """

    at: datetime.datetime | None
    actor: str
    action: str
    namespace: str
    request: str
    outcome: str
    peer: str


def scope_numbers(scopes: Iterable[Scope | str]) -> list[admin.Scope.ValueType]:
    """Returns scopes as they travel.

    Raises:
        ValueError: one is none.
    """
    return [_NUMBERS[Scope(scope)] for scope in scopes]


def api_key(message: admin.ApiKey) -> ApiKey:
    """Reads a key; a scope that this version does not know is left out."""
    return ApiKey(
        id=message.key_id,
        name=message.name,
        namespace=message.namespace,
        scopes=[scope for scope, number in _NUMBERS.items() if number in message.scopes],
        queues=list(message.queue_globs),
        created_at=reading.instant(message, "created_at"),
        expires_at=reading.instant(message, "expires_at"),
        revoked_at=reading.instant(message, "revoked_at"),
        used_at=reading.instant(message, "used_at"),
        worker_count=message.worker_count,
        created_by=message.created_by,
    )


def audit_event(message: admin.AuditEvent) -> AuditEvent:
    """Reads one thing that an operator did."""
    return AuditEvent(
        at=reading.instant(message, "at"),
        actor=message.actor,
        action=message.action,
        namespace=message.namespace,
        request=message.request,
        outcome=message.outcome,
        peer=message.peer,
    )
