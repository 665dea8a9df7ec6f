"""Errors as a client sees them, taken apart; whatever the protocol promises of all is checked."""

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc import aio
from grpc_status import rpc_status

DETAILS_BYTES_MAX = 4 * 1024
PREFIX = "ERROR_REASON_"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One error of a call or of an item."""

    status: str
    reason: str
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    retry_seconds: float | None = None


def read(status: status_pb2.Status) -> Refusal:
    """Takes a status apart, and checks what holds for each of them."""
    info = error_details_pb2.ErrorInfo()
    request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    assert status.ByteSize() < DETAILS_BYTES_MAX + 1, f"{status.ByteSize()} bytes of details"
    assert status.message
    infos = [detail for detail in status.details if detail.Unpack(info)]
    assert len(infos) == 1, f"not one ErrorInfo: {status}"
    assert info.domain == "tenure"
    assert info.reason.startswith(PREFIX)
    for detail in status.details:
        assert detail.Unpack(info) or detail.Unpack(request) or detail.Unpack(retry)
    waits = any(detail.Unpack(retry) for detail in status.details)
    return Refusal(
        status=code_pb2.Code.Name(status.code),
        reason=info.reason.removeprefix(PREFIX),
        message=status.message,
        metadata=dict(info.metadata),
        fields=tuple(violation.field for violation in request.field_violations),
        retry_seconds=retry.retry_delay.ToTimedelta().total_seconds() if waits else None,
    )


def of(error: grpc.RpcError) -> Refusal:
    """Takes apart the error of a call."""
    assert isinstance(error, aio.AioRpcError)
    call: Any = error
    status = rpc_status.from_call(call)
    assert status is not None, f"no details: {error!r}"
    assert status.code == error.code().value[0]
    return read(status)


async def refused(call: Awaitable[Any]) -> Refusal:
    """Gives the error that a call answers."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return of(caught.value)
