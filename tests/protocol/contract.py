"""The table of RPC x error reason: how each documented error is brought about.

A row is a call that must be refused. `where` says which server it is sent to: `shared` for most;
`stopping`, `read_only`, `full` and `broken` name servers in a state of their own, which
test_contract.py makes. `item` marks errors of one item of a batch.
"""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import payload_pb2 as payload
from tenure.v1 import policy_pb2 as policy
from tenure.v1 import registry_service_pb2 as registry
from tenure.v1 import run_pb2 as run
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tenure_service.engine.errors import Reason
from tests.protocol import caller, refusals
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.protocol.refusals import Refusal

if TYPE_CHECKING:
    from google.rpc import status_pb2

Provoke = Callable[[Caller], Awaitable[Refusal]]
LONG = "n" * 201
UNKNOWN = "00000000-0000-7000-8000-000000000000"
TOKEN = "A" * 43
#: Enum values of a newer peer.
UNKNOWN_BACKOFF: Any = 99
UNKNOWN_STATE: Any = 77
TOO_LARGE = b"x" * (2 * 1024 * 1024 + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One error of one RPC."""

    rpc: str
    reason: Reason
    provoke: Provoke
    fields: Sequence[str] = ()
    item: bool = False
    where: str = "shared"

    @property
    def name(self) -> str:
        """The id of the test."""
        return f"{self.rpc}-{self.reason}"


def call(rpc: str, request: Any) -> Provoke:
    """Makes a unary call that is refused as a whole."""
    name, _, method = rpc.partition(".")

    async def provoke(client: Caller) -> Refusal:
        made = client.method(name, method)(
            request, metadata=client.metadata, timeout=caller.TIMEOUT_SECONDS
        )
        return await refusals.refused(made)

    return provoke


def item(rpc: str, request: Any) -> Provoke:
    """Makes a unary call whose last item is refused."""
    name, _, method = rpc.partition(".")

    async def provoke(client: Caller) -> Refusal:
        answer = await client.method(name, method)(request, metadata=client.metadata)
        error: status_pb2.Status = answer.results[-1].error
        return refusals.read(error)

    return provoke


def streamed(*messages: service.WorkRequest) -> Provoke:
    """Opens a stream that the server ends."""

    async def provoke(client: Caller) -> Refusal:
        one = RawWorker(client)
        for message in messages:
            await one.call.write(message)
        refusal = await one.ended()
        assert refusal is not None, f"{one!r}"
        return refusal

    return provoke


def work(**message: Any) -> service.WorkRequest:
    """Gives a message of a stream."""
    return service.WorkRequest(**message)


def opening(**changed: Any) -> service.WorkRequest:
    """Gives an Open with some fields changed."""
    message = RawWorker.open_message()
    for name, value in changed.items():
        message.ClearField(name)  # type: ignore[arg-type]
        message.MergeFrom(stream.Open(**{name: value}))
    return work(open=message)


def leasing(**changed: Any) -> service.LeaseTasksRequest:
    """Gives a LeaseTasks call with some fields changed."""
    fields: dict[str, Any] = {
        "worker": worker.WorkerIdentity(name="contract"),
        "handlers": caller.handlers(["contract"]),
        "task_count_max": 1,
    }
    return service.LeaseTasksRequest(**(fields | changed))


def enqueueing(*items: tasks.NewTask, request_id: str = "") -> tasks.EnqueueTasksRequest:
    """Gives an EnqueueTasks call."""
    return tasks.EnqueueTasksRequest(
        request_id=request_id, tasks=items or [tasks.NewTask(name="contract")]
    )


def reporting(**changed: Any) -> service.ReportTasksRequest:
    """Gives a ReportTasks call of one result."""
    fields: dict[str, Any] = {
        "task_id": UNKNOWN,
        "lease_token": TOKEN,
        "completed": worker.Completed(),
    }
    return service.ReportTasksRequest(results=[worker.Result(**(fields | changed))])


def recording(*steps: run.NewStep, **changed: Any) -> service.RecordStepsRequest:
    """Gives a RecordSteps call of an activation that nobody has."""
    fields: dict[str, Any] = {
        "run_id": UNKNOWN,
        "lease_token": TOKEN,
        "steps": steps or [run.NewStep(step_id="1", name="s", call=run.StepResult())],
    }
    return service.RecordStepsRequest(**(fields | changed))


def listing(**changed: Any) -> service.ListStepsRequest:
    """Gives a ListSteps call of an activation that nobody has."""
    fields: dict[str, Any] = {"run_id": UNKNOWN, "lease_token": TOKEN}
    return service.ListStepsRequest(**(fields | changed))


async def reuse_of_enqueue(client: Caller) -> Refusal:
    """Repeats a request id with another task."""
    request_id = str(uuid.uuid4())
    await client.enqueue("contract", request_id=request_id)
    return await refusals.refused(client.enqueue("contract", 2, request_id=request_id))


async def reuse_of_lease(client: Caller) -> Refusal:
    """Repeats a request id with another count."""
    request_id = str(uuid.uuid4())
    await client.enqueue("reused")
    await client.lease("reused", request_id=request_id)
    return await refusals.refused(client.lease("reused", count=2, request_id=request_id))


async def key_taken(client: Caller) -> Refusal:
    """Enqueues another input under a key that stands."""
    key = str(uuid.uuid4())
    first = tasks.NewTask(name="contract", key=key)
    second = tasks.NewTask(name="contract", key=key, input=payload.Payload(data=b"other"))
    answer = await client.task.EnqueueTasks(enqueueing(first, second))
    assert answer.results[0].HasField("task")
    refusal = refusals.read(answer.results[1].error)
    assert refusal.metadata == {
        "key": key,
        "name": "contract",
        "existing_name": "contract",
        "existing_task_id": answer.results[0].task.task_id,
    }
    return refusal


def dead_twice(method: str, request: Callable[[str], Any]) -> Provoke:
    """Deals with a dead letter twice."""

    async def provoke(client: Caller) -> Refusal:
        name = f"dead {uuid.uuid4()}"
        task_id = (await client.enqueue(name))[0]
        leased = (await client.lease(name)).assignments[0]
        await client.report(caller.failed(leased, non_retryable=True))
        made = client.method("AdminService", method)
        await made(request(task_id))
        answer = await made(request(task_id))
        refusal = refusals.read(answer.results[0].error)
        assert refusal.metadata["allowed"] == "OPEN"
        assert refusal.metadata["state"] in {"REPLAYED", "DISCARDED"}
        return refusal

    return provoke


def _row(rpc: str, reason: Reason, request: Any, *fields: str, where: str = "shared") -> Row:
    return Row(rpc=rpc, reason=reason, provoke=call(rpc, request), fields=fields, where=where)


def _item(rpc: str, reason: Reason, request: Any, *fields: str) -> Row:
    return Row(rpc=rpc, reason=reason, provoke=item(rpc, request), fields=fields, item=True)


_INVALID = Reason.FIELD_INVALID
_DOWN = Reason.DATABASE_UNAVAILABLE
_STOP = Reason.SHUTTING_DOWN

WORKER_ROWS = [
    Row(
        rpc="WorkerService.Work",
        reason=_INVALID,
        provoke=streamed(
            opening(worker=worker.WorkerIdentity(sdk="s" * 101), slots={"total": 10_001})
        ),
        fields=("open.worker.name", "open.worker.sdk", "open.slots.total"),
    ),
    Row(
        rpc="WorkerService.Work",
        reason=Reason.PROTOCOL_VIOLATION,
        provoke=streamed(work(accept=stream.Accept())),
    ),
    Row(
        rpc="WorkerService.Work",
        reason=Reason.VERSION_UNSUPPORTED,
        provoke=streamed(opening(protocol_version="2.1")),
    ),
    Row(rpc="WorkerService.Work", reason=_STOP, provoke=streamed(opening()), where="stopping"),
    Row(rpc="WorkerService.Work", reason=_DOWN, provoke=streamed(opening()), where="read_only"),
    Row(rpc="WorkerService.Work", reason=Reason.BUG, provoke=streamed(opening()), where="broken"),
    _row(
        "WorkerService.LeaseTasks",
        _INVALID,
        leasing(
            request_id="no uuid",
            worker=worker.WorkerIdentity(),
            handlers=[worker.Handler(name=LONG, queue="\x00")],
            task_count_max=1001,
            wait_duration=caller.seconds(61),
        ),
        "request_id",
        "worker.name",
        "handlers[0].name",
        "handlers[0].queue",
        "task_count_max",
        "wait_duration",
    ),
    Row(rpc="WorkerService.LeaseTasks", reason=Reason.REQUEST_ID_REUSED, provoke=reuse_of_lease),
    _row("WorkerService.LeaseTasks", _STOP, leasing(), where="stopping"),
    _row("WorkerService.LeaseTasks", _DOWN, leasing(), where="read_only"),
    _row("WorkerService.RenewLeases", _INVALID, service.RenewLeasesRequest(), "lease_tokens"),
    _row(
        "WorkerService.RenewLeases",
        _DOWN,
        service.RenewLeasesRequest(lease_tokens=[TOKEN]),
        where="read_only",
    ),
    _row("WorkerService.ReportTasks", _INVALID, service.ReportTasksRequest(), "results"),
    _row("WorkerService.ReportTasks", Reason.OVERLOADED, reporting(), where="crowded"),
    _row("WorkerService.ReportTasks", _DOWN, reporting(), where="read_only"),
    _item(
        "WorkerService.ReportTasks",
        _INVALID,
        reporting(task_id="", lease_token="", completed=None),
        "task_id",
        "lease_token",
        "outcome",
    ),
    _item(
        "WorkerService.ReportTasks",
        Reason.PAYLOAD_TOO_LARGE,
        reporting(completed=worker.Completed(output=payload.Payload(data=TOO_LARGE))),
    ),
    _row(
        "WorkerService.RecordSteps",
        _INVALID,
        service.RecordStepsRequest(),
        "run_id",
        "lease_token",
        "steps",
    ),
    _row("WorkerService.RecordSteps", Reason.LEASE_LOST, recording()),
    _row("WorkerService.RecordSteps", Reason.OVERLOADED, recording(), where="crowded"),
    _row(
        "WorkerService.ListSteps",
        _INVALID,
        listing(run_id="", lease_token="", page_token="x"),  # noqa: S106 - a place in a list
        "run_id",
        "lease_token",
        "page_token",
    ),
    _row("WorkerService.ListSteps", Reason.LEASE_LOST, listing()),
]

TASK_ROWS = [
    _row(
        "TaskService.EnqueueTasks",
        _INVALID,
        tasks.EnqueueTasksRequest(request_id="no uuid"),
        "request_id",
        "tasks",
    ),
    _item(
        "TaskService.EnqueueTasks",
        _INVALID,
        enqueueing(
            tasks.NewTask(
                name="",
                queue=LONG,
                priority=101,
                delay=caller.seconds(-1),
                key="k" * 501,
                lane="\n",
                traceparent=LONG,
                input=payload.Payload(encoding="e" * 101, schema=LONG),
            )
        ),
        *(
            f"tasks[0].{name}"
            for name in (
                "name",
                "queue",
                "priority",
                "delay",
                "key",
                "lane",
                "traceparent",
                "input.encoding",
                "input.schema",
            )
        ),
    ),
    _item(
        "TaskService.EnqueueTasks",
        Reason.PAYLOAD_TOO_LARGE,
        enqueueing(tasks.NewTask(name="contract", input=payload.Payload(data=TOO_LARGE))),
    ),
    Row(rpc="TaskService.EnqueueTasks", reason=Reason.KEY_TAKEN, provoke=key_taken, item=True),
    Row(rpc="TaskService.EnqueueTasks", reason=Reason.REQUEST_ID_REUSED, provoke=reuse_of_enqueue),
    _row("TaskService.EnqueueTasks", Reason.OVERLOADED, enqueueing(), where="full"),
    _row("TaskService.EnqueueTasks", _DOWN, enqueueing(), where="read_only"),
    _row("TaskService.EnqueueTasks", _STOP, enqueueing(), where="stopping"),
    _row("TaskService.GetTask", _INVALID, tasks.GetTaskRequest(), "task_id"),
    _row("TaskService.GetTask", Reason.TASK_NOT_FOUND, tasks.GetTaskRequest(task_id=UNKNOWN)),
    _row(
        "TaskService.AwaitTasks",
        _INVALID,
        tasks.AwaitTasksRequest(task_ids=["", "\x00"], wait_duration=caller.seconds(61)),
        "task_ids[0]",
        "task_ids[1]",
        "wait_duration",
    ),
    _item(
        "TaskService.AwaitTasks",
        Reason.TASK_NOT_FOUND,
        tasks.AwaitTasksRequest(task_ids=[UNKNOWN]),
    ),
    _row(
        "TaskService.CancelTasks",
        _INVALID,
        tasks.CancelTasksRequest(
            reason="r" * 1025, grace_duration=caller.seconds(86401), task_ids=[""]
        ),
        "task_ids[0]",
        "reason",
        "grace_duration",
    ),
    _item(
        "TaskService.CancelTasks",
        Reason.TASK_NOT_FOUND,
        tasks.CancelTasksRequest(task_ids=[UNKNOWN]),
    ),
    _row(
        "TaskService.ListTasks",
        _INVALID,
        tasks.ListTasksRequest(queue=LONG, name=LONG, page_size=1001),
        "state",
        "queue",
        "name",
        "page_size",
    ),
    _row("TaskService.ExplainTask", _INVALID, tasks.ExplainTaskRequest(), "task_id"),
    _row(
        "TaskService.ExplainTask",
        Reason.TASK_NOT_FOUND,
        tasks.ExplainTaskRequest(task_id=f"{UNKNOWN}:{UNKNOWN}"),
    ),
]

OTHER_ROWS = [
    _row(
        "RegistryService.SetTaskDefinition",
        _INVALID,
        registry.SetTaskDefinitionRequest(
            override=policy.TaskPolicy(
                retry=policy.RetryPolicy(
                    max_attempts=1001, backoff=UNKNOWN_BACKOFF, jitter=2, multiplier=0
                )
            )
        ),
        "name",
        "override.retry.max_attempts",
        "override.retry.backoff",
        "override.retry.jitter",
        "override.retry.multiplier",
    ),
    _row(
        "RegistryService.ListTaskDefinitions",
        _INVALID,
        registry.ListTaskDefinitionsRequest(page_size=1001),
        "page_size",
    ),
    _row("RegistryService.SetQueue", _INVALID, registry.SetQueueRequest(), "name"),
    _row(
        "RegistryService.ListQueues",
        _INVALID,
        registry.ListQueuesRequest(page_token="garbage"),  # noqa: S106 - a place in a list
        "page_token",
    ),
    _row(
        "AdminService.CreateNamespace",
        _INVALID,
        admin.CreateNamespaceRequest(name="Upper"),
        "name",
    ),
    _row(
        "AdminService.GetQueueStatistics",
        _INVALID,
        admin.GetQueueStatisticsRequest(queue=LONG),
        "queue",
    ),
    _row(
        "AdminService.ListDeadLetters",
        _INVALID,
        admin.ListDeadLettersRequest(queue=LONG, name="\x7f", state=UNKNOWN_STATE, page_size=1001),
        "queue",
        "name",
        "state",
        "page_size",
    ),
    _row("AdminService.ReplayDeadLetters", _INVALID, admin.ReplayDeadLettersRequest(), "task_ids"),
    _item(
        "AdminService.ReplayDeadLetters",
        Reason.NOT_REGISTERED,
        admin.ReplayDeadLettersRequest(task_ids=[UNKNOWN]),
    ),
    Row(
        rpc="AdminService.ReplayDeadLetters",
        reason=Reason.STATE_CONFLICT,
        provoke=dead_twice(
            "ReplayDeadLetters", lambda task_id: admin.ReplayDeadLettersRequest(task_ids=[task_id])
        ),
        item=True,
    ),
    _row(
        "AdminService.DiscardDeadLetters", _INVALID, admin.DiscardDeadLettersRequest(), "task_ids"
    ),
    _item(
        "AdminService.DiscardDeadLetters",
        Reason.NOT_REGISTERED,
        admin.DiscardDeadLettersRequest(task_ids=["not an id"]),
    ),
    Row(
        rpc="AdminService.DiscardDeadLetters",
        reason=Reason.STATE_CONFLICT,
        provoke=dead_twice(
            "DiscardDeadLetters",
            lambda task_id: admin.DiscardDeadLettersRequest(task_ids=[task_id]),
        ),
        item=True,
    ),
]

ACCESS_ROWS = [
    _row(
        "AdminService.CreateApiKey",
        _INVALID,
        admin.CreateApiKeyRequest(
            scopes=[UNKNOWN_STATE], queue_globs=[""], lifetime=caller.seconds(-1)
        ),
        "name",
        "scopes",
        "queue_globs[0]",
        "lifetime",
    ),
    _row(
        "AdminService.CreateApiKey",
        Reason.SCOPE_MISSING,
        admin.CreateApiKeyRequest(name="more", scopes=[admin.SCOPE_WORKER]),
        where="keyed",
    ),
    _row("AdminService.RevokeApiKey", _INVALID, admin.RevokeApiKeyRequest(key_id="k"), "key_id"),
    _row(
        "AdminService.RevokeApiKey",
        Reason.NOT_REGISTERED,
        admin.RevokeApiKeyRequest(key_id=UNKNOWN),
    ),
    _row(
        "AdminService.ListAuditEvents",
        _INVALID,
        admin.ListAuditEventsRequest(page_size=1001),
        "page_size",
    ),
]

ROWS = [*WORKER_ROWS, *TASK_ROWS, *OTHER_ROWS, *ACCESS_ROWS]
#: RPCs whose comments name no error of their own.
WITHOUT = {
    "AdminService.ListApiKeys",
    "AdminService.ListNamespaces",
    "AdminService.ListWorkers",
}
#: Errors that belong to no RPC of this release.
LATER = {
    Reason.HISTORY_MISMATCH,
    Reason.QUOTA_EXCEEDED,
}
