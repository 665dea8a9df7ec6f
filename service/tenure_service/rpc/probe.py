"""The asking side of the gRPC health service, for `tenure health`."""

from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc


class NoAnswer(Exception):
    """The server said nothing of its health; the message is gRPC's."""


async def ask(channel: grpc.aio.Channel, *, seconds: float) -> str:
    """Asks once whether the server takes traffic.

    Returns:
        SERVING, NOT_SERVING, or another name of the health service's statuses.

    Raises:
        NoAnswer: nobody listens, or no answer came within the time.
    """
    stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stub names no methods
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
    except grpc.aio.AioRpcError as exc:
        raise NoAnswer(f"{exc.code().name}: {exc.details()}") from exc
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
