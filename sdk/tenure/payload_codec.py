"""The program's own last step for payloads: encryption, compression, a reference to a store.

A codec stands between JSON and the wire. It sees arguments, results, and the details of heartbeats
and reschedules. It never sees names, keys and lanes, nor failures (type, message, stack, and the
`details` of NonRetryable), which servers match and clip, and people and workers in other languages
read: what is secret does not belong into the text of an exception. It runs on the thread or in the process that uses the value, never on the I/O loop, and on several
threads at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tenure import check, codec, errors, records
from tenure.v1 import payload_pb2

if TYPE_CHECKING:
    from collections.abc import Callable


@runtime_checkable
class PayloadCodec(Protocol):
    """PayloadCodec changes payloads on their way out, and back on their way in; failures it does not.

    Both sides of a queue need it: whoever lacks it cannot read what it wrote, and its tasks fail,
    retryably, so that a worker which has it can take them.
    """

    def encode(self, payload: records.Payload) -> records.Payload:
        """Returns what travels in place of a payload of encoding `json`.

        The name of the new encoding must differ, and should say all that `decode` needs, such as
        `json+aesgcm;kid=2026-01`. A task with an idempotency key is only recognised again if the
        same input gives the same bytes.
        """
        raise NotImplementedError

    def decode(self, payload: records.Payload) -> records.Payload:
        """Returns what `encode` was given; a payload of an encoding it does not know, unchanged.

        It is called for payloads of every encoding, `json` included: producers without the codec
        may have sent them, and it is the codec's to refuse them.
        """
        raise NotImplementedError


def from_argument(value: object) -> PayloadCodec | None:
    """Checks what `codec=` was given.

    Raises:
        WrongType: an object without the methods `encode` and `decode`.
    """
    if value is None or (isinstance(value, PayloadCodec) and not isinstance(value, type | str)):
        return value
    raise check.wrong_type("codec", "an object with the methods encode and decode", value)


def write(data: bytes, where: str, hook: PayloadCodec | None) -> payload_pb2.Payload:
    """Returns JSON data as the payload that travels.

    Raises:
        CodecFailed: the codec raised, or returned no payload.
        PayloadTooLarge: what travels would be longer than 2 MiB.
    """
    if hook is None:
        return codec.payload(data, where)
    plain = records.Payload(data=data, encoding=codec.ENCODING)
    coded = _called(hook.encode, plain, f"{where}: the codec could not encode them")
    codec.check_size(len(coded.data), where)
    check.text(coded.encoding, "the encoding that a codec names", 100)
    return payload_pb2.Payload(data=coded.data, encoding=coded.encoding, schema=coded.schema)


def read(message: payload_pb2.Payload, where: str, hook: PayloadCodec | None) -> bytes:
    """Returns the JSON data of a payload that came.

    Raises:
        CodecFailed: the codec raised, or returned no payload.
        ValueRefused: it is not JSON, and there is no codec that makes it so.
    """
    if hook is None:
        return codec.json_data(message, where)
    came = records.Payload(
        data=message.data, encoding=message.encoding or codec.ENCODING, schema=message.schema
    )
    plain = decode(came, where, hook)
    if plain.encoding != codec.ENCODING:
        raise errors.ValueRefused(
            where,
            f"{_name(hook)} left the encoding {plain.encoding!r} as it is, which is not"
            f" {codec.ENCODING!r}",
        )
    return plain.data


def decode(payload: records.Payload, where: str, hook: PayloadCodec) -> records.Payload:
    """Has a payload decoded.

    Raises:
        CodecFailed: the codec raised, or returned no payload.
    """
    failed = f"{where}: the codec could not decode encoding {payload.encoding!r}"
    return _called(hook.decode, payload, failed)


def _called(
    function: Callable[[records.Payload], records.Payload], value: records.Payload, failed: str
) -> records.Payload:
    try:
        answer: object = function(value)
    except Exception as exc:
        raise errors.CodecFailed(f"{failed}: {type(exc).__name__}: {exc}") from exc
    if not isinstance(answer, records.Payload) or not isinstance(answer.data, bytes):
        raise errors.CodecFailed(f"{failed}: it returned no tenure.Payload of bytes: {answer!r}")
    return answer


def _name(hook: PayloadCodec) -> str:
    return f"the codec {type(hook).__name__}"
