"""Failures of user code between the wire and the store, clipped to their limits.

The stored form is JSON: {type, message, stack, details, cause, non_retryable, retry_after_ms}, where
`details` holds base64 data with its encoding. Nothing of a failure is refused for its size, or the
attempt would be lost with its reason: what is too long is cut, or replaced by a note that says so.
"""

import base64
import json
from typing import Any

from tenure.v1 import payload_pb2 as payload
from tenure_service.engine import limits
from tenure_service.store import jsonb

_MARK = "… [clipped]"
#: Schema of the note that stands for details which were too large.
CLIPPED_SCHEMA = "tenure.clipped"


def clip(text: str, bytes_max: int) -> str:
    """Shortens a text to `bytes_max` bytes of UTF-8, with a mark where it was cut."""
    # What cannot be stored is replaced first: a replacement is longer than what it stands for.
    text = jsonb.clean(text)
    raw = text.encode("utf-8", "replace")
    if len(raw) <= bytes_max:
        return text
    kept = raw[: bytes_max - len(_MARK.encode())]
    return kept.decode("utf-8", "ignore") + _MARK


def to_json(failure: payload.Failure, *, depth: int = 0) -> dict[str, Any]:
    """Gives the stored form of a reported failure."""
    body: dict[str, Any] = {
        "type": clip(failure.type, limits.FAILURE_TYPE_BYTES_MAX) or "Failure",
        "message": clip(failure.message, limits.FAILURE_MESSAGE_BYTES_MAX),
    }
    if failure.stack:
        body["stack"] = clip(failure.stack, limits.FAILURE_STACK_BYTES_MAX)
    if failure.non_retryable:
        body["non_retryable"] = True
    if failure.HasField("retry_after"):
        body["retry_after_ms"] = failure.retry_after.ToMilliseconds()
    if failure.HasField("details"):
        body["details"] = _details(failure.details)
    if failure.HasField("cause") and depth + 1 < limits.FAILURE_CAUSE_COUNT_MAX:
        body["cause"] = to_json(failure.cause, depth=depth + 1)
    return body


def _details(details: payload.Payload) -> dict[str, str]:
    """Gives details as they are; a part of encoded data would mislead, so larger ones are a note."""
    data, encoding, schema = details.data, details.encoding, details.schema
    if len(data) > limits.DETAILS_BYTES_MAX:
        data = json.dumps({"clipped": True, "size_bytes": len(data)}).encode()
        encoding, schema = "json", CLIPPED_SCHEMA
    return {
        "data": base64.b64encode(data).decode(),
        "encoding": clip(encoding, limits.ENCODING_BYTES_MAX),
        "schema": clip(schema, limits.SCHEMA_BYTES_MAX),
    }


def from_json(body: dict[str, Any]) -> payload.Failure:
    """Gives the wire form of a stored failure."""
    failure = payload.Failure(
        type=body.get("type", ""),
        message=body.get("message", ""),
        stack=body.get("stack", ""),
        non_retryable=bool(body.get("non_retryable")),
    )
    if "retry_after_ms" in body:
        failure.retry_after.FromMilliseconds(body["retry_after_ms"])
    if "details" in body:
        failure.details.data = base64.b64decode(body["details"]["data"])
        failure.details.encoding = body["details"]["encoding"]
        failure.details.schema = body["details"].get("schema", "")
    if "cause" in body:
        failure.cause.CopyFrom(from_json(body["cause"]))
    return failure
