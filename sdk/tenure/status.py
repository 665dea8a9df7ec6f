"""Errors of calls and of items of batches, as exceptions of `tenure.errors`.

Decided on `google.rpc.ErrorInfo.reason` alone. An answer without one did not come from a Tenure
server but from gRPC itself or something between; then the status decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from tenure import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

DOMAIN = "tenure"
_PREFIX = "ERROR_REASON_"
_DETAILS_KEY = "grpc-status-details-bin"

# One row for each value of tenure.v1.ErrorReason.
BY_REASON: dict[str, type[errors.ServiceError]] = {
    "FIELD_INVALID": errors.FieldInvalid,
    "TASK_NOT_FOUND": errors.NotFound,
    "RUN_NOT_FOUND": errors.NotFound,
    "NOT_REGISTERED": errors.NotFound,
    "KEY_TAKEN": errors.KeyTaken,
    "LEASE_LOST": errors.StateConflict,
    "STATE_CONFLICT": errors.StateConflict,
    "HISTORY_MISMATCH": errors.StateConflict,
    "VERSION_UNSUPPORTED": errors.VersionUnsupported,
    "PROTOCOL_VIOLATION": errors.StateConflict,
    "CONTENTION": errors.Contention,
    "OVERLOADED": errors.Overloaded,
    "PAYLOAD_TOO_LARGE": errors.PayloadTooLarge,
    "QUOTA_EXCEEDED": errors.Overloaded,
    "DATABASE_UNAVAILABLE": errors.Unavailable,
    "SHUTTING_DOWN": errors.Unavailable,
    "UNAUTHENTICATED": errors.Unauthenticated,
    "SCOPE_MISSING": errors.ScopeMissing,
    "REQUEST_ID_REUSED": errors.RequestIdReused,
    "BUG": errors.ServerBug,
}

# Reasons that another try may overcome.
TRANSIENT = frozenset(
    {"CONTENTION", "OVERLOADED", "QUOTA_EXCEEDED", "DATABASE_UNAVAILABLE", "SHUTTING_DOWN", "BUG"}
)

# For answers without a reason.
_BY_STATUS: dict[str, type[errors.ServiceError]] = {
    "UNAVAILABLE": errors.Unavailable,
    "DEADLINE_EXCEEDED": errors.Unavailable,
    "CANCELLED": errors.Unavailable,
    "RESOURCE_EXHAUSTED": errors.Overloaded,
    "ABORTED": errors.Contention,
    "UNAUTHENTICATED": errors.Unauthenticated,
    "PERMISSION_DENIED": errors.ScopeMissing,
    "UNIMPLEMENTED": errors.VersionUnsupported,
}
_STATUS_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


def from_status(status: status_pb2.Status) -> errors.ServiceError:
    """Builds the exception for the error of one item of a batch."""
    name = _STATUS_NAMES.get(status.code, str(status.code))
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    bad_request = error_details_pb2.BadRequest()
    retry_after: float | None = None
    fields: dict[str, str] = {}
    reason = ""
    for detail in status.details:
        if detail.Unpack(info) and info.domain == DOMAIN:
            reason = info.reason.removeprefix(_PREFIX)
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        elif detail.Unpack(bad_request):
            fields = {each.field: each.description for each in bad_request.field_violations}
    kind = BY_REASON.get(reason) or _BY_STATUS.get(name, errors.ServiceError)
    message = status.message or reason or name
    error = kind(
        message if reason else f"{message} ({name})",
        reason=reason,
        status=name,
        metadata=dict(info.metadata) if reason else {},
        retry_after=retry_after,
    )
    if isinstance(error, errors.FieldInvalid):
        error.fields = fields
    return error


def from_rpc(error: grpc.aio.AioRpcError) -> errors.ServiceError:
    """Builds the exception for the error of a whole call."""
    details = _details(error.trailing_metadata() or ())
    if details is not None:
        return from_status(details)
    status = status_pb2.Status(code=error.code().value[0], message=error.details() or "")
    return from_status(status)


def _details(metadata: Iterable[tuple[str, str | bytes]]) -> status_pb2.Status | None:
    for key, value in metadata:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except Exception:  # noqa: BLE001 - whatever a proxy put there, the status remains
                return None
    return None
