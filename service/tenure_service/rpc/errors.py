"""Errors as they travel: one table from reason to status, and one place that clips details.

docs/errors.md is generated from this table; a test proves that every reason has a row.
"""

import logging
import secrets
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from tenure_service.engine import limits
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError
from tenure_service.telemetry import metrics

_log = logging.getLogger(__name__)

DOMAIN: Final = "tenure"


class Row(NamedTuple):
    """What a reason means to a caller."""

    status: grpc.StatusCode
    action: str


TABLE: Final[dict[Reason, Row]] = {
    Reason.FIELD_INVALID: Row(grpc.StatusCode.INVALID_ARGUMENT, "fix the call"),
    Reason.TASK_NOT_FOUND: Row(grpc.StatusCode.NOT_FOUND, "stop"),
    Reason.RUN_NOT_FOUND: Row(grpc.StatusCode.NOT_FOUND, "stop"),
    Reason.NOT_REGISTERED: Row(grpc.StatusCode.NOT_FOUND, "create it, or fix the name"),
    Reason.KEY_TAKEN: Row(grpc.StatusCode.ALREADY_EXISTS, "choose another key, or stop"),
    Reason.LEASE_LOST: Row(grpc.StatusCode.FAILED_PRECONDITION, "drop the result, never retry"),
    Reason.STATE_CONFLICT: Row(grpc.StatusCode.FAILED_PRECONDITION, "read the state, decide anew"),
    Reason.HISTORY_MISMATCH: Row(grpc.StatusCode.FAILED_PRECONDITION, "stop, tell an operator"),
    Reason.VERSION_UNSUPPORTED: Row(grpc.StatusCode.FAILED_PRECONDITION, "update one side"),
    Reason.PROTOCOL_VIOLATION: Row(grpc.StatusCode.FAILED_PRECONDITION, "fix the worker"),
    Reason.CONTENTION: Row(grpc.StatusCode.ABORTED, "retry the whole operation"),
    Reason.OVERLOADED: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "wait, then retry"),
    Reason.PAYLOAD_TOO_LARGE: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "send less"),
    Reason.QUOTA_EXCEEDED: Row(grpc.StatusCode.RESOURCE_EXHAUSTED, "wait, then retry"),
    Reason.DATABASE_UNAVAILABLE: Row(grpc.StatusCode.UNAVAILABLE, "retry the call"),
    Reason.SHUTTING_DOWN: Row(grpc.StatusCode.UNAVAILABLE, "retry on another server"),
    Reason.UNAUTHENTICATED: Row(grpc.StatusCode.UNAUTHENTICATED, "send a valid key"),
    Reason.SCOPE_MISSING: Row(grpc.StatusCode.PERMISSION_DENIED, "use a key with the scope"),
    Reason.REQUEST_ID_REUSED: Row(grpc.StatusCode.ALREADY_EXISTS, "make a new request_id"),
    Reason.BUG: Row(grpc.StatusCode.INTERNAL, "report it with the incident id"),
}

_MESSAGE_BYTES_MAX = 1024
_METADATA_BYTES_MAX = 256
#: Leaves room for the message and the other details.
_VIOLATIONS_BYTES_MAX = 2_200


def bug(exc: BaseException) -> TenureError:
    """Logs a defect with a new incident id, and gives the error that tells no more than the id."""
    incident = secrets.token_hex(6)
    _log.error("incident %s", incident, exc_info=exc, extra={"incident": incident})
    return TenureError(
        Reason.BUG,
        f"a defect of the server, incident {incident}; its log has the details",
        metadata={"incident": incident},
    )


def status(error: TenureError) -> status_pb2.Status:
    """Gives the status of an error with its details, together under 4 KiB."""
    info = error_details_pb2.ErrorInfo(
        reason=f"ERROR_REASON_{error.reason}",
        domain=DOMAIN,
        metadata={key: _clip(value, _METADATA_BYTES_MAX) for key, value in error.metadata.items()},
    )
    details = [_packed(info)]
    if isinstance(error, FieldInvalid):
        request = error_details_pb2.BadRequest()
        for field, text in error.violations:
            if request.ByteSize() > _VIOLATIONS_BYTES_MAX:
                break
            request.field_violations.add(
                field=_clip(field, 100), description=_clip(text, _METADATA_BYTES_MAX // 2)
            )
        details.append(_packed(request))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromTimedelta(error.retry_after)
        details.append(_packed(retry))
    code: int = TABLE[error.reason].status.value[0]
    message = _clip(error.message, _MESSAGE_BYTES_MAX)
    result = status_pb2.Status(code=code, message=message, details=details)
    while result.ByteSize() > limits.ERROR_DETAILS_BYTES_MAX and len(result.details) > 1:
        result.details.pop()
    return result


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: TenureError) -> None:
    """Ends a call with an error."""
    if error.reason in metrics.REFUSALS:
        metrics.CALLS_REFUSED.add(1, error.reason)
    sent = rpc_status.to_status(status(error))
    await context.abort(sent.code, sent.details, sent.trailing_metadata)


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _clip(text: str, bytes_max: int) -> str:
    # Only printable text may travel in the status message of HTTP/2.
    clean = "".join(letter if letter.isprintable() else " " for letter in text)
    raw = clean.encode("utf-8", "replace")
    if len(raw) <= bytes_max:
        return raw.decode()
    return raw[: bytes_max - 3].decode("utf-8", "ignore") + "…"
