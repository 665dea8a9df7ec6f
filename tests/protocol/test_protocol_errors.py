"""Rule 12: what no right worker sends, and peers that speak something else."""

import asyncio
import contextlib
import random
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from grpc import aio

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import payload_pb2 as payload
from tenure.v1 import policy_pb2 as policy
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tenure_service.main import Server
from tests.eventually import eventually
from tests.fix_server import RunningServer, server_config
from tests.protocol import caller, contract, refusals
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.protocol.wire import Wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN = contract.opening
WORK = contract.work
#: Field 2047 of WorkRequest, of length 2: a kind that a newer peer would send.
NEWER_KIND = b"\xfa\x7f\x02\x08\x01"
FIRST: dict[str, list[service.WorkRequest]] = {
    "accept first": [WORK(accept=stream.Accept())],
    "close first": [WORK(close=stream.Close())],
    "heartbeat first": [WORK(heartbeat=stream.Heartbeat(heartbeat_id=1))],
    "empty first": [service.WorkRequest()],
    "newer kind first": [service.WorkRequest.FromString(NEWER_KIND)],
    "open twice": [OPEN(), OPEN()],
    "empty": [OPEN(), service.WorkRequest()],
    "newer kind": [OPEN(), service.WorkRequest.FromString(NEWER_KIND)],
}
ODD_BACKOFF: Any = 42
ODD_POLICY = policy.TaskPolicy(retry=policy.RetryPolicy(backoff=ODD_BACKOFF))
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "no worker": ({"worker": worker.WorkerIdentity()}, "open.worker.name"),
    "no handlers": ({"handlers": []}, "open.handlers"),
    "1,001 handlers": (
        {"handlers": [worker.Handler(name=f"n{n}") for n in range(1001)]},
        "open.handlers",
    ),
    "empty name": ({"handlers": [worker.Handler()]}, "open.handlers[0].name"),
    "long name": ({"handlers": [worker.Handler(name="é" * 101)]}, "open.handlers[0].name"),
    "control": ({"handlers": [worker.Handler(name="a\nb")]}, "open.handlers[0].name"),
    "long queue": (
        {"handlers": [worker.Handler(name="a", queue="q" * 201)]},
        "open.handlers[0].queue",
    ),
    "backoff": (
        {"handlers": [worker.Handler(name="a", policy=ODD_POLICY)]},
        "open.handlers[0].policy.retry.backoff",
    ),
    "slots": ({"slots": worker.Slots(total=10_001)}, "open.slots.total"),
    "slots of a queue": (
        {"slots": worker.Slots(total=1, by_queue={"q": 4_000_000_000})},
        "open.slots.by_queue[q]",
    ),
    "nul in a queue of slots": (
        {"slots": worker.Slots(total=1, by_queue={"a\x00": 1})},
        "open.slots.by_queue",
    ),
    "resume": ({"resume": stream.Resume(session_id="../etc")}, "open.resume.session_id"),
}


@pytest.mark.parametrize("messages", FIRST.values(), ids=FIRST)
async def test_send__out_of_order_or_unknown__ends_the_stream_with_a_violation(
    shared: Caller, messages: list[service.WorkRequest]
) -> None:
    refusal = await contract.streamed(*messages)(shared)
    assert (refusal.status, refusal.reason) == ("FAILED_PRECONDITION", "PROTOCOL_VIOLATION")
    # Of a newer peer both versions are named, as far as it has said its own.
    assert refusal.metadata["server_version"] == "1.0"
    if messages[0].HasField("open"):
        assert refusal.metadata["client_version"] == "1.0"


@pytest.mark.parametrize(("changed", "field"), FIELDS.values(), ids=FIELDS)
async def test_open__bad_field__is_named(
    shared: Caller, changed: dict[str, Any], field: str
) -> None:
    refusal = await contract.streamed(OPEN(**changed))(shared)
    assert (refusal.status, refusal.reason) == ("INVALID_ARGUMENT", "FIELD_INVALID")
    assert any(name.startswith(field) for name in refusal.fields), refusal


async def test_open__everything_wrong__names_all_fields(shared: Caller) -> None:
    message = OPEN(
        worker=worker.WorkerIdentity(name="n" * 201, sdk="s" * 101, sdk_version="\x01"),
        handlers=[worker.Handler()],
        slots=worker.Slots(total=10_001, activations=10_001),
    )
    refusal = await contract.streamed(message)(shared)
    assert refusal.fields == (
        "open.handlers[0].name",
        "open.worker.name",
        "open.worker.sdk",
        "open.worker.sdk_version",
        "open.slots.total",
        "open.slots.activations",
    )


@pytest.mark.parametrize("version", ["2.0", "0.9", "99", "one", "v1.0", "\U0001f600", "x" * 5000])
async def test_open__another_major_version__names_both(shared: Caller, version: str) -> None:
    refusal = await contract.streamed(OPEN(protocol_version=version))(shared)
    assert (refusal.status, refusal.reason) == ("FAILED_PRECONDITION", "VERSION_UNSUPPORTED")
    assert refusal.metadata["server_version"] == "1.0"
    assert refusal.metadata["client_version"] == version[:20]


@pytest.mark.parametrize("version", ["", "1", "1.0", "1.7"])
async def test_open__same_major_version__is_served(shared: Caller, version: str) -> None:
    one = RawWorker(shared)
    await one.call.write(OPEN(protocol_version=version))
    await one.until(lambda: bool(one.opened.session_id))
    assert one.opened.protocol_version == "1.0"
    await one.close()


async def test_open__unknown_fields_of_a_newer_peer__are_survived(shared: Caller) -> None:
    one = RawWorker(shared)
    raw = OPEN().open.SerializeToString() + b"\xfa\x7f\x03new"
    await one.call.write(WORK(open=stream.Open.FromString(raw)))
    await one.until(lambda: bool(one.opened.session_id))
    await one.close()


async def test_set_slots__out_of_bounds__ends_the_stream(shared: Caller) -> None:
    slots = worker.Slots(total=10_001)
    refusal = await contract.streamed(OPEN(), WORK(set_slots=stream.SetSlots(slots=slots)))(shared)
    assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("set_slots.slots.total",))


async def test_report__empty_or_too_long__is_refused_and_the_stream_goes_on(
    shared: Caller,
) -> None:
    one = await RawWorker.open(shared, "reports")
    assert await one.report() == []
    bare = worker.Result(task_id=contract.UNKNOWN, lease_token=contract.TOKEN)
    bare.released.SetInParent()
    ack = await one.report_fully(*[bare] * 1001)
    assert set(map(caller.status_name, ack.statuses)) == {"REFUSED"}
    assert await one.report(*[bare] * 1000) == ["LEASE_LOST"] * 1000
    await one.close()


async def test_report__oversized_payload__is_refused_alone(shared: Caller) -> None:
    await shared.enqueue("large", count=3)
    one = await RawWorker.open(shared, "large", slots=3)
    await one.tasks(3)
    await one.accept()
    first, second, third = one.assigned
    ack = await one.report_fully(
        caller.completed(first),
        caller.completed(second, contract.TOO_LARGE),
        caller.completed(third),
    )
    assert [caller.status_name(status) for status in ack.statuses] == [
        "RECORDED",
        "REFUSED",
        "RECORDED",
    ]
    assert [error.index for error in ack.errors] == [1]
    refusal = refusals.read(ack.errors[0].error)
    assert (refusal.status, refusal.reason) == ("RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE")
    assert refusal.metadata == {"size_bytes": "2097153", "limit_bytes": "2097152"}
    assert refusal.retry_seconds is None
    one.out[second.task_id] = second
    assert await one.report(caller.failed(second)) == ["RECORDED"]
    await one.close()


async def test_enqueue__oversized_payload__is_refused_alone(shared: Caller) -> None:
    good = tasks.NewTask(name="fits", input=payload.Payload(data=contract.TOO_LARGE[:-1]))
    bad = tasks.NewTask(name="fits", input=payload.Payload(data=contract.TOO_LARGE))
    answer = await shared.task.EnqueueTasks(contract.enqueueing(good, bad, good))
    assert [result.WhichOneof("outcome") for result in answer.results] == ["task", "error", "task"]


async def test_send__message_above_16_mib__is_refused_and_the_server_stays_up(
    shared: Caller,
) -> None:
    large = tasks.NewTask(name="huge", input=payload.Payload(data=contract.TOO_LARGE[:-1]))
    with pytest.raises(aio.AioRpcError) as caught:
        await shared.task.EnqueueTasks(contract.enqueueing(*[large] * 9))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    one = await RawWorker.open(shared, "huge")
    item = worker.Assignment(task_id=contract.UNKNOWN, lease_token=contract.TOKEN)
    results = [caller.completed(item, contract.TOO_LARGE[:-1])] * 9
    with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
        await one.send(report=stream.Report(report_id=1, results=results))
    await one.ended()
    assert one.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await shared.healthy()


async def test_send__undecodable_message__is_refused_and_the_server_stays_up(
    shared: Caller,
) -> None:
    # Not protobuf, cut short, and a string that is no UTF-8.
    for body in (b"\xff" * 50, b"\x0a\x05ab", b"\x0a\x02\xc3\x28"):
        for method in ("EnqueueTasks", "GetTask"):
            made: Any = shared.channel.unary_unary(f"/tenure.v1.TaskService/{method}")
            refusal = await refusals.refused(made(body))
            assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("message",))
        stream_made: Any = shared.channel.stream_stream("/tenure.v1.WorkerService/Work")
        refusal = await refusals.refused(stream_made(iter([body])).read())
        assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("message",))
    assert await shared.healthy()


async def test_call__unknown_method__is_unimplemented(shared: Caller) -> None:
    for name in ("/tenure.v1.TaskService/Nothing", "/tenure.v9.TaskService/EnqueueTasks", "/x"):
        unknown: Any = shared.channel.unary_unary(name)
        with pytest.raises(aio.AioRpcError) as caught:
            await unknown(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


NOISE = {
    "http/1.1": b"GET / HTTP/1.1\r\nHost: tenure\r\nUser-Agent: curl/8\r\n\r\n",
    "http/1.1 post": b"POST /tenure.v1.TaskService/GetTask HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "postgres": b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    "preface, then noise": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 3000,
    "preface, huge frame": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "nothing": b"",
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
async def test_connect__no_grpc_peer__harms_nobody(
    shared: Caller, shared_server: RunningServer, noise: bytes
) -> None:
    host, _, port = shared_server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(noise)
    await writer.drain()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(0.2):
            await reader.read()
    assert await shared.healthy()
    writer.transport.abort()
    assert await shared.healthy()


async def test_connect__random_bytes__harm_nobody(
    shared: Caller, shared_server: RunningServer
) -> None:
    host, _, port = shared_server.address.rpartition(":")
    choose = random.Random(4)  # noqa: S311 - guards nothing
    for number in range(60):
        _, writer = await asyncio.open_connection(host, int(port))
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if number % 2 else b""
        writer.write(preface + choose.randbytes(choose.randint(1, 4000)))
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.transport.abort()
        assert await shared.healthy()


@pytest_asyncio.fixture(loop_scope="module")
async def inside(database: str) -> Any:
    """A server whose inside the test reaches."""
    made = Server(server_config(database))
    await made.start()
    yield made
    await made.stop()


async def test_vanish__two_hundred_streams_cut__leaves_no_session(
    inside: Server, conn: psycopg.Connection
) -> None:
    near = Caller(inside.address)
    await near.enqueue("gone", count=20)
    hub = inside._hub
    assert hub is not None
    gate = asyncio.Semaphore(10)

    async def vanish(wire: Wire, number: int) -> None:
        async with gate:
            far = Caller(wire.address)
            one = RawWorker(far)
            await one.send(open=RawWorker.open_message("gone", slots=1 + number % 2))
            await one.until(lambda: bool(one.opened.session_id))
            wire.cut()
            await one.ended()
            await far.close()

    for _ in range(20):
        async with contextlib.AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(Wire(inside.address)) for _ in range(10)]
            await asyncio.gather(*(vanish(wire, n) for n, wire in enumerate(wires)))
        assert await near.healthy()
    sessions = hub.leaser.sessions
    assert await asyncio.to_thread(eventually, lambda: not sessions)
    # What they were handed goes back, as far as it was not lost too often.
    left = "select count(*) from leases"
    assert await asyncio.to_thread(eventually, lambda: conn.execute(left).fetchone() == (0,))
    workers = await near.admin.ListWorkers(admin.ListWorkersRequest())
    assert len(workers.workers) == 200
    await near.close()


async def test_break__stream_of_one_worker__is_shown_as_not_receiving(
    shared: Caller,
) -> None:
    one = await RawWorker.open(shared, "shown")

    async def shown() -> admin.Worker:
        answer = await shared.admin.ListWorkers(admin.ListWorkersRequest())
        return next(w for w in answer.workers if w.session_id == one.opened.session_id)

    assert (await shown()).receiving
    await one.cut()
    # Heartbeats by the unary call go on: they do not make it look alive.
    deadline = asyncio.get_running_loop().time() + 3
    while (await shown()).receiving:
        await shared.renew(contract.TOKEN)
        assert asyncio.get_running_loop().time() < deadline, "it is still shown as receiving"
