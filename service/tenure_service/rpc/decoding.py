"""Messages that are no messages: answered like any other bad input, not as a defect.

gRPC ends a call whose bytes do not decode with UNKNOWN and the text of the exception. Here decoding
gives an `Undecodable` in the message's place, and whoever takes the message asks `checked` first.
What is answered may be bytes that are written already.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from tenure_service.engine.errors import FieldInvalid

M = TypeVar("M")
_OURS = "/tenure."


class Undecodable:
    """Stands for a message that could not be decoded."""


def checked(message: M) -> M:
    """Gives the message.

    Raises:
        FieldInvalid: it is none.
    """
    if isinstance(message, Undecodable):
        raise FieldInvalid([("message", "is not encoded as the protocol says")])
    return message


class Decoding(grpc.aio.ServerInterceptor):
    """Makes the decoding of our services careful, and lets them answer bytes."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Gives the handler of a call with a decoder that never raises."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_OURS):
            return handler
        decode, encode = handler.request_deserializer, handler.response_serializer

        def carefully(data: bytes) -> object:
            try:
                return decode(data)
            except DecodeError:
                return Undecodable()

        def unless_written(message: Any) -> bytes:
            return bytes(message) if isinstance(message, bytes) else encode(message)

        return handler._replace(request_deserializer=carefully, response_serializer=unless_written)
