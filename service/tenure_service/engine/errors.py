"""Errors that callers see.

    TenureError                 one reason, a sentence, metadata
    └── FieldInvalid            names every offending field at once

A reason is the full name of a value of `ErrorReason` in proto/tenure/v1/errors.proto without its
prefix; a test compares the two lists. Which gRPC status a reason has is decided in `rpc.errors`.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum


class Reason(StrEnum):
    """Why something was refused; see the protocol's errors.proto for what each one means."""

    FIELD_INVALID = "FIELD_INVALID"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    NOT_REGISTERED = "NOT_REGISTERED"
    KEY_TAKEN = "KEY_TAKEN"
    LEASE_LOST = "LEASE_LOST"
    STATE_CONFLICT = "STATE_CONFLICT"
    HISTORY_MISMATCH = "HISTORY_MISMATCH"
    VERSION_UNSUPPORTED = "VERSION_UNSUPPORTED"
    PROTOCOL_VIOLATION = "PROTOCOL_VIOLATION"
    CONTENTION = "CONTENTION"
    OVERLOADED = "OVERLOADED"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    DATABASE_UNAVAILABLE = "DATABASE_UNAVAILABLE"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    SCOPE_MISSING = "SCOPE_MISSING"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    BUG = "BUG"


class TenureError(Exception):
    """Something was refused, for a reason that the caller can act on."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after


class FieldInvalid(TenureError):
    """Fields of a call are missing, malformed or out of bounds."""

    def __init__(self, violations: Sequence[tuple[str, str]]) -> None:
        """Takes (field path, what is wrong) pairs, at least one."""
        super().__init__(
            Reason.FIELD_INVALID, "; ".join(f"{field}: {text}" for field, text in violations)
        )
        self.violations = list(violations)


def not_found(task_id: str) -> TenureError:
    """Says that there is no such task, without telling whether another namespace has it."""
    return TenureError(Reason.TASK_NOT_FOUND, f"no task {task_id!r} in this namespace")


def unauthenticated(text: str) -> TenureError:
    """Says that a caller is not known."""
    return TenureError(Reason.UNAUTHENTICATED, text)


def database_unavailable(detail: str) -> TenureError:
    """Says that PostgreSQL cannot be used now; the caller may try again."""
    return TenureError(
        Reason.DATABASE_UNAVAILABLE,
        f"PostgreSQL cannot be used now: {detail}",
        retry_after=timedelta(seconds=1),
    )


def shutting_down() -> TenureError:
    """Says that this server stops; another one may be tried at once."""
    return TenureError(
        Reason.SHUTTING_DOWN, "this server is stopping", retry_after=timedelta(milliseconds=200)
    )
