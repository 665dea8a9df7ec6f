"""Payloads come back to the byte, whatever they hold, and messages stay below their limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import payload_pb2 as payload
from tenure.v1 import task_pb2 as task
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import worker_pb2 as worker
from tests.protocol import caller, contract
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 2 * 1024 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
PAYLOADS = {
    "empty": payload.Payload(),
    "nul": payload.Payload(data=b"\x00"),
    "nuls around": payload.Payload(data=b"\x00a\x00\x00b\x00", encoding="binary"),
    "every byte": payload.Payload(data=bytes(range(256)) * 3, encoding="binary"),
    "no utf-8": payload.Payload(data=b"\xff\xfe\xed\xa0\x80", encoding="text"),
    "json numbers": payload.Payload(
        data=b'[9007199254740993,18446744073709551616,1e400,-0.0,1.0,NaN,"\\ud800","\\u0000"]'
    ),
    "json said": payload.Payload(data=b"{}", encoding="json"),
    "schema": payload.Payload(data=b"x", encoding="protobuf", schema="acme.v1.Order"),
    "schema alone": payload.Payload(data=b"x", schema="s" * 200),
    "encrypted": payload.Payload(data=b"\x01\x02", encoding="json+aesgcm;kid=2026-01"),
    "long encoding": payload.Payload(data=b"x", encoding="e" * 100),
    "array literal": payload.Payload(data=b'{NULL,"a",\\}', encoding="{NULL}", schema="NULL"),
    "2 MiB": payload.Payload(data=bytes(range(256)) * (LIMIT // 256), encoding="binary"),
}


@pytest.mark.parametrize("sent", PAYLOADS.values(), ids=PAYLOADS)
async def test_payload__input_and_output__come_back_to_the_byte(
    shared: Caller, sent: payload.Payload
) -> None:
    name = f"round {asyncio.get_running_loop().time()}"
    for by_stream in (True, False):
        task_id = (await shared.enqueue(name, input=sent))[0]
        item = await once(shared, name, sent, by_stream=by_stream)
        assert item.input == sent
        shown = (await shared.get(task_id)).task
        assert (shown.input, shown.output) == (sent, sent)
        assert (await shared.wait(task_id)).results[0].result.output == sent


async def once(
    client: Caller, name: str, output: payload.Payload, *, by_stream: bool
) -> worker.Assignment:
    """Takes one task, by stream or by call, and reports an output."""
    if not by_stream:
        item = (await client.lease(name)).assignments[0]
        result = caller.completed(item)
        result.completed.output.CopyFrom(output)
        assert await client.report(result) == ["RECORDED"]
        return item
    one = await RawWorker.open(client, name)
    item = (await one.tasks())[0]
    result = caller.completed(item)
    result.completed.output.CopyFrom(output)
    assert await one.report(result) == ["RECORDED"]
    await one.close()
    return item


@pytest.mark.parametrize("sent", PAYLOADS.values(), ids=PAYLOADS)
async def test_payload__details_of_a_reschedule__come_back_to_the_byte(
    shared: Caller, sent: payload.Payload
) -> None:
    name = f"details {asyncio.get_running_loop().time()}"
    await shared.enqueue(name)
    item = (await shared.lease(name)).assignments[0]
    result = caller.rescheduled(item, 0)
    result.rescheduled.details.CopyFrom(sent)
    assert await shared.report(result) == ["RECORDED"]
    again = (await shared.lease(name, wait_seconds=5)).assignments[0]
    assert (again.attempt, again.delivery) == (1, 2)
    assert again.details == sent


async def test_payload__no_output__is_an_empty_one(shared: Caller) -> None:
    task_id = (await shared.enqueue("without"))[0]
    item = (await shared.lease("without")).assignments[0]
    bare = worker.Result(task_id=task_id, lease_token=item.lease_token)
    bare.completed.SetInParent()
    assert await shared.report(bare) == ["RECORDED"]
    result = (await shared.wait(task_id)).results[0].result
    assert result.HasField("output")
    assert result.output == payload.Payload()


async def test_payload__details_of_a_failure__come_back_to_the_byte(shared: Caller) -> None:
    task_id = (await shared.enqueue("fails"))[0]
    item = (await shared.lease("fails")).assignments[0]
    details = payload.Payload(data=bytes(range(256)), encoding="binary", schema="s")
    await shared.report(caller.failed(item, details=details, non_retryable=True))
    assert (await shared.get(task_id)).task.failure.details == details


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
async def test_payload__details_above_64_kib__are_a_note_beside_the_failure(
    shared: Caller, kind: str
) -> None:
    task_id = (await shared.enqueue("fails largely"))[0]
    item = (await shared.lease("fails largely")).assignments[0]
    await shared.cancel(task_id)
    failure = payload.Failure(type="Broken", message="why", non_retryable=True)
    failure.details.data = b"x" * (64 * 1024)
    failure.cause.type = "Cause"
    failure.cause.details.data = b"x" * (64 * 1024 + 1)
    failure.cause.details.encoding, failure.cause.details.schema = "e" * 200, "msgpack-1"
    result = caller.released(item)
    result.ClearField("released")
    getattr(result, kind).failure.CopyFrom(failure)
    assert await shared.report(result) == ["RECORDED"]
    found = (await shared.get(task_id)).task.failure
    assert (found.type, found.message) == ("Broken", "why")
    assert found.details == failure.details
    assert found.cause.details == payload.Payload(
        data=b'{"clipped": true, "size_bytes": 65537}', encoding="json", schema="tenure.clipped"
    )


async def test_payload__texts_of_details_too_long__are_clipped(shared: Caller) -> None:
    task_id = (await shared.enqueue("fails strangely"))[0]
    item = (await shared.lease("fails strangely")).assignments[0]
    details = payload.Payload(data=b"{}", encoding="e" * 1_000_000, schema="s" * 1_000_000)
    failed = caller.failed(item, details=details, non_retryable=True)
    assert await shared.report(failed) == ["RECORDED"]
    found = (await shared.get(task_id)).task.failure.details
    assert found.data == b"{}"
    assert (len(found.encoding.encode()), len(found.schema.encode())) == (100, 200)
    assert found.encoding.endswith("… [clipped]")


async def dead(client: Caller, name: str, count: int, failure: dict[str, Any], data: bytes) -> None:
    """Makes tasks with one input that failed for good."""
    for _ in range(count):
        await client.enqueue(name, input=payload.Payload(data=data))
    left = count
    while left:
        items = (await client.lease(name, count=count, wait_seconds=5)).assignments
        for item in items:
            result = caller.failed(item, non_retryable=True, **failure)
            assert await client.report(result) == ["RECORDED"]
        left -= len(items)


async def pages(read: Callable[[str], Awaitable[Any]]) -> list[Any]:
    """Reads a list to its end; each page must fit into a message."""
    found: list[Any] = []
    token = ""
    while not found or token:
        page = await read(token)
        assert page.ByteSize() <= MESSAGE_BYTES_MAX
        found.append(page)
        token = page.next_page_token
    return found


async def test_list__dead_letters_with_large_inputs__fills_one_message_a_page(
    apart: Caller,
) -> None:
    await dead(apart, "heavy dead", 12, {}, contract.TOO_LARGE[:-1])

    async def read(token: str) -> Any:
        request = admin.ListDeadLettersRequest(
            include_payloads=True, page_size=1000, page_token=token
        )
        return await apart.admin.ListDeadLetters(request, metadata=apart.metadata)

    found = await pages(read)
    assert [len(page.dead_letters) for page in found] == [7, 5]
    listed = [one for page in found for one in page.dead_letters]
    assert len({one.task_id for one in listed}) == 12
    assert {len(one.input.data) for one in listed} == {len(contract.TOO_LARGE) - 1}
    assert [one.died_at.ToDatetime() for one in listed] == sorted(
        (one.died_at.ToDatetime() for one in listed), reverse=True
    )


async def test_list__large_failures__fills_one_message_a_page(apart: Caller) -> None:
    failure = payload.Failure()
    for _ in range(7):
        outer = payload.Failure(type="E", message="m" * 8192, stack="s" * 32768, cause=failure)
        outer.details.data = b"d" * 65536
        failure = outer
    fields = {"cause": failure, "stack": "s" * 32768}
    await dead(apart, "large failures", 30, fields, b"1")

    async def read_letters(token: str) -> Any:
        request = admin.ListDeadLettersRequest(page_size=30, page_token=token)
        return await apart.admin.ListDeadLetters(request, metadata=apart.metadata)

    async def read_tasks(token: str) -> Any:
        request = tasks.ListTasksRequest(state=task.TASK_STATE_DEAD, page_size=30, page_token=token)
        return await apart.task.ListTasks(request, metadata=apart.metadata)

    letters = await pages(read_letters)
    assert len(letters) == 2
    assert len({one.task_id for page in letters for one in page.dead_letters}) == 30
    assert sum(len(page.dead_letters) for page in letters) == 30
    listed = await pages(read_tasks)
    assert len({one.task_id for page in listed for one in page.tasks}) == 30
    assert sum(len(page.tasks) for page in listed) == 30


async def test_assign__many_large_inputs__keeps_each_message_below_its_limit(
    shared: Caller,
) -> None:
    for _ in range(2):
        await shared.enqueue("heavy", count=6, input=payload.Payload(data=contract.TOO_LARGE[:-1]))
    one = await RawWorker.open(shared, "heavy", slots=12)
    await one.tasks(12)
    assert max(one.assign_sizes) <= MESSAGE_BYTES_MAX
    await one.accept()
    # The results are as large; each report keeps to the limit by itself.
    for item in list(one.out.values()):
        assert await one.report(caller.completed(item, contract.TOO_LARGE[:-1])) == ["RECORDED"]
    await one.close()


async def test_lease__many_large_inputs__keeps_the_answer_below_its_limit(
    shared: Caller,
) -> None:
    for _ in range(2):
        await shared.enqueue(
            "heavy polled", count=6, input=payload.Payload(data=contract.TOO_LARGE[:-1])
        )
    seen: set[str] = set()
    while len(seen) < 12:
        answer = await shared.lease("heavy polled", count=12, wait_seconds=5)
        assert answer.assignments
        assert answer.ByteSize() <= MESSAGE_BYTES_MAX
        seen |= {item.task_id for item in answer.assignments}
        await shared.report(*map(caller.completed, answer.assignments))


async def test_await__many_large_outputs__keeps_the_answer_below_its_limit(
    shared: Caller,
) -> None:
    ids = await shared.enqueue("heavy result", count=12)
    for item in (await shared.lease("heavy result", count=12)).assignments:
        await shared.report(caller.completed(item, contract.TOO_LARGE[:-1]))
    left = set(ids)
    while left:
        answer = await shared.wait(*left)
        assert answer.ByteSize() <= MESSAGE_BYTES_MAX
        assert answer.results
        left -= {result.task_id for result in answer.results}
