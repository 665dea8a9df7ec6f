"""Page tokens: where the next page of a list begins, opaque to callers and bound to the list."""

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from tenure_service.engine import limits, tokens
from tenure_service.engine.errors import FieldInvalid
from tenure_service.store import jsonb

M = TypeVar("M", bound=Message)
#: Room in an answer for what stands around its largest items.
HEADROOM_BYTES: Final = 256 * 1024
#: Tag and length of one entry of a list.
_ENTRY_BYTES: Final = 8


def write(kind: str, *place: str) -> str:
    """Gives the token of a place in a list."""
    return urlsafe_b64encode(json.dumps([kind, *place]).encode()).decode()


def read(kind: str, token: str, parts: int) -> Sequence[str] | None:
    """Reads a token of this kind of list; None if there was none.

    Raises:
        FieldInvalid: it is no token, or one of another list.
    """
    if not token:
        return None
    try:
        found = json.loads(urlsafe_b64decode(token.encode("ascii")))
    except (binascii.Error, ValueError, UnicodeError, RecursionError) as exc:
        raise _refused() from exc
    valid = (
        isinstance(found, list)
        and len(found) == parts + 1
        and found[0] == kind
        and all(isinstance(part, str) and part == jsonb.clean(part) for part in found)
    )
    if not valid:
        raise _refused()
    return [str(part) for part in found[1:]]


def row_id(text: str) -> str:
    """Gives the part of a token that is a row's id.

    Raises:
        FieldInvalid: it is none.
    """
    if not tokens.is_uuid(text):
        raise _refused()
    return text


def fitting(messages: Iterable[M]) -> list[M]:
    """Gives the entries of a page that fit into one message: at least the first."""
    found: list[M] = []
    size = 0
    for message in messages:
        size += message.ByteSize() + _ENTRY_BYTES
        if found and size > limits.MESSAGE_BYTES_MAX - HEADROOM_BYTES:
            break
        found.append(message)
    return found


def _refused() -> FieldInvalid:
    return FieldInvalid([("page_token", "is not a token of this list")])
