"""Every field of every request with values that no decent client sends; see bases.py.

The messages of the stream are in test_bad_streams.py.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import psycopg
import pytest
from google.protobuf.message import Message

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import registry_service_pb2 as registry
from tenure.v1 import task_pb2 as task
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tenure.v1 import workflow_service_pb2 as workflows
from tenure_service.store import invariants
from tests.eventually import eventually
from tests.protocol import caller, contract, mutations, refusals
from tests.protocol.bases import BASES, statuses, wrong
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.protocol.test_contract import methods, rpc_name

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_bases__every_unary_rpc__has_one() -> None:
    unary = {rpc_name(one) for one in methods() if not one.client_streaming}
    assert set(BASES) == unary


@pytest.fixture(scope="module")
def rows(shared_database: str) -> Any:
    """A connection to the module's database."""
    with psycopg.connect(
        shared_database, autocommit=True, options="-c search_path=tenure"
    ) as opened:
        yield opened


@pytest.mark.parametrize("rpc", BASES)
async def test_call__any_field_bad__answers_a_documented_status(
    shared: Caller, rows: psycopg.Connection, rpc: str
) -> None:
    made = shared.method(*rpc.split("."))
    gate = asyncio.Semaphore(8)
    before = rows.execute("select count(*) from tasks").fetchone()
    stored: Counter[str] = Counter()
    bad: list[str] = []

    async def send(path: str, name: str, request: Message) -> None:
        where = f"{rpc} {path} = {name}"
        async with gate:
            try:
                answer = await made(request, timeout=caller.TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}:
                    bad.append(f"{where}: {error.code().name} {error.details()}")
                else:
                    bad.extend(wrong(where, refusals.of(error)))
                return
        for status in statuses(answer):
            bad.extend(wrong(where, refusals.read(status)))
        if isinstance(answer, tasks.EnqueueTasksResponse):
            stored["tasks"] += sum(result.HasField("task") for result in answer.results)
            if len(answer.results) == 2 and not answer.results[1].HasField("task"):
                bad.append(f"{where}: its mate was refused")
        elif isinstance(answer, workflows.StartRunsResponse):
            stored["tasks"] += sum(result.HasField("run") for result in answer.results)
            if len(answer.results) == 2 and not answer.results[1].HasField("run"):
                bad.append(f"{where}: its mate was refused")

    await asyncio.gather(*(send(*mutation) for mutation in mutations.mutations(BASES[rpc])))
    assert not bad, "\n".join(bad)
    assert await shared.healthy()
    after = rows.execute("select count(*) from tasks").fetchone()
    assert before is not None
    assert after == (before[0] + stored["tasks"],)
    assert invariants.check_invariants(rows) == {}


@pytest.mark.parametrize("rpc", [rpc for rpc, base in BASES.items() if mutations.strings(base)])
async def test_call__any_string_no_utf_8__is_refused_and_stores_nothing(
    shared: Caller, rows: psycopg.Connection, rpc: str
) -> None:
    made: Any = shared.channel.unary_unary(f"/tenure.v1.{rpc.replace('.', '/')}")
    before = rows.execute("select count(*) from tasks").fetchone()
    for path, name, raw in mutations.encoded(BASES[rpc]):
        refusal = await refusals.refused(made(raw, timeout=caller.TIMEOUT_SECONDS))
        assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("message",)), (path, name)
    assert await shared.healthy()
    assert rows.execute("select count(*) from tasks").fetchone() == before


async def leased(client: Caller, name: str, count: int) -> list[worker.Assignment]:
    """Enqueues and leases tasks."""
    await client.enqueue(name, count=count)
    found: list[worker.Assignment] = []
    while len(found) < count:
        found += (await client.lease(name, count=1000)).assignments
    return found


def outcomes() -> list[tuple[str, str, worker.Result]]:
    """Gives bad results of every kind of outcome, without their task and token."""
    kinds = ("completed", "failed", "released", "rescheduled", "cancelled")
    found = []
    for path, name, result in mutations.mutations(worker.Result()):
        if path.partition(".")[0] in kinds:
            found.append((path, name, result))
    for name, (seconds, nanos) in mutations.DURATIONS.items():
        result = worker.Result(completed=worker.Completed())
        result.run_duration.seconds, result.run_duration.nanos = seconds, nanos
        found.append(("run_duration", name, result))
    return found


async def check_reports(
    rows: psycopg.Connection,
    items: list[worker.Assignment],
    report: Callable[[list[worker.Result]], Any],
) -> None:
    """Reports each bad result beside a good one, which must be recorded."""
    bad: list[str] = []
    gate = asyncio.Semaphore(8)

    async def one(number: int, path: str, name: str, result: worker.Result) -> None:
        mine, mate = items[2 * number], items[2 * number + 1]
        result.task_id, result.lease_token = mine.task_id, mine.lease_token
        where = f"{path} = {name}"
        try:
            async with gate:
                first, second = await report([result, caller.completed(mate)])
        except (grpc.aio.AioRpcError, AssertionError) as error:
            bad.append(f"{where}: {str(error)[:300]}")
            return
        if second[0] != "RECORDED":
            bad.append(f"{where}: its mate is {second[0]}")
        if first[0] == "REFUSED":
            bad.extend(wrong(where, refusals.read(first[1])))
        elif first[0] != "RECORDED":
            bad.append(f"{where}: {first[0]}")

    found = enumerate(outcomes())
    await asyncio.gather(*(one(number, *outcome) for number, outcome in found))
    assert not bad, "\n".join(bad)
    assert invariants.check_invariants(rows) == {}


async def test_report__by_call_and_any_field_bad__is_recorded_or_refused_alone(
    shared: Caller, rows: psycopg.Connection
) -> None:
    async def report(results: list[worker.Result]) -> Any:
        answer = await shared.report_fully(*results)
        return [(caller.status_name(one.status), one.error) for one in answer.results]

    items = await leased(shared, "reported by call", 2 * len(outcomes()))
    await check_reports(rows, items, report)
    assert await shared.healthy()


async def test_report__by_stream_and_any_field_bad__is_recorded_or_refused_alone(
    shared: Caller, rows: psycopg.Connection
) -> None:
    count = 2 * len(outcomes())
    await shared.enqueue("reported", count=count)
    one = await RawWorker.open(shared, "reported", slots=count)
    await one.tasks(count)
    await one.accept()

    async def report(results: list[worker.Result]) -> Any:
        if not len(one.out) % 50:
            await one.beat(*{item.lease_token for item in one.out.values()})
        ack = await one.report_fully(*results, seconds=3)
        errors = {error.index: error.error for error in ack.errors}
        return [
            (caller.status_name(status), errors.get(place))
            for place, status in enumerate(ack.statuses)
        ]

    await check_reports(rows, list(one.assigned), report)
    await one.cut()
    assert await shared.healthy()


async def test_start__run_duration_bad__does_not_keep_leases_from_being_renewed(
    shared: Caller,
) -> None:
    item = (await leased(shared, "started", 1))[0]
    for name, (seconds, nanos) in mutations.DURATIONS.items():
        request = service.RenewLeasesRequest(lease_tokens=[item.lease_token])
        started = request.started.add(task_id=item.task_id, lease_token=item.lease_token)
        started.run_duration.seconds, started.run_duration.nanos = seconds, nanos
        answer = await shared.work.RenewLeases(request)
        assert not answer.lost_lease_tokens, name


FORGED = {
    "no place": ["tasks.READY"],
    "no uuid": ["tasks.READY", "x"],
    "nul": ["queues", "\x00"],
    "surrogate": ["queues", "\ud800"],
    "definitions nul": ["task_defs", "\x00"],
    "no instant": ["dead_letters.OPEN", "yesterday", contract.UNKNOWN],
    "no uuid of the dead": ["dead_letters.OPEN", "2026-01-01T00:00:00+00:00", "x"],
    "far instant": ["dead_letters.OPEN", "9999-12-31T23:59:59-23:59", contract.UNKNOWN],
    "no zone": ["dead_letters.OPEN", "2026-01-01T00:00:00", contract.UNKNOWN],
}


@pytest.mark.parametrize("parts", FORGED.values(), ids=FORGED)
async def test_list__forged_page_token__answers_a_documented_status(
    shared: Caller, parts: list[str]
) -> None:
    await forged(shared, _token(parts))


async def test_list__page_token_of_deep_json__answers_a_documented_status(shared: Caller) -> None:
    await forged(shared, _encoded("[" * 100_000))


async def forged(client: Caller, token: str) -> None:
    """Sends a token to every list."""
    requests = {
        "TaskService.ListTasks": tasks.ListTasksRequest(
            state=task.TASK_STATE_READY, page_token=token
        ),
        "RegistryService.ListQueues": registry.ListQueuesRequest(page_token=token),
        "RegistryService.ListTaskDefinitions": registry.ListTaskDefinitionsRequest(
            page_token=token
        ),
        "AdminService.ListDeadLetters": admin.ListDeadLettersRequest(page_token=token),
    }
    bad: list[str] = []
    for rpc, request in requests.items():
        try:
            await client.method(*rpc.split("."))(request)
        except grpc.aio.AioRpcError as error:
            bad.extend(wrong(rpc, refusals.of(error)))
    assert not bad, "\n".join(bad)


def _token(parts: list[str]) -> str:
    import json

    return _encoded(json.dumps(parts))


def _encoded(text: str) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(text.encode()).decode()


async def test_strings__of_every_request__are_reached_by_reflection() -> None:
    reached = mutations.strings(BASES["TaskService.EnqueueTasks"])
    assert {"request_id", "tasks.name", "tasks.input.encoding", "tasks.traceparent"} <= reached
    reached = mutations.strings(worker.Result())
    assert {"failed.failure.message", "failed.failure.cause.type"} <= reached


async def test_failure__texts_with_nul_and_nested_causes__comes_back_readable(
    shared: Caller, rows: psycopg.Connection
) -> None:
    item = (await leased(shared, "failing", 1))[0]
    result = caller.failed(item, type="Bad\x00Type", message="a\x00b", stack="c\x00d" * 20_000)
    cause = result.failed.failure
    for depth in range(20):
        cause = cause.cause
        cause.type, cause.message = f"Cause{depth}", "x" * 10_000 + "\x00"
    assert await shared.report(result) == ["RECORDED"]
    failure = (await shared.get(item.task_id)).task.failure
    assert (failure.type, failure.message) == ("Bad�Type", "a�b")
    assert len(failure.stack.encode()) <= 32 * 1024
    assert failure.stack.endswith("… [clipped]")
    levels = 0
    while failure.HasField("cause"):
        failure = failure.cause
        levels += 1
        assert len(failure.message.encode()) <= 8 * 1024
    assert levels == 7


async def test_report__nul_in_a_failure__is_not_delivered_for_ever(
    shared: Caller, rows: psycopg.Connection
) -> None:
    item = (await leased(shared, "nul failure", 1))[0]
    assert await shared.report(caller.failed(item, message="\x00", non_retryable=True)) == [
        "RECORDED"
    ]
    assert await asyncio.to_thread(
        eventually,
        lambda: (
            rows.execute(
                "select count(*) from deliveries where task_id = %s", [item.task_id]
            ).fetchone()
            == (1,)
        ),
    )
    assert await shared.state(item.task_id) == "DEAD"


async def test_set_task_definition__cap_below_the_first_delay__is_refused(shared: Caller) -> None:
    request = registry.SetTaskDefinitionRequest(name="capped")
    retry = request.override.retry
    retry.initial_delay.CopyFrom(caller.seconds(300))
    retry.max_delay.CopyFrom(caller.seconds(60))
    refusal = await refusals.refused(shared.registry.SetTaskDefinition(request))
    assert refusal.reason == "FIELD_INVALID"
    assert list(refusal.fields) == ["override.retry.max_delay"]
    retry.ClearField("max_delay")
    stored = await shared.registry.SetTaskDefinition(request)
    assert stored.definition.effective.retry.max_delay.seconds == 300
