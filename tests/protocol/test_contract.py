"""Every documented error of every RPC, and what holds for all of them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from google.protobuf import descriptor, message_factory
from psycopg import conninfo

from tenure.v1 import (
    admin_service_pb2,
    errors_pb2,
    registry_service_pb2,
    task_service_pb2,
    worker_service_pb2,
    workflow_service_pb2,
)
from tenure.v1 import task_pb2 as task
from tenure_service.dispatch.hub import Hub
from tenure_service.engine import limits
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError
from tenure_service.main import Server
from tenure_service.rpc import errors
from tests.fix_server import server_config
from tests.protocol import contract, contract_runs, refusals
from tests.protocol.caller import Caller
from tests.protocol.contract import Row
from tests.protocol.raw_worker import RawWorker
from tests.protocol.refusals import Refusal
from tools import error_docs

MODULES: tuple[Any, ...] = (
    admin_service_pb2,
    registry_service_pb2,
    task_service_pb2,
    worker_service_pb2,
    workflow_service_pb2,
)
ROWS = [*contract.ROWS, *contract_runs.ROWS]
SHARED = [row for row in ROWS if row.where == "shared"]
#: Reasons that say when to try again.
WAITS = {
    Reason.OVERLOADED,
    Reason.QUOTA_EXCEEDED,
    Reason.DATABASE_UNAVAILABLE,
    Reason.SHUTTING_DOWN,
}


def methods() -> list[descriptor.MethodDescriptor]:
    return [
        method
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def rpc_name(method: descriptor.MethodDescriptor) -> str:
    return f"{method.containing_service.name}.{method.name}"


def check(row: Row, refusal: Refusal) -> None:
    expected = errors.TABLE[row.reason].status.name
    assert (refusal.status, refusal.reason) == (expected, row.reason)
    assert (refusal.retry_seconds is not None) == (row.reason in WAITS)
    if row.reason is Reason.FIELD_INVALID:
        assert refusal.fields
    assert sorted(row.fields) == sorted(refusal.fields) or not row.fields
    if row.reason is Reason.PAYLOAD_TOO_LARGE:
        assert set(refusal.metadata) == {"size_bytes", "limit_bytes"}
    if row.reason is Reason.VERSION_UNSUPPORTED:
        assert refusal.metadata == {"server_version": "1.0", "client_version": "2.1"}
    if row.reason is Reason.BUG:
        assert set(refusal.metadata) == {"incident"}


def of(where: str) -> Iterable[Row]:
    return [row for row in ROWS if row.where == where]


def test_table__every_rpc__has_a_row_for_each_documented_error() -> None:
    documented = error_docs.documented()
    assert set(documented) == {rpc_name(method) for method in methods()}
    rows: dict[str, set[Reason]] = {rpc: set() for rpc in documented}
    for row in ROWS:
        rows[row.rpc].add(row.reason)
    for rpc, reasons in documented.items():
        assert set(reasons) <= rows[rpc], rpc
        assert rpc in contract.WITHOUT or reasons, rpc
    named = {reason for reasons in rows.values() for reason in reasons}
    everywhere = {Reason.CONTENTION, Reason.UNAUTHENTICATED}
    assert set(Reason) - named == contract.LATER | everywhere


def test_reasons__python_protocol_and_table__are_the_same() -> None:
    values = errors_pb2.ErrorReason.DESCRIPTOR.values
    wire = {value.name.removeprefix("ERROR_REASON_") for value in values} - {"UNSPECIFIED"}
    assert wire == {str(reason) for reason in Reason} == {str(reason) for reason in errors.TABLE}
    assert all(len(value.name) <= 63 for value in values)


def test_document__errors__is_what_the_generator_gives() -> None:
    assert error_docs.TARGET.read_text(encoding="utf-8") == error_docs.text()
    assert set(error_docs.meanings()) == set(Reason)


def test_status__longest_of_everything__stays_under_four_kib() -> None:
    invalid = FieldInvalid([(f"tasks[{n}]." + "f" * 300, "é" * 2000) for n in range(500)])
    taken = TenureError(
        Reason.KEY_TAKEN, "\U0001f600" * 9000, metadata={f"k{n}": "\x00" * 9000 for n in range(4)}
    )
    for error in (invalid, taken):
        refusals.read(errors.status(error))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("row", SHARED, ids=[row.name for row in SHARED])
async def test_answer__documented_error__has_its_status_and_details(
    shared: Caller, row: Row
) -> None:
    check(row, await row.provoke(shared))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "method", [m for m in methods() if rpc_name(m) != "WorkerService.Work"], ids=rpc_name
)
async def test_answer__unknown_or_empty_namespace__is_told(
    shared: Caller, method: descriptor.MethodDescriptor
) -> None:
    made = shared.method(method.containing_service.name, method.name)
    request = _valid(rpc_name(method)) or message_factory.GetMessageClass(method.input_type)()
    if method.name in {"CreateNamespace", "ListNamespaces"}:
        await made(request, metadata=(("tenure-namespace", "nowhere"),))
        return
    refusal = await refusals.refused(made(request, metadata=(("tenure-namespace", "nowhere"),)))
    assert (refusal.status, refusal.reason) == ("NOT_FOUND", "NOT_REGISTERED")
    assert refusal.metadata == {"kind": "namespace", "name": "nowhere"}
    refusal = await refusals.refused(made(request, metadata=(("tenure-namespace", ""),)))
    assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("tenure-namespace",))


def _valid(rpc: str) -> Any:
    """Gives a request that is right, for calls that need one."""
    ids: dict[str, Any] = {"task_ids": [contract.UNKNOWN]}
    return {
        "WorkerService.LeaseTasks": contract.leasing(),
        "WorkerService.RenewLeases": worker_service_pb2.RenewLeasesRequest(lease_tokens=["t"]),
        "WorkerService.ReportTasks": contract.reporting(),
        "WorkerService.RecordSteps": contract.recording(),
        "WorkerService.ListSteps": contract.listing(),
        "TaskService.EnqueueTasks": contract.enqueueing(),
        "TaskService.GetTask": task_service_pb2.GetTaskRequest(task_id=contract.UNKNOWN),
        "TaskService.ExplainTask": task_service_pb2.ExplainTaskRequest(task_id=contract.UNKNOWN),
        "TaskService.AwaitTasks": task_service_pb2.AwaitTasksRequest(**ids),
        "TaskService.CancelTasks": task_service_pb2.CancelTasksRequest(**ids),
        "TaskService.ListTasks": task_service_pb2.ListTasksRequest(state=task.TASK_STATE_READY),
        "RegistryService.SetTaskDefinition": (
            registry_service_pb2.SetTaskDefinitionRequest(name="n")
        ),
        "RegistryService.SetQueue": registry_service_pb2.SetQueueRequest(name="n"),
        "AdminService.CreateApiKey": admin_service_pb2.CreateApiKeyRequest(
            name="n", scopes=[admin_service_pb2.SCOPE_CLIENT]
        ),
        "AdminService.RevokeApiKey": admin_service_pb2.RevokeApiKeyRequest(key_id=contract.UNKNOWN),
        "AdminService.CreateNamespace": admin_service_pb2.CreateNamespaceRequest(name="n"),
        "AdminService.ReplayDeadLetters": admin_service_pb2.ReplayDeadLettersRequest(**ids),
        "AdminService.DiscardDeadLetters": admin_service_pb2.DiscardDeadLettersRequest(**ids),
        **contract_runs.BASES,
    }.get(rpc)


async def test_work__unknown_namespace__is_told(client: Caller) -> None:
    stranger = Caller(client.address, "nowhere")
    refusal = await contract.streamed(contract.opening())(stranger)
    assert (refusal.status, refusal.reason) == ("NOT_FOUND", "NOT_REGISTERED")
    await stranger.close()


@pytest_asyncio.fixture
async def running(database: str) -> AsyncIterator[Server]:
    """A server whose inside the test reaches."""
    made = Server(server_config(database))
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def own(running: Server) -> AsyncIterator[Caller]:
    """A client of `running`."""
    opened = Caller(running.address)
    yield opened
    await opened.close()


async def test_answer__database_read_only__is_unavailable(
    running: Server, own: Caller, conn: psycopg.Connection
) -> None:
    name = str(conninfo.conninfo_to_dict(conn.info.dsn)["dbname"])
    await own.enqueue("before")
    running._database._pool.timeout = 0.5
    _everybody_read_only(conn, name, on=True)
    answers = await asyncio.gather(*(row.provoke(own) for row in of("read_only")))
    for row, refusal in zip(of("read_only"), answers, strict=True):
        check(row, refusal)
    _everybody_read_only(conn, name, on=False)
    # It recovers by itself; each call that is refused until then takes half a second.
    refused: list[str] = []
    while len(refused) < 20:
        try:
            await own.enqueue("after")
        except grpc.RpcError as error:
            refused.append(refusals.of(error).reason)
        else:
            break
    assert set(refused) <= {"DATABASE_UNAVAILABLE"}
    assert len(refused) < 20


def _everybody_read_only(conn: psycopg.Connection, name: str, *, on: bool) -> None:
    word = "on" if on else "off"
    conn.execute(f'alter database "{name}" set default_transaction_read_only = {word}')
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = %s and pid <> pg_backend_pid() and backend_type = 'client backend'",
        [name],
    )


async def test_answer__server_stopping__is_shutting_down(running: Server, own: Caller) -> None:
    await own.enqueue("contract")
    one = await RawWorker.open(own)
    hub = running._hub
    assert isinstance(hub, Hub)
    stopping = asyncio.create_task(running.stop())
    await one.until(lambda: bool(one.drains))
    # From the notice on until the port is closed.
    answers = await asyncio.gather(*(row.provoke(own) for row in of("stopping")))
    for row, refusal in zip(of("stopping"), answers, strict=True):
        check(row, refusal)
    await stopping


async def test_answer__more_than_the_server_holds__is_overloaded(
    running: Server, own: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "QUEUED_COUNT_MAX", 2)
    row = next(iter(of("full")))
    calls = [contract.enqueueing(*list(contract.enqueueing().tasks) * 2) for _ in range(30)]
    answers = await asyncio.gather(
        *(own.task.EnqueueTasks(call) for call in calls), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, grpc.RpcError)]
    assert 0 < len(refused) < 30
    for error in refused:
        check(row, refusals.of(error))


async def test_answer__results_beyond_its_memory__is_overloaded(
    running: Server, own: Caller
) -> None:
    assert running._hub is not None
    memory = running._hub.memory
    memory.take(limits.PAYLOAD_MEMORY_BYTES)
    for row in of("crowded"):
        check(row, await row.provoke(own))
    memory.give(limits.PAYLOAD_MEMORY_BYTES)


async def test_answer__defect__tells_no_more_than_an_incident(
    running: Server, own: Caller, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute("alter table sessions rename to gone")
    conn.execute("alter table queues rename to lost")
    for row in of("broken"):
        check(row, await row.provoke(own))
    request = registry_service_pb2.SetQueueRequest(name="q")
    refusal = await refusals.refused(own.registry.SetQueue(request))
    assert (refusal.status, refusal.reason) == ("INTERNAL", "BUG")
    assert refusal.metadata["incident"] in refusal.message
    assert refusal.metadata["incident"] in caplog.text
    assert "queues" not in refusal.message
    conn.execute("alter table gone rename to sessions")
    conn.execute("alter table lost rename to queues")
