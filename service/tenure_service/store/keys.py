"""Idempotency keys of tasks and runs, and request ids of batched calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn

#: What keys stand for: each has its own.
TASK = "TASK"
RUN = "RUN"
#: Stands in the answer of a request for an item that its key answered.
BY_KEY = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key for a new task or run."""

    namespace_id: int
    key: str
    task_id: str
    name: str
    input_hash: bytes
    key_ms: int
    kind: str = TASK

    @property
    def identity(self) -> tuple[int, str, str]:
        """What it is unique by."""
        return self.namespace_id, self.kind, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request id, what it was used for, and what it answers."""

    namespace_id: int
    request_id: str
    kind: str
    digest: bytes
    ids: Sequence[str]


def claim(conn: Conn, keys: Sequence[NewKey], *, now: datetime | None = None) -> set[str]:
    """Claims keys; gives the ids of the tasks whose key now stands for them."""
    statements.execute(conn, "key_lock_timeout", {})
    found = statements.many(conn, "key_claim", rows.KeyClaimed, _key_parameters(keys, now))
    return {row.task_id for row in found}


def lock(
    conn: Conn, keys: Sequence[NewKey], *, now: datetime | None = None
) -> dict[tuple[int, str, str], rows.KeyRow]:
    """Reads and locks keys that stand, by (namespace, kind, key)."""
    parameters = {
        "namespace_ids": arrays.numbers(key.namespace_id for key in keys),
        "kinds": [key.kind for key in keys],
        "keys": [key.key for key in keys],
        "now": now,
    }
    found = statements.many(conn, "key_lock", rows.KeyRow, parameters)
    return {(row.namespace_id, row.kind, row.key): row for row in found}


def take_over(conn: Conn, keys: Sequence[NewKey], *, now: datetime | None = None) -> None:
    """Gives locked, expired keys to new tasks."""
    statements.execute(conn, "key_take_over", _key_parameters(keys, now))


def _key_parameters(keys: Sequence[NewKey], now: datetime | None) -> dict[str, object]:
    return {
        "namespace_ids": arrays.numbers(key.namespace_id for key in keys),
        "kinds": [key.kind for key in keys],
        "keys": [key.key for key in keys],
        "ids": arrays.uuids(key.task_id for key in keys),
        "names": [key.name for key in keys],
        "input_hashes": arrays.BytesArray([key.input_hash for key in keys]),
        "keys_ms": arrays.numbers(key.key_ms for key in keys),
        "now": now,
    }


def claim_requests(conn: Conn, requests: Sequence[NewRequest]) -> set[tuple[int, str]]:
    """Claims request ids; gives those that were not known, as (namespace, request id)."""
    parameters = {
        "namespace_ids": arrays.numbers(request.namespace_id for request in requests),
        "request_ids": arrays.uuids(request.request_id for request in requests),
        "kinds": [request.kind for request in requests],
        "digests": arrays.BytesArray([request.digest for request in requests]),
        "answers": arrays.BytesArray([_pack(request.ids) for request in requests]),
    }
    found = statements.many(conn, "request_claim", rows.RequestClaimed, parameters)
    return {(row.namespace_id, row.request_id) for row in found}


def answer_requests(conn: Conn, answers: Sequence[tuple[int, str, Sequence[str]]]) -> None:
    """Changes what claimed requests answer, as (namespace, request id, ids)."""
    parameters = {
        "namespace_ids": arrays.numbers(namespace_id for namespace_id, _, _ in answers),
        "request_ids": arrays.uuids(request_id for _, request_id, _ in answers),
        "answers": arrays.BytesArray([_pack(ids) for _, _, ids in answers]),
    }
    statements.execute(conn, "request_answer", parameters)


def read_requests(
    conn: Conn, requests: Sequence[NewRequest]
) -> dict[tuple[int, str], rows.RequestRow]:
    """Reads what earlier calls answered, by (namespace, request id)."""
    parameters = {
        "namespace_ids": arrays.numbers(request.namespace_id for request in requests),
        "request_ids": arrays.uuids(request.request_id for request in requests),
    }
    found = statements.many(conn, "request_get", rows.RequestRow, parameters)
    return {(row.namespace_id, row.request_id): row for row in found}


def delete_old(conn: Conn, *, now: datetime | None = None) -> None:
    """Forgets requests and keys that are out of force."""
    statements.execute(conn, "request_delete_old", {"now": now})
    statements.execute(conn, "key_delete_expired", {"now": now})


def _pack(ids: Sequence[str]) -> bytes:
    return bytes.fromhex("".join(ids).replace("-", ""))


def unpack(answer: bytes) -> list[str]:
    """Reads the ids that a request answered."""
    hexed = answer.hex()
    return [
        f"{part[:8]}-{part[8:12]}-{part[12:16]}-{part[16:20]}-{part[20:]}"
        for part in (hexed[at : at + 32] for at in range(0, len(hexed), 32))
    ]
