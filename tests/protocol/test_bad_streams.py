"""Every kind of message of the stream with values and in an order that no decent worker sends."""

import asyncio
import random
from typing import Any

import grpc
import pytest

from tenure.v1 import worker_service_pb2 as service
from tests.protocol import contract, mutations, refusals
from tests.protocol.bases import STREAMED, wrong
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")

LATER = [kind for kind in STREAMED if kind != "open"]


async def test_bases__every_kind_of_message__has_one() -> None:
    assert set(STREAMED) == {field.name for field in service.WorkRequest.DESCRIPTOR.fields}
    for kind, message in STREAMED.items():
        assert message.WhichOneof("message") == kind


async def sent(one: RawWorker, *kinds: str) -> bool:
    """Sends messages, and says whether all were sent before the server ended the stream.

    If not, gRPC's own INTERNAL of the write may stand where the server's status was.
    """
    try:
        for kind in kinds:
            await one.call.write(STREAMED[kind])
        await one.call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    return True


@pytest.mark.parametrize("kind", STREAMED)
async def test_send__any_field_bad__ends_the_stream_with_a_documented_status_or_not(
    shared: Caller, kind: str
) -> None:
    bad: list[str] = []
    base = STREAMED[kind]
    inner = getattr(base, kind)
    gate = asyncio.Semaphore(8)

    async def send(path: str, name: str, changed: Any) -> None:
        where = f"{kind}.{path} = {name}"
        message = service.WorkRequest(**{kind: changed})
        async with gate:
            one = RawWorker(shared)
            if kind != "open":
                await one.send(open=RawWorker.open_message("bad stream"))
            try:
                await one.call.write(message)
                await one.call.done_writing()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            refusal = await one.ended()
        if refusal is not None:
            bad.extend(wrong(where, refusal))
        elif one.code is not grpc.StatusCode.OK:
            bad.append(f"{where}: {one.code}")

    await asyncio.gather(*(send(*mutation) for mutation in mutations.mutations(inner)))
    assert not bad, "\n".join(bad)
    assert await shared.healthy()


@pytest.mark.parametrize(
    "kind", [kind for kind in STREAMED if mutations.strings(getattr(STREAMED[kind], kind))]
)
async def test_send__any_string_no_utf_8__ends_the_stream_and_harms_nobody(
    shared: Caller, kind: str
) -> None:
    made: Any = shared.channel.stream_stream("/tenure.v1.WorkerService/Work")
    opening = contract.work(open=RawWorker.open_message("no text")).SerializeToString()
    for path, name, raw in mutations.encoded(STREAMED[kind]):
        call = made(iter([raw] if kind == "open" else [opening, raw]))
        if kind != "open":
            assert service.WorkResponse.FromString(await call.read()).HasField("opened")
        refusal = await refusals.refused(call.read())
        assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("message",)), (path, name)
    assert await shared.healthy()


@pytest.mark.parametrize("kind", LATER)
async def test_send__any_kind_before_open__is_a_violation(shared: Caller, kind: str) -> None:
    refusal = await contract.streamed(STREAMED[kind])(shared)
    assert (refusal.status, refusal.reason) == ("FAILED_PRECONDITION", "PROTOCOL_VIOLATION")


@pytest.mark.parametrize("kind", STREAMED)
async def test_send__any_kind_after_close__changes_nothing_of_the_end(
    shared: Caller, kind: str
) -> None:
    one = RawWorker(shared)
    await one.send(open=RawWorker.open_message("closed"))
    await one.send(close=STREAMED["close"].close)
    complete = await sent(one, kind)
    assert await one.ended() is None
    assert one.code is grpc.StatusCode.OK or not complete


async def test_send__all_kinds_in_random_order__ends_with_a_documented_status(
    shared: Caller,
) -> None:
    seed = random.randrange(10**6)  # noqa: S311 - guards nothing
    choose = random.Random(seed)  # noqa: S311 - guards nothing
    judged: set[str | None] = set()
    for number in range(60):
        kinds = choose.choices(list(STREAMED), k=choose.randint(1, 12))
        if number % 3:
            kinds.insert(0, "open")
        one = RawWorker(shared)
        complete = await sent(one, *kinds)
        refusal = await one.ended()
        reason = None if refusal is None else refusal.reason
        closed = kinds.index("close") if "close" in kinds else len(kinds)
        decent = kinds[0] == "open" and "open" not in kinds[1:closed]
        expected = None if decent else "PROTOCOL_VIOLATION"
        assert reason in {None, expected}, (seed, kinds, reason)
        if complete:
            assert reason == expected, (seed, kinds, one.code)
            assert decent == (one.code is grpc.StatusCode.OK), (seed, kinds, one.code)
            judged.add(reason)
    assert judged == {None, "PROTOCOL_VIOLATION"}
    assert await shared.healthy()
