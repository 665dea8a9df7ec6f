"""What a call that gave up says, when a server told why it could not answer and then hung."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

import tenure
from tenure import methods
from tenure.channel import Target
from tenure.connection import Connection
from tenure.v1 import task_service_pb2 as tasks
from tenure_service.engine.errors import Reason, TenureError
from tenure_service.rpc import errors


@pytest_asyncio.fixture
async def hanging() -> AsyncIterator[str]:
    """A peer that says once that its database is away, and answers nothing from then on."""
    asked = 0

    async def answer(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        nonlocal asked
        asked += 1
        if asked == 1:
            away = TenureError(Reason.DATABASE_UNAVAILABLE, "the database is away")
            await errors.abort(context, away)
        await asyncio.Event().wait()
        return b""

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("tenure.v1.TaskService", {"GetTask": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def test_call__server_told_why_and_then_hangs__says_why(hanging: str) -> None:
    connection = Connection(Target(hanging, "default", ""))
    try:
        with pytest.raises(tenure.Unavailable, match="the database is away") as caught:
            await connection.call(
                methods.GET_TASK, tasks.GetTaskRequest(task_id="x"), total_seconds=2
            )
    finally:
        await connection.close()
    assert caught.value.status == "DEADLINE_EXCEEDED"
    assert str(caught.value).endswith("At the last try it did not answer in time.")
