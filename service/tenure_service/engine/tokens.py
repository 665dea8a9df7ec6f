"""Opaque strings of the wire: task ids and lease tokens.

A task id is the run's UUID, followed by `:` and the task's UUID where the two differ (a stand-alone
task is its own run). A lease token is 43 letters of URL-safe base64: 16 bytes of lease id, 16 bytes
of secret. Peers must not look inside; the store never looks up by task id alone.
"""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LEASE_BYTES = 16
_TOKEN_BYTES = 32

UUID_MAX = "ffffffff-ffff-ffff-ffff-ffffffffffff"


class TaskKey(NamedTuple):
    """The two UUIDs of a task, as lower case text."""

    run_id: str
    task_id: str


def task_id_text(run_id: str, task_id: str) -> str:
    """Gives the id that travels."""
    return task_id if run_id == task_id else f"{run_id}:{task_id}"


def task_id_parse(text: str) -> TaskKey | None:
    """Reads an id that travelled; None if it is none."""
    if _UUID.fullmatch(text):
        return TaskKey(text, text)
    run_id, colon, task_id = text.partition(":")
    if colon and _UUID.fullmatch(run_id) and _UUID.fullmatch(task_id):
        return TaskKey(run_id, task_id)
    return None


def is_uuid(text: str) -> bool:
    """Says whether a text is a UUID in its lower case form."""
    return _UUID.fullmatch(text) is not None


def lease_token_text(lease_id: str, secret: bytes) -> str:
    """Gives the token that travels; `secret` is 16 bytes."""
    raw = bytes.fromhex(lease_id.replace("-", "")) + secret
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def lease_token_parse(text: str) -> tuple[str, bytes] | None:
    """Reads a token that travelled: (lease id, secret); None if it is none."""
    try:
        raw = urlsafe_b64decode(text.encode("ascii") + b"=")
    except (binascii.Error, ValueError, UnicodeEncodeError):
        return None
    if len(raw) != _TOKEN_BYTES:
        return None
    hexed = raw[:_LEASE_BYTES].hex()
    lease_id = f"{hexed[:8]}-{hexed[8:12]}-{hexed[12:16]}-{hexed[16:20]}-{hexed[20:]}"
    return lease_id, raw[_LEASE_BYTES:]
