"""The message of a busy server, written by hand: the assignments of a lease, and their Assign.

Building an Assignment from protobuf's Python objects and copying it into the message costs 8 us a
task, and was the most that a server did for one; joining bytes costs 2 us. Field numbers come from
the generated classes, what is rare is written by them, and a test compares what is written here with
what they read. Everything else that a server sends is built from messages.
"""

from collections.abc import Iterable

from tenure.v1 import payload_pb2, worker_pb2, worker_service_pb2
from tenure.v1 import work_stream_pb2 as stream

_LENGTH_DELIMITED = 2
_VARINT = 0


class Written(bytes):
    """A WorkResponse with an Assign, as it goes over the wire."""

    __slots__ = ()

    def WhichOneof(self, _name: str) -> str:  # noqa: N802 - as messages call it
        """Says which message it is, as one that is not written yet would."""
        return "assign"


def _length(value: int) -> bytes:
    """Writes a number that is not negative."""
    if value < len(_LENGTHS):
        return _LENGTHS[value]
    return _varint(value)


def _varint(value: int) -> bytes:
    groups = []
    while True:
        value, group = value >> 7, value & 0x7F
        groups.append(group | 0x80 if value else group)
        if not value:
            return bytes(groups)


_LENGTHS = [_varint(value) for value in range(1 << 10)]


def _tag(number: int, kind: int = _LENGTH_DELIMITED) -> bytes:
    return _varint(number << 3 | kind)


_TASK_ID = _tag(worker_pb2.Assignment.TASK_ID_FIELD_NUMBER)
_ATTEMPT = _tag(worker_pb2.Assignment.ATTEMPT_FIELD_NUMBER, _VARINT)
_DELIVERY = _tag(worker_pb2.Assignment.DELIVERY_FIELD_NUMBER, _VARINT)
_INPUT = _tag(worker_pb2.Assignment.INPUT_FIELD_NUMBER)
_DATA = _tag(payload_pb2.Payload.DATA_FIELD_NUMBER)
_ASSIGNMENTS = _tag(stream.Assign.ASSIGNMENTS_FIELD_NUMBER)
_ASSIGN = _tag(worker_service_pb2.WorkResponse.ASSIGN_FIELD_NUMBER)
_ENCODINGS = {
    encoding: payload_pb2.Payload(encoding=encoding).SerializeToString()
    for encoding in ("", "json")
}


def assignment(task_id: str, attempt: int, delivery: int, input_: bytes, rest: bytes) -> bytes:
    """Writes an Assignment.

    Args:
        task_id: Opaque id of the task.
        attempt: Its attempt.
        delivery: Its delivery.
        input_: Its input, written by `payload`.
        rest: All other fields, written by protobuf: most are equal for the tasks of a lease.
    """
    task = task_id.encode()
    return b"".join(
        (
            _TASK_ID,
            _length(len(task)),
            task,
            _ATTEMPT,
            _length(attempt),
            _DELIVERY,
            _length(delivery),
            _INPUT,
            _length(len(input_)),
            input_,
            rest,
        )
    )


def payload(data: bytes, encoding: str | None, schema: str | None) -> bytes:
    """Writes a Payload."""
    written = _ENCODINGS.get(encoding or "")
    if written is None or schema:
        return payload_pb2.Payload(
            data=data, encoding=encoding or "", schema=schema or ""
        ).SerializeToString()
    return b"".join((_DATA, _length(len(data)), data, written))


def assign(assignments: Iterable[bytes]) -> Written:
    """Writes a WorkResponse with an Assign of assignments that are written already."""
    parts: list[bytes] = []
    for one in assignments:
        parts += (_ASSIGNMENTS, _length(len(one)), one)
    body = b"".join(parts)
    return Written(b"".join((_ASSIGN, _length(len(body)), body)))
