"""Arrays as parameters, made cheaply.

psycopg dumps a list element by element in Python, which costs more than the statement for batches
of hundreds. Arrays of numbers and of validated UUIDs are therefore written as array literals, and
arrays of bytes in the binary format of PostgreSQL (array_send: dimensions, null flag, element type,
then length and data of each element).
"""

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime

from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.pq import Format

from tenure_service.engine.tokens import TaskKey

_HEADER = struct.Struct("!iiiii")
_LENGTH = struct.Struct("!i")
_NULL = _LENGTH.pack(-1)
_BYTEA_OID = 17
_BYTEA_ARRAY_OID = 1001


class BytesArray:
    """An array of bytea, some of them null."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[bytes | None]) -> None:
        self.items = items


class _BytesArrayDumper(Dumper):
    format = Format.BINARY
    oid = _BYTEA_ARRAY_OID

    def dump(self, obj: BytesArray) -> bytes:
        items = obj.items
        if not items:
            return _HEADER.pack(0, 0, _BYTEA_OID, 0, 0)[:12]
        parts = [_HEADER.pack(1, 1, _BYTEA_OID, len(items), 1)]
        for item in items:
            if item is None:
                parts.append(_NULL)
            else:
                parts.append(_LENGTH.pack(len(item)))
                parts.append(item)
        return b"".join(parts)


def register(conn: Connection[tuple[object, ...]]) -> None:
    """Teaches a connection to send `BytesArray`."""
    conn.adapters.register_dumper(BytesArray, _BytesArrayDumper)


def uuids(ids: Iterable[str]) -> str:
    """Writes an array literal of UUIDs, which the caller has validated or the database has made."""
    return "{" + ",".join(ids) + "}"


def task_keys(keys: Sequence[TaskKey]) -> dict[str, object]:
    """Writes the two parallel arrays, `run_ids` and `task_ids`, that name tasks."""
    return {
        "run_ids": uuids(key.run_id for key in keys),
        "task_ids": uuids(key.task_id for key in keys),
    }


def uuids_or_null(ids: Iterable[str | None]) -> str:
    """Writes an array literal of UUIDs, some of them null."""
    return "{" + ",".join(["NULL" if id_ is None else id_ for id_ in ids]) + "}"


def numbers(values: Iterable[float]) -> str:
    """Writes an array literal of numbers."""
    return "{" + ",".join(map(str, values)) + "}"


def numbers_or_null(values: Iterable[float | None]) -> str:
    """Writes an array literal of numbers, some of them null."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def instants_or_null(values: Iterable[datetime | None]) -> str:
    """Writes an array literal of instants, some of them null."""
    return "{" + ",".join(["NULL" if at is None else f'"{at.isoformat()}"' for at in values]) + "}"


def words(values: Iterable[str]) -> str:
    """Writes an array literal of enum values, which are plain words."""
    return "{" + ",".join(values) + "}"


def booleans(values: Iterable[bool]) -> str:
    """Writes an array literal of booleans."""
    return "{" + ",".join(["t" if value else "f" for value in values]) + "}"


def texts(values: Sequence[str | None]) -> list[str | None] | None:
    """Gives an array of texts, or None where all are null: `unnest` fills the place with nulls."""
    if any(value is not None for value in values):
        return list(values)
    return None


def blobs(values: Sequence[bytes | None]) -> BytesArray | None:
    """Gives an array of bytes, or None where all are null."""
    if any(value is not None for value in values):
        return BytesArray(values)
    return None
